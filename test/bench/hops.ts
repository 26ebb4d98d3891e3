import { readFileSync } from "node:fs";
import type { Bus } from "../../shared/bus/bus.ts";
import { openBus } from "../../shared/bus/jetstream.ts";
import type { OwedAttempt } from "../../shared/bus/messages.ts";
import { createLog } from "../../shared/platform/log.ts";
import { startNatsServer } from "../support/nats-server.ts";

/**
 * What the hops cost without any rule: this process as the gateway tells a worker, the worker tells a delivery
 * node, and the answers come back here, each a process of its own beside a nats-server of their own. An item is
 * one attempt that went the whole way of three messages. The first hop is a hint (core NATS) or a command
 * (JetStream); messages hold one item or a list.
 */

const VARIANTS = [
  { name: "core, single", kept: false, listLength: 1 },
  { name: "core, lists of 50", kept: false, listLength: 50 },
  { name: "JetStream, single", kept: true, listLength: 1 },
  { name: "JetStream, lists of 50", kept: true, listLength: 50 },
];
type Variant = (typeof VARIANTS)[number];

const ROUNDS = 5;
const WARMUP_MS = 300;
const FLOOD_MS = 1_500;
const PACED_MS = 2_000;
const PACE_PER_S = 250;
const ITEMS_IN_FLIGHT = 4_000;
const WAIT_MS_MAX = 10_000;

const GATEWAY = 1;
const DELIVERY = 2;
const SHARD = 3;
const PROJECT_NO = 4;
const REGION = "us-east";
const CLOCK_TICK_US = 10_000;

const log = createLog({ name: "hops", level: "warn" });

interface Figures {
  itemsPerSecond: number;
  cpuUsPerItem: number;
  p50Ms: number;
  p99Ms: number;
}

async function main(): Promise<void> {
  const server = await startNatsServer();
  const nodes = ["worker", "delivery"].map((role) =>
    Bun.spawn([process.execPath, import.meta.path, role, server.url], {
      stdio: ["pipe", "inherit", "inherit"],
    }),
  );
  const bus = await openBus(server.url, log);
  try {
    const gateway = createGateway(bus);
    await gateway.waitForChain();
    const pids = [process.pid, server.pid, ...nodes.map(({ pid }) => pid)];
    const rounds = new Map<Variant, Figures[]>(VARIANTS.map((variant) => [variant, []]));
    for (let round = 0; round < ROUNDS; round++) {
      for (const [variant, figures] of rounds) figures.push(await measure(gateway, variant, pids));
    }
    print(rounds);
  } finally {
    await bus.close();
    for (const node of nodes) node.kill();
    await Promise.all(nodes.map(({ exited }) => exited));
    await server.stop();
  }
}

async function measure(gateway: Gateway, variant: Variant, pids: number[]): Promise<Figures> {
  await gateway.flood(variant, WARMUP_MS);
  const cpuUsBefore = cpuUs(pids);
  const flooded = await gateway.flood(variant, FLOOD_MS);
  const cpuUsSpent = cpuUs(pids) - cpuUsBefore;
  const latenciesMs = (await gateway.pace(variant)).toSorted((a, b) => a - b);
  return {
    itemsPerSecond: (flooded.itemCount / flooded.tookMs) * 1_000,
    cpuUsPerItem: cpuUsSpent / flooded.itemCount,
    p50Ms: latenciesMs[Math.floor(latenciesMs.length * 0.5)] ?? Number.NaN,
    p99Ms: latenciesMs[Math.floor(latenciesMs.length * 0.99)] ?? Number.NaN,
  };
}

interface Gateway {
  waitForChain(): Promise<void>;
  /** As many items as return, for a while, and then until the last one is back. */
  flood(variant: Variant, floodMs: number): Promise<{ itemCount: number; tookMs: number }>;
  /** Messages at the set pace, and for each how long its way took. */
  pace(variant: Variant): Promise<number[]>;
}

function createGateway(bus: Bus): Gateway {
  let sentCount = 0;
  let backCount = 0;
  let onBack: (messageNo: number) => void = () => {};
  bus.onAnswers(GATEWAY, ({ items }) => {
    backCount += items.length;
    onBack(items[0]?.attempt ?? 0);
  });

  function send({ kept, listLength }: Variant, messageNo: number): void {
    const owed: OwedAttempt[] = [];
    for (let no = 0; no < listLength; no++) {
      owed.push({
        projectNo: PROJECT_NO,
        flowClass: "production jobs",
        id: `job_01k9x${String(sentCount++).padStart(21, "0")}`,
        attempt: messageNo,
        dueAt: Date.now(),
      });
    }
    if (kept) bus.sendCommand({ region: REGION, shard: SHARD, projectNo: PROJECT_NO, owed });
    else bus.sendHint({ region: REGION, shard: SHARD, owed, freed: [] });
  }

  async function drain(): Promise<void> {
    await until(() => backCount >= sentCount);
    onBack = () => {};
  }

  return {
    async waitForChain() {
      for (const variant of VARIANTS) {
        const before = backCount;
        await until(() => {
          send(variant, 1);
          return backCount > before;
        });
      }
      // Probes that went before the chain stood never come back.
      await until(() => {
        backCount = 0;
        sentCount = 0;
        return bus.silentMs() > 100;
      });
    },
    async flood(variant, floodMs) {
      const before = backCount;
      const startedAt = performance.now();
      const pump = () => {
        if (performance.now() - startedAt > floodMs) return;
        while (sentCount - backCount < ITEMS_IN_FLIGHT) send(variant, 1);
      };
      onBack = pump;
      pump();
      await Bun.sleep(floodMs);
      await drain();
      return { itemCount: backCount - before, tookMs: performance.now() - startedAt };
    },
    async pace(variant) {
      const messageCount = (PACE_PER_S * PACED_MS) / 1_000;
      const sentAt: number[] = [];
      const latenciesMs: number[] = [];
      onBack = (messageNo) => latenciesMs.push(performance.now() - (sentAt[messageNo] ?? Number.NaN));
      const startedAt = performance.now();
      for (let no = 0; no < messageCount; no++) {
        const waitMs = startedAt + (no * 1_000) / PACE_PER_S - performance.now();
        if (waitMs > 0) await Bun.sleep(waitMs);
        sentAt[no] = performance.now();
        send(variant, no);
      }
      await drain();
      return latenciesMs;
    },
  };
}

function serveAsWorker(bus: Bus): void {
  const pass = ({ owed }: { owed: OwedAttempt[] }) =>
    bus.sendDue(DELIVERY, {
      worker: GATEWAY,
      region: REGION,
      items: owed.map((item) => ({ ...item, shard: SHARD })),
    });
  bus.onHint(REGION, pass);
  bus.consumeCommands([REGION], pass);
}

function serveAsDelivery(bus: Bus): void {
  bus.onDue(DELIVERY, ({ worker, items }) =>
    bus.sendAnswers(worker, {
      delivery: DELIVERY,
      room: 1_000,
      region: REGION,
      items: items.map(({ projectNo, shard, id, attempt }) => ({
        projectNo,
        shard,
        id,
        attempt,
        answer: { kind: "granted" },
      })),
    }),
  );
}

/** User and system time of the processes together, as the kernel counts it (proc(5), fields 14 and 15). */
function cpuUs(pids: number[]): number {
  let ticks = 0;
  for (const pid of pids) {
    const afterName = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1) ?? "";
    const fields = afterName.split(" ");
    ticks += Number(fields[11]) + Number(fields[12]);
  }
  return ticks * CLOCK_TICK_US;
}

function print(rounds: Map<Variant, Figures[]>): void {
  const show = (figures: Figures[], field: keyof Figures, digits: number) => {
    const sorted = figures.map((round) => round[field]).toSorted((a, b) => a - b);
    const [least, middle, most] = [0, Math.floor(sorted.length / 2), sorted.length - 1].map((at) =>
      (sorted[at] ?? Number.NaN).toFixed(digits),
    );
    return `${middle} (${least} to ${most})`;
  };
  console.log(
    `Three hops and back, medians of ${ROUNDS} rounds (least to most); latency at ${PACE_PER_S} messages/s`,
  );
  for (const [{ name }, figures] of rounds) {
    console.log(
      [
        name.padEnd(24),
        `${show(figures, "itemsPerSecond", 0)} items/s`.padEnd(36),
        `${show(figures, "cpuUsPerItem", 1)} µs CPU an item`.padEnd(38),
        `p50 ${show(figures, "p50Ms", 2)} ms`.padEnd(28),
        `p99 ${show(figures, "p99Ms", 2)} ms`,
      ].join(""),
    );
  }
}

async function until(condition: () => boolean): Promise<void> {
  const deadline = performance.now() + WAIT_MS_MAX;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error(`not so within ${WAIT_MS_MAX} ms: ${condition}`);
    await Bun.sleep(5);
  }
}

const [role, url = ""] = process.argv.slice(2);
if (role === undefined) await main();
else {
  // Whatever ends the benchmark closes this pipe: no node outlives it.
  process.stdin.on("end", () => process.exit()).resume();
  const serve = role === "worker" ? serveAsWorker : serveAsDelivery;
  serve(await openBus(url, log));
}
