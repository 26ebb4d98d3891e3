import { expect, setDefaultTimeout, test } from "bun:test";
import fc from "fast-check";
import type { Bus } from "../../shared/bus/bus.ts";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { NO_TRACES } from "../../shared/platform/traces/traces.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { ShardHost } from "./shard-host.ts";
import { NODE, owedOf } from "./test-support.ts";

setDefaultTimeout(180_000);

const START = 1_800_000_000_000;
const REGION = "us-east";
const log = createLog({ level: "silent", name: "test" });
const metrics = createMetrics();

/** A host that hears one delivery node, with the clock and the messages in the tester's hand. */
function startHost() {
  const sent: string[] = [];
  let now = START;
  const bus: Bus = {
    ...createInProcessBus(log),
    sendDue: (_, { items }) => void sent.push(...items.map(({ id }) => id)),
  };
  const cell = {
    bus,
    db: {} as Database,
    clock: { now: () => now, stop: () => undefined },
    log,
    metrics,
    traces: NO_TRACES,
  };
  const host = new ShardHost(cell, { nodeId: 1, isTrusted: () => true, onChange: () => undefined });
  const named = (shard: number) => ({ region: REGION, shard, epoch: 1 }) as const;
  return {
    host,
    own: (shard: number) => host.add([named(shard)]),
    lose: (shard: number) => host.remove([named(shard)]),
    /** Lets the time pass, and answers what was sent by then. */
    pass(ms: number): string[] {
      now += ms;
      host.hearBeat({ nodeId: NODE, regions: [REGION], room: 1_000_000 });
      host.advance(now);
      host.send(now);
      return sent.splice(0);
    },
    now: () => now,
  };
}

test("a shard that was lost leaves the wheel", () => {
  const { host, own, lose, pass, now } = startHost();
  own(0);
  host.learn(REGION, 0, [owedOf({ dueAt: now() + 500 })]);
  expect(host.advance(now())).toBeLessThanOrEqual(now() + 500);
  lose(0);
  expect(host.advance(now())).toBe(Number.POSITIVE_INFINITY);
  expect(pass(1_000)).toEqual([]);
});

const SHARDS = 3;
const step = fc.oneof(
  fc.record({ kind: fc.constant("own" as const), shard: fc.nat(SHARDS - 1) }),
  fc.record({ kind: fc.constant("lose" as const), shard: fc.nat(SHARDS - 1) }),
  fc.record({
    kind: fc.constant("learn" as const),
    shard: fc.nat(SHARDS - 1),
    aheadMs: fc.double({ min: 0, max: 900, noNaN: true }),
  }),
  fc.record({ kind: fc.constant("pass" as const), ms: fc.double({ min: 0, max: 300, noNaN: true }) }),
  fc.record({ kind: fc.constant("forget" as const) }),
);

test("shards on one wheel send what each of them holds when it is due, and nothing of a shard that was lost", () => {
  fc.assert(
    fc.property(fc.array(step, { minLength: 20, maxLength: 60, size: "max" }), (steps) => {
      const { host, own, lose, pass, now } = startHost();
      // The entries that a wheel for each shard would hold.
      const wheels = new Map<number, Map<string, number>>();
      for (const it of steps) {
        if (it.kind === "own" && !wheels.has(it.shard)) {
          own(it.shard);
          wheels.set(it.shard, new Map());
        } else if (it.kind === "lose") {
          lose(it.shard);
          wheels.delete(it.shard);
        } else if (it.kind === "forget") {
          host.forget();
          for (const wheel of wheels.values()) wheel.clear();
        } else if (it.kind === "learn") {
          const owed = owedOf({ projectNo: it.shard, dueAt: now() + it.aheadMs });
          host.learn(REGION, it.shard, [owed]);
          wheels.get(it.shard)?.set(owed.id, owed.dueAt);
        } else if (it.kind === "pass") {
          const sent = pass(it.ms);
          const due = [...wheels.values()].flatMap((wheel) =>
            [...wheel].filter(([id, dueAt]) => dueAt <= now() && wheel.delete(id)).map(([id]) => id),
          );
          expect(sent.sort()).toEqual(due.sort());
        }
        const coming = [...wheels.values()]
          .flatMap((wheel) => [...wheel.values()])
          .filter((dueAt) => dueAt > now());
        expect(host.advance(now())).toBeLessThanOrEqual(Math.min(...coming));
      }
      for (const shard of wheels.keys()) lose(shard);
      expect(host.advance(now())).toBe(Number.POSITIVE_INFINITY);
    }),
  );
});
