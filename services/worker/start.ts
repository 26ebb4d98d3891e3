import type { Bus } from "../../shared/bus/bus.ts";
import type { Answers, Hint, OwedAttempt } from "../../shared/bus/messages.ts";
import type { Region } from "../../shared/domain/scope.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Log } from "../../shared/platform/log.ts";
import type { Metrics } from "../../shared/platform/metrics.ts";
import { repeat } from "../../shared/platform/repeat.ts";
import type { Database } from "../../shared/store/database.ts";
import { beatNode, declareNodeDead } from "../../shared/store/nodes.ts";
import { createShards } from "../../shared/store/shards.ts";
import { Dispatcher } from "./dispatch.ts";
import { buryNodes } from "./duties/burial.ts";
import { rescueAttempts } from "./duties/rescue.ts";
import { Ownership, shardName } from "./ownership.ts";
import { Shard } from "./shard.ts";
import { Sweeper } from "./sweeper.ts";

export interface WorkerOptions {
  db: Database;
  bus: Bus;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  /** From joinCell. */
  nodeId: number;
  regions: readonly Region[];
  shardsPerRegion: number;
  leaseMs: number;
  attemptTimeoutMs: number;
  /** Whether a node's description of its process proves that the process is gone. */
  isProvedDead(process: string): boolean;
  /** The node was declared dead: nothing of it may go on. */
  onDeclaredDead(): void;
}

/** Twice a second, so that a delivery node that hears none for 2 s knows that the bus is silent. */
const BEAT_EVERY_MS = 500;
const SWEEP_EVERY_MS = 1_000;
const OWNERSHIP_EVERY_MS = 1_000;
const RESCUE_EVERY_MS = 1_000;
/** However far away the next timer is, so that a clock that was set is noticed. */
const SLEEP_MS_MAX = 1_000;

/** Owns shards and hands what is due to delivery nodes. All shards of a process share its one thread. */
export async function startWorker(options: WorkerOptions): Promise<{ stop(): Promise<void> }> {
  const { db, bus, clock, log, metrics, nodeId, regions } = options;
  await createShards(db, regions, options.shardsPerRegion);

  const shards = new Map<string, Shard>();
  const shardOf = (region: Region, shard: number) => shards.get(shardName({ region, shard }));
  const sweeper = new Sweeper(db, clock);
  const dispatcher = new Dispatcher((deliveryNodeId, due) =>
    bus.sendDue(deliveryNodeId, { ...due, worker: nodeId }),
  );
  const ownership = new Ownership({
    db,
    nodeId,
    regions,
    leaseMs: options.leaseMs,
    log,
    onAcquired(acquired) {
      const calls = {
        onSendable: (lane: Parameters<Dispatcher["enqueue"]>[0], shard: Shard) =>
          dispatcher.enqueue(lane, shard),
        onLow: (lane: Parameters<Sweeper["noteLow"]>[0], shard: Shard) => sweeper.noteLow(lane, shard),
      };
      for (const held of acquired) shards.set(shardName(held), new Shard(held, clock.now(), calls));
      log.info({ count: acquired.length }, "shards.acquired");
      sweeping.soon();
    },
    onLost(lost) {
      for (const held of lost) shards.delete(shardName(held));
    },
  });

  // What arrives in one turn of the event loop is dispatched together at its end.
  let isPumpWanted = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const pumpSoon = () => {
    if (!isPumpWanted) setImmediate(pump);
    isPumpWanted = true;
  };
  let isStopped = false;
  function pump(): void {
    isPumpWanted = false;
    if (isStopped) return;
    clearTimeout(timer);
    const now = clock.now();
    let nextAt = Number.POSITIVE_INFINITY;
    for (const shard of shards.values()) {
      if (shard.nextAt() <= now) shard.advance(now);
      nextAt = Math.min(nextAt, shard.nextAt());
    }
    dispatcher.run(
      now,
      (shard) => ownership.isTrusted && shardOf(shard.held.region, shard.held.shard) === shard,
    );
    if (sweeper.hasLow) refilling.soon();
    timer = setTimeout(pump, Math.min(Math.max(nextAt - clock.now(), 0), SLEEP_MS_MAX));
  }

  function learn(region: Region, shardNo: number, owed: readonly OwedAttempt[]): void {
    const shard = shardOf(region, shardNo);
    if (shard === undefined) return;
    const now = clock.now();
    for (const attempt of owed) shard.learn(attempt, now);
    pumpSoon();
  }
  function hear({ region, shard, owed, freed }: Hint): void {
    const now = clock.now();
    for (const permits of freed) shardOf(region, shard)?.freed(permits, now);
    learn(region, shard, owed);
  }
  function hearAnswers({ delivery, region, room, items }: Answers): void {
    const now = clock.now();
    dispatcher.answered(delivery, items.length, room);
    for (const item of items) shardOf(region, item.shard)?.answer(item, now);
    pumpSoon();
  }

  async function sweep(): Promise<void> {
    const now = clock.now();
    let lostCount = 0;
    for (const shard of shards.values()) lostCount += shard.tidy(now);
    dispatcher.forgetUnanswered(lostCount);
    metrics.sweepFound.inc(await sweeper.sweep([...shards.values()]));
    metrics.shardsOwned.set(shards.size);
    pumpSoon();
  }

  /** Whoever owns a region's first shard does its duties; two at once, during a move, do no harm. */
  async function rescue(): Promise<void> {
    if (!regions.some((region) => shardOf(region, 0) !== undefined)) return;
    await buryNodes(db, options.isProvedDead, log);
    const now = clock.now();
    for (const { region, shard, owed } of await rescueAttempts(db, { ...options, now })) {
      learn(region, shard, [owed]);
    }
  }

  async function beat(): Promise<void> {
    bus.sendBeat("worker", { nodeId, regions: [...regions], room: 0 });
    if (!(await beatNode(db, nodeId))) options.onDeclaredDead();
  }

  const subscriptions = [
    bus.consumeCommands([...regions], ({ region, shard, owed }) => learn(region, shard, owed)),
    ...regions.map((region) => bus.onHint(region, hear)),
    bus.onAnswers(nodeId, hearAnswers),
    bus.onBeat("delivery", (heard) => {
      dispatcher.heard(heard, clock.now());
      pumpSoon();
    }),
  ];
  const sweeping = repeat("sweep", SWEEP_EVERY_MS, sweep, log);
  const refilling = repeat("refill", Number.POSITIVE_INFINITY, () => sweeper.refill().then(pumpSoon), log);
  const loops = [
    repeat("beat", BEAT_EVERY_MS, beat, log),
    repeat("ownership", OWNERSHIP_EVERY_MS, () => ownership.tick(), log),
    repeat("rescue", RESCUE_EVERY_MS, rescue, log),
    sweeping,
    refilling,
  ];
  return {
    async stop() {
      isStopped = true;
      clearTimeout(timer);
      for (const subscription of subscriptions) subscription.unsubscribe();
      await Promise.all(loops.map((loop) => loop.stop()));
      // Said in so many words, the others need not wait for the leases to end.
      await ownership.resign();
      await declareNodeDead(db, nodeId);
    },
  };
}
