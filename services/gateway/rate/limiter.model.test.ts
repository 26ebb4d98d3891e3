import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import fc from "fast-check";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { createLog } from "../../../shared/platform/log.ts";
import { askTime, type Database, StoreUnavailable } from "../../../shared/store/database/database.ts";
import type { Caller } from "../../../shared/store/resources/callers.ts";
import { startStore, type TestStore } from "../../../shared/store/test-support.ts";
import { openTestDatabase } from "../../../test/support/database.ts";
import { createRateLimiter, type RateLimiter } from "./limiter.ts";

setDefaultTimeout(600_000);

const TICK_MS = 100;
const GATEWAYS = 3;
/**
 * Postgres waits 700 ms for the account of a loan, and a gateway held up for longer counts as dead. The test stops a gateway for
 * FREEZE_MS, and a gateway asks again 200 ms after an answer was lost. Beside these it may be held up three times in a row.
 */
const HELD_UP_MS_MAX = 100;
const FREEZE_MS = 1.3 * TICK_MS;
/** The index of the statement's parameter that names loans. */
const LOANS = 5;
const log = createLog({ name: "test", level: "silent" });

/** Totals over all runs of the test. */
let lentCount = 0;
/** The longest time that a gateway waited for an answer, or this process for a turn, without the time for which the test stopped it. */
let heldUpMs = 0;
/** How long the test has stopped this process, in all. */
let frozenMs = 0;
/** Starts a stopwatch that stands still while the test stops this process. */
function startWatch(): () => number {
  const [startedAt, frozenBefore] = [performance.now(), frozenMs];
  return () => performance.now() - startedAt - (frozenMs - frozenBefore);
}
let store: TestStore;
const pools: Database[] = [];

beforeAll(async () => {
  store = await startStore();
  for (let n = 0; n < GATEWAYS; n++) pools.push(openTestDatabase(store.url, 2, "silent"));
});
afterAll(async () => {
  await Promise.all(pools.map((pool) => pool.close()));
  await store.stop();
});

/** The limiter of a gateway, and the fate of its next statement. */
interface Gateway {
  limiter: RateLimiter;
  /** The names of all loans that it may have had. */
  loans: Set<string>;
  fate: "well" | "not sent" | "answer lost" | "dead";
}

function startLimiter(pool: Database): Gateway {
  const db: Database = {
    ...pool,
    async run<Row>(name: string, text: string, values: unknown[]) {
      const { fate } = gateway;
      for (const loan of String(values[LOANS]).matchAll(/[0-9a-f-]{36}/g)) gateway.loans.add(loan[0]);
      if (fate === "dead") return new Promise<Row[]>(() => undefined);
      gateway.fate = "well";
      if (fate === "not sent") throw new StoreUnavailable("not sent");
      const takenMs = startWatch();
      const rows = await pool.run<Row>(name, text, values);
      heldUpMs = Math.max(heldUpMs, takenMs());
      for (const row of rows as { lent: number }[]) lentCount += row.lent;
      if (fate === "answer lost") throw new StoreUnavailable("answer lost");
      return rows;
    },
  };
  const gateway: Gateway = { limiter: createRateLimiter(db, log), loans: new Set(), fate: "well" };
  return gateway;
}

interface Asked {
  /** The decision was made between these two, in milliseconds of performance.now(). */
  from: number;
  to: number;
  outcome: "accepted" | "refused" | "unknown";
}

/** The offset of the database's clock from performance.now() lies between these two. */
async function measureOffset(): Promise<{ min: number; max: number }> {
  let best = { min: Number.NEGATIVE_INFINITY, max: Number.POSITIVE_INFINITY };
  for (let sample = 0; sample < 20; sample++) {
    const from = performance.now();
    const time = await askTime(store.db);
    const offset = { min: time - performance.now(), max: time - from };
    if (offset.max - offset.min < best.max - best.min) best = offset;
  }
  return best;
}

const callerOf = (no: ProjectNo, limit: number) =>
  ({
    project: { no, plan: "pro", requestsPerMinuteOverride: limit },
    environment: "production",
  }) as Caller;

const step = fc.record({
  gateway: fc.nat(GATEWAYS - 1),
  /** How many requests come at once, and how often in a row. */
  crowd: fc.oneof(
    fc.record({ width: fc.integer({ min: 1, max: 12 }), length: fc.integer({ min: 1, max: 12 }) }),
    fc.record({ width: fc.integer({ min: 20, max: 200 }), length: fc.constant(1) }),
  ),
  pauseMs: fc.oneof({ weight: 3, arbitrary: fc.constant(0) }, { weight: 2, arbitrary: fc.nat(120) }),
  event: fc.oneof(
    { weight: 12, arbitrary: fc.constant("none" as const) },
    { weight: 2, arbitrary: fc.constantFrom("freeze", "not sent", "answer lost") },
    { weight: 1, arbitrary: fc.constant("dead" as const) },
  ),
});

test("each accepted request counts in its own tick and nothing else counts, whatever gateways do with their loans", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(step, { minLength: 4, maxLength: 25 }),
      fc.integer({ min: 60, max: 800 }),
      async (steps, limit) => {
        const projectNo = await store.addProject();
        const caller = callerOf(projectNo, limit);
        const gateways = pools.map(startLimiter);
        const asked: Asked[] = [];
        const offset = await measureOffset();

        async function ask(gateway: Gateway): Promise<void> {
          const from = performance.now();
          const outcome = await Promise.resolve(gateway.limiter.take(caller, 1)).then(
            ({ retryAfterMs }) => (retryAfterMs === null ? "accepted" : "refused"),
            () => "unknown" as const,
          );
          asked.push({ from, to: performance.now(), outcome });
        }

        heldUpMs = 0;
        let sinceLook = startWatch();
        const looking = setInterval(() => {
          heldUpMs = Math.max(heldUpMs, sinceLook());
          sinceLook = startWatch();
        }, 10);
        const running: Promise<unknown>[] = [];
        for (const {
          gateway: index,
          crowd: { width, length },
          pauseMs,
          event,
        } of steps) {
          const gateway = gateways[index] as Gateway;
          if (event === "dead") {
            await Promise.all(running);
            gateway.fate = "dead";
            gateways[index] = startLimiter(pools[index] as Database);
            continue;
          }
          // This blocks the whole process, as if it had been stopped.
          if (event === "freeze") {
            Bun.sleepSync(FREEZE_MS);
            frozenMs += FREEZE_MS;
          } else if (event !== "none") gateway.fate = event;
          running.push(
            ...Array.from({ length: width }, async () => {
              for (let n = 0; n < length; n++) await ask(gateway);
            }),
          );
          await Bun.sleep(pauseMs);
        }
        await Promise.all(running);
        for (const gateway of gateways) gateway.fate = "well";
        await Promise.all(gateways.map(({ limiter }) => limiter.stop()));
        clearInterval(looking);

        const [window] = await store.query<{ accepted: number; loans: Record<string, [number, number]> }>(
          "SELECT accepted, loans FROM rate_windows WHERE project_no = $1 AND environment = 1",
          [projectNo],
        );
        const ticks = await store.query<{ tick: string; accepted: number }>(
          "SELECT tick, accepted FROM rate_ticks WHERE project_no = $1",
          [projectNo],
        );
        // Living gateways owe nothing in the end.
        const loans = Object.entries(window?.loans ?? {});
        for (const { loans: own } of gateways) expect(loans.filter(([loan]) => own.has(loan))).toEqual([]);
        const dead = loans.reduce((sum, [, [, count]]) => sum + count, 0);
        const of = (...outcomes: Asked["outcome"][]) =>
          asked.filter(({ outcome }) => outcomes.includes(outcome));
        const [accepted, perhapsAccepted] = [of("accepted"), of("accepted", "unknown")];

        expect(accepted.length).toBeLessThanOrEqual(limit);
        expect(ticks.reduce((sum, tick) => sum + tick.accepted, 0)).toBe(window?.accepted ?? -1);
        for (const refusal of heldUpMs < HELD_UP_MS_MAX ? of("refused") : []) {
          const before = perhapsAccepted.filter(({ from }) => from <= refusal.to);
          expect(before.length + dead).toBeGreaterThanOrEqual(limit);
        }
        for (const { tick } of ticks) {
          const startsAt = Number(tick) * TICK_MS;
          const counted = ticks.reduce(
            (sum, other) => sum + (Number(other.tick) >= Number(tick) ? other.accepted : 0),
            0,
          );
          const surely = accepted.filter(({ from }) => from + offset.min >= startsAt);
          const perhaps = perhapsAccepted.filter(({ to }) => to + offset.max >= startsAt);
          expect(counted).toBeGreaterThanOrEqual(surely.length);
          expect(counted).toBeLessThanOrEqual(perhaps.length + dead);
        }
      },
    ),
    { numRuns: 25 },
  );
  expect(lentCount).toBeGreaterThan(0);
});
