import type { Bus } from "../../shared/bus/bus.ts";
import type { Answers, Hint, OwedAttempt } from "../../shared/bus/messages.ts";
import { kindOf } from "../../shared/domain/flow-class.ts";
import { HOME_REGION } from "../../shared/domain/plan.ts";
import type { Region } from "../../shared/domain/scope.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Log } from "../../shared/platform/log.ts";
import { type Metrics, single } from "../../shared/platform/metrics/metrics.ts";
import { repeat } from "../../shared/platform/repeat.ts";
import { NO_TRACES, type Traces } from "../../shared/platform/traces/traces.ts";
import { createHeartbeat } from "../../shared/process/heartbeat.ts";
import { listHeldRegions } from "../../shared/store/cell/holds.ts";
import { declareNodeDead } from "../../shared/store/cell/nodes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { createShards, type HeldShard } from "../../shared/store/queue/shards.ts";
import { Dispatcher } from "./dispatch.ts";
import { buryNodes } from "./duties/burial.ts";
import { createCellView } from "./duties/cell.ts";
import { ClockWatch } from "./duties/clock-watch.ts";
import { auditPermits } from "./duties/permits.ts";
import { purgeExpired } from "./duties/purge.ts";
import { RESCUE_GRACE_MS, rescueAttempts, rescueDeliveries } from "./duties/rescue.ts";
import { retainRuns } from "./duties/retention.ts";
import { Firer } from "./firing.ts";
import { Ownership, shardName } from "./ownership.ts";
import { Shard } from "./shard/shard.ts";
import { Sweeper } from "./sweeper.ts";

export interface WorkerOptions {
  db: Database;
  bus: Bus;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  /** None unless they are wanted. */
  traces?: Traces;
  /** From joinCell. */
  nodeId: number;
  regions: readonly Region[];
  shardsPerRegion: number;
  leaseMs: number;
  attemptTimeoutMs: number;
  webhookTimeoutMs: number;
  /** Multiplies every wait of the deliveries' retries. */
  webhookRetryScale: number;
  /** Whether a node's description of its process proves that the process is gone. */
  isProvedDead(process: string): boolean;
  /** The node was declared dead: nothing of it may go on. */
  onDeclaredDead(): void;
}

/** Twice a second, so that a delivery node that hears none for 2 s knows that the bus is silent. */
const BEAT_EVERY_MS = 500;
const SWEEP_EVERY_MS = 1_000;
/** Until the sweep after the next, if one is late; a region that is resumed waits no longer for its first attempt. */
const HELD_MS = 2_000;
const LOOK_EVERY_MS = 1_000;
const LOOK_BACK_EVERY_MS = 60_000;
const OWNERSHIP_EVERY_MS = 1_000;
const RESCUE_EVERY_MS = 1_000;
/** Often and little at a time, so that keys go at the pace at which they came. */
const PURGE_EVERY_MS = 60_000;
const RETENTION_EVERY_MS = 60_000;
/** As often as metrics are usually read. */
const CELL_EVERY_MS = 15_000;
const AUDIT_EVERY_MS = 60_000;
/** However far away the next timer is, so that a clock that was set is noticed. */
const SLEEP_MS_MAX = 1_000;
/** The clock is corrected by less than this all the time; more is somebody setting it. */
const CLOCK_STEP_MS = 1_000;

/** Owns shards and hands what is due to delivery nodes. All shards of a process share its one thread. */
export async function startWorker(options: WorkerOptions): Promise<{ stop(): Promise<void> }> {
  const { db, bus, clock, log, metrics, nodeId, regions } = options;
  await createShards(db, regions, options.shardsPerRegion);

  const shards = new Map<string, Shard>();
  const shardOf = (region: Region, shard: number) => shards.get(shardName({ region, shard }));
  const sweeper = new Sweeper(db, clock);
  showShards(metrics, shards, clock);
  const dispatcher = new Dispatcher((deliveryNodeId, due) =>
    bus.sendDue(deliveryNodeId, { ...due, worker: nodeId }),
  );
  const createShard = (held: HeldShard) => {
    const note = {
      jobs: metrics.granted("jobs", held.region),
      webhooks: metrics.granted("webhooks", held.region),
    };
    return new Shard(held, clock.now(), {
      onSendable: (lane, shard) => dispatcher.enqueue(lane, shard),
      onLow: (lane, shard) => sweeper.noteLow(lane, shard),
      onGranted: ({ flowClass, dueAt }, isHeldBack, now) => note[kindOf(flowClass)](now - dueAt, isHeldBack),
    });
  };
  const firer = new Firer({
    db,
    bus,
    clock,
    log,
    metrics,
    traces: options.traces ?? NO_TRACES,
    heldOf: (shard) => (ownership.isTrusted ? shardOf(HOME_REGION, shard)?.held : undefined),
    onChange({ look }) {
      if (look) lookSoon();
      pumpSoon();
    },
  });
  const ownership = new Ownership({
    db,
    nodeId,
    regions,
    leaseMs: options.leaseMs,
    log,
    onAcquired(acquired) {
      for (const held of acquired) shards.set(shardName(held), createShard(held));
      log.info({ count: acquired.length }, "shards.acquired");
      metrics.leaseChanges.acquired.inc(acquired.length);
      lookingAtCell.soon();
      sweeping.soon();
      firer.forget();
      lookSoon();
    },
    onLost(lost, why) {
      metrics.leaseChanges[why].inc(lost.length);
      for (const held of lost) {
        dispatcher.forgetUnanswered(shards.get(shardName(held))?.sentTo() ?? []);
        shards.delete(shardName(held));
      }
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
  let lastPumpedAt = Number.NEGATIVE_INFINITY;
  function pump(): void {
    isPumpWanted = false;
    if (isStopped) return;
    clearTimeout(timer);
    const now = clock.now();
    if (now < lastPumpedAt - CLOCK_STEP_MS) forgetEverything();
    lastPumpedAt = now;
    let nextAt = Number.POSITIVE_INFINITY;
    for (const shard of shards.values()) {
      if (shard.nextAt() <= now) shard.advance(now);
      nextAt = Math.min(nextAt, shard.nextAt());
    }
    if (firer.nextAt() <= now) firer.advance(now);
    nextAt = Math.min(nextAt, firer.nextAt());
    dispatcher.run(
      now,
      (shard) => ownership.isTrusted && shardOf(shard.held.region, shard.held.shard) === shard,
    );
    if (sweeper.hasLow) refilling.soon();
    timer = setTimeout(pump, Math.min(Math.max(nextAt - clock.now(), 0), SLEEP_MS_MAX));
  }

  /** What was remembered is timed by a clock that has gone back since; Postgres knows it all. */
  function forgetEverything(): void {
    log.warn({}, "the database's clock went back");
    for (const [name, shard] of shards) {
      dispatcher.forgetUnanswered(shard.sentTo());
      shards.set(name, createShard(shard.held));
    }
    dispatcher.forgetNodes();
    sweeping.soon();
    firer.forget();
    lookSoon();
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

  const timedSweep = metrics.statement("sweep");
  async function sweep(): Promise<void> {
    const now = clock.now();
    for (const shard of shards.values()) dispatcher.forgetUnanswered(shard.tidy(now));
    const swept = [...shards.values()];
    const held = new Set((await listHeldRegions(db)).map(({ region }) => region));
    metrics.sweepFound.inc(await timedSweep(swept.length, () => sweeper.sweep(swept)));
    // With what the sweep has just found, before any of it is sent.
    for (const shard of swept) if (held.has(shard.held.region)) shard.hold(clock.now() + HELD_MS);
    pumpSoon();
  }

  const clockWatch = new ClockWatch({ db, clock, log });
  metrics.deletionsWaitSeconds.follow(() => (hasDuties() ? single(clockWatch.waitMs() / 1_000) : []));
  // After an outage living nodes settle what ended meanwhile; only later is what is overdue held to be lost.
  let askedWellSince = performance.now();
  /** Whoever owns a region's first shard does its duties; two at once, during a move, do no harm. */
  const hasDuties = () => regions.some((region) => shardOf(region, 0) !== undefined);

  async function rescue(): Promise<void> {
    if (!hasDuties()) return;
    const isSettled = performance.now() > askedWellSince + RESCUE_GRACE_MS;
    const lostBefore = (timeoutMs: number) => {
      const overdueMs = timeoutMs + RESCUE_GRACE_MS;
      const now = isSettled ? clockWatch.nowIfSteadyFor(overdueMs) : null;
      return now === null ? Number.NEGATIVE_INFINITY : now - overdueMs;
    };
    const rescue = { bus, log, metrics, now: clock.now() };
    try {
      await clockWatch.noteOnce();
      await buryNodes(db, options.isProvedDead, log);
      await rescueAttempts(db, { ...rescue, lostBefore: lostBefore(options.attemptTimeoutMs) });
      const scale = options.webhookRetryScale;
      await rescueDeliveries(db, { ...rescue, scale, lostBefore: lostBefore(options.webhookTimeoutMs) });
    } catch (error) {
      askedWellSince = performance.now();
      throw error;
    }
  }

  async function purge(): Promise<void> {
    if (hasDuties()) await clockWatch.delete((now) => purgeExpired(db, now));
  }

  async function audit(): Promise<void> {
    if (hasDuties()) await auditPermits(db, log, metrics.permitsMiscounted);
  }

  async function retain(): Promise<void> {
    if (hasDuties()) await clockWatch.delete((now) => retainRuns(db, { now, log }));
  }

  const heartbeat = createHeartbeat(options);
  /** Says where delivery nodes need not look for what is due themselves: this worker finds it and hands it to them. */
  function sendBeat(): void {
    if (!ownership.isTrusted) return;
    const held = [...new Set([...shards.values()].map((shard) => shard.held.region))];
    if (held.length > 0) bus.sendBeat("worker", { nodeId, regions: held, room: 0 });
  }
  async function beat(): Promise<void> {
    sendBeat();
    await heartbeat();
  }

  const subscriptions = [
    bus.consumeCommands([...regions], ({ region, shard, owed }) => {
      if (owed.length === 0 && region === HOME_REGION && shardOf(region, shard)) looking.soon();
      learn(region, shard, owed);
    }),
    ...regions.map((region) => bus.onHint(region, hear)),
    bus.onAnswers(nodeId, hearAnswers),
    bus.onBeat("delivery", (heard) => {
      dispatcher.heard(heard, clock.now());
      pumpSoon();
    }),
  ];
  const homeShards = () =>
    [...shards.values()].filter(({ held }) => held.region === HOME_REGION).map(({ held }) => held.shard);
  const looking = repeat("schedules", LOOK_EVERY_MS, () => firer.look(homeShards()), log);
  const lookingBack = repeat("late schedules", LOOK_BACK_EVERY_MS, () => firer.lookBack(homeShards()), log);
  function lookSoon(): void {
    looking.soon();
    lookingBack.soon();
  }
  const cellView = createCellView(db, metrics);
  // A shard has one owner, so one worker shows the cell.
  const isShowingCell = () => shardOf(HOME_REGION, 0) !== undefined;
  const lookingAtCell = repeat("cell", CELL_EVERY_MS, () => cellView.tick(isShowingCell()), log);
  const sweeping = repeat("sweep", SWEEP_EVERY_MS, sweep, log);
  const refilling = repeat("refill", Number.POSITIVE_INFINITY, () => sweeper.refill().then(pumpSoon), log);
  const loops = [
    repeat("beat", BEAT_EVERY_MS, beat, log),
    repeat("ownership", OWNERSHIP_EVERY_MS, () => ownership.tick(), log),
    repeat("rescue", RESCUE_EVERY_MS, rescue, log),
    repeat("purge", PURGE_EVERY_MS, purge, log),
    repeat("retention", RETENTION_EVERY_MS, retain, log),
    repeat("permits", AUDIT_EVERY_MS, audit, log),
    looking,
    lookingBack,
    lookingAtCell,
    sweeping,
    refilling,
  ];
  return {
    async stop() {
      isStopped = true;
      clearTimeout(timer);
      for (const subscription of subscriptions) subscription.unsubscribe();
      await Promise.all(loops.map((loop) => loop.stop()));
      await firer.drain();
      // Said in so many words, the others need not wait for the leases to end.
      await ownership.resign();
      await declareNodeDead(db, nodeId);
    },
  };
}

/** Read from the shards' memory: Postgres is not asked, and may hold more than they remember. */
function showShards(metrics: Metrics, shards: ReadonlyMap<string, Shard>, clock: Clock): void {
  metrics.shardsOwned.follow(() => single(shards.size));
  const read = (figureOf: (shard: Shard, now: number) => number) =>
    function* () {
      const now = clock.now();
      for (const shard of shards.values()) {
        const { region, shard: no } = shard.held;
        yield { labels: { region, shard: String(no) }, value: figureOf(shard, now) };
      }
    };
  metrics.shardReady.follow(read((shard, now) => shard.backlog(now).readyCount));
  metrics.shardOldestDueSeconds.follow(
    read((shard, now) => Math.max(0, now - (shard.backlog(now).oldestDueAt ?? now)) / 1_000),
  );
}
