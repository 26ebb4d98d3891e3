import type { IdSource } from "../../shared/domain/ids.ts";
import { HOME_REGION } from "../../shared/domain/plan.ts";
import type { Region } from "../../shared/domain/scope.ts";
import { single } from "../../shared/platform/metrics/metrics.ts";
import { repeat } from "../../shared/platform/repeat.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { createHeartbeat } from "../../shared/process/heartbeat.ts";
import { untilAnswered } from "../../shared/process/until-answered.ts";
import { declareNodeDead } from "../../shared/store/cell/nodes.ts";
import { createShards } from "../../shared/store/queue/shards.ts";
import { BulkPass } from "./bulk/bulk-pass.ts";
import { createCellGauges } from "./cell-gauges.ts";
import { ClockWatch } from "./duties/clock-watch.ts";
import { listDuties } from "./duties/duties.ts";
import { createInsights } from "./duties/insights.ts";
import type { RescueOptions } from "./duties/rescue.ts";
import { Firer } from "./firer.ts";
import { Ownership } from "./ownership.ts";
import { Pump } from "./pump.ts";
import { ShardHost } from "./shard-host.ts";
import { cleanUp, type WorkerWalk } from "./walk.ts";

export interface WorkerOptions extends RescueOptions {
  /** The node's number, as joinCell gave it. */
  nodeId: number;
  regions: readonly Region[];
  shardsPerRegion: number;
  leaseTtlMs: number;
  /** The node was declared dead: none of its work may go on. */
  onDeclaredDead(): void;
  /** False while a test clock is put ahead: the walk deletes then, after it has rolled up the runs that go. */
  mayDelete?(): boolean;
  /** The source of the ids of scheduled jobs, if a simulation brings its own. */
  ids?: IdSource;
}

/** A delivery node that hears no worker for 2 s takes the bus for silent. */
const BEAT_EVERY_MS = 500;
const CLOCK_EVERY_MS = 1_000;
const SWEEP_EVERY_MS = 1_000;
const LOOK_EVERY_MS = 1_000;
const LOOK_BACK_EVERY_MS = 60_000;
/** Messages tell of bulk operations. This look finds those that none told of, and those of a worker that is gone. */
const BULK_EVERY_MS = 2_000;
/**
 * Each worker has a period of its own between these. A row that another statement has locked is not acquired. So a
 * worker's ticks must not meet those of another worker again and again, or the full seconds, at which schedules fire.
 */
const OWNERSHIP_EVERY_MS = { min: 850, max: 950 };
/** About as often as metrics are usually read. */
const CELL_EVERY_MS = 15_000;

export interface Worker {
  stop(): Promise<void>;
  /** The calls that a test clock needs to walk on. */
  walk: WorkerWalk;
}

/** Owns shards, hands what is due to delivery nodes, fires schedules, and does the duties of the cell. */
export async function startWorker(cell: Cell, options: WorkerOptions): Promise<Worker> {
  const { db, bus, clock, log, metrics } = cell;
  const { nodeId, regions } = options;
  await untilAnswered(log, () => createShards(db, regions, options.shardsPerRegion));

  const clockWatch = new ClockWatch(cell);
  const shards: ShardHost = new ShardHost(cell, {
    nodeId,
    isTrusted: () => ownership.isTrusted,
    onChange: () => pump.soon(),
  });
  const firer: Firer = new Firer(cell, {
    ...(options.ids && { ids: options.ids }),
    heldOf: (shard) =>
      ownership.isTrusted && clockWatch.mayFire() ? shards.find(HOME_REGION, shard)?.held : undefined,
    onChange({ look }) {
      if (look) lookForSchedules();
      pump.soon();
    },
  });
  const bulk: BulkPass = new BulkPass(cell, {
    ...(options.ids && { ids: options.ids }),
    heldOf: (shard) => (ownership.isTrusted ? shards.find(HOME_REGION, shard)?.held : undefined),
    onChange: () => lookingForBulk.soon(),
  });
  const ownership: Ownership = new Ownership({
    db,
    nodeId,
    regions,
    leaseMs: options.leaseTtlMs,
    log,
    onAcquired(acquired) {
      shards.add(acquired);
      log.info({ count: acquired.length }, "shards.acquired");
      metrics.leaseChanges.acquired.inc(acquired.length);
      showingCell.soon();
      firer.lookAnew();
      lookSoon();
    },
    onLost(lost, why) {
      metrics.leaseChanges[why].inc(lost.length);
      shards.remove(lost);
    },
  });
  const pump = new Pump(clock, {
    turn(now) {
      const shardsNextAt = shards.advance(now);
      if (firer.nextAt() <= now) firer.advance(now);
      shards.send(now);
      if (shards.wantsRefill) refilling.soon();
      return Math.min(shardsNextAt, firer.nextAt());
    },
    onSetBack() {
      log.warn({}, "the database's clock went back");
      shards.forget();
      firer.forget();
      lookSoon();
    },
  });

  let couldFire = true;
  async function watchClock(): Promise<void> {
    const mayFire = clockWatch.mayFire();
    if (mayFire && !couldFire) lookForSchedules();
    couldFire = mayFire;
    await clockWatch.watch();
  }
  function lookForSchedules(): void {
    looking.soon();
    lookingBack.soon();
  }
  /** Asks Postgres at once for what is due. */
  function lookSoon(): void {
    sweeping.soon();
    lookForSchedules();
    lookingForBulk.soon();
  }

  /**
   * The worker that owns a region's first shard is on duty. Two may be on duty for a moment while it moves, without
   * harm.
   */
  const isOnDuty = () => regions.some((region) => shards.find(region, 0) !== undefined);
  const rollUp = createInsights();
  metrics.deletionsWaitSeconds.follow(() => (isOnDuty() ? single(clockWatch.waitMs() / 1_000) : []));

  const heartbeat = createHeartbeat(cell, options);
  async function beat(): Promise<void> {
    // Delivery nodes that hear this beat need not look themselves for attempts due in these regions.
    const held = shards.regions;
    if (ownership.isTrusted && held.length > 0) bus.sendBeat("worker", { nodeId, regions: held, room: 0 });
    await heartbeat();
  }

  const subscriptions = [
    bus.consumeCommands([...regions], ({ region, shard, owed }) => {
      if (owed.length === 0 && region === HOME_REGION && shards.find(region, shard)) {
        looking.soon();
        lookingForBulk.soon();
      }
      shards.learn(region, shard, owed);
    }),
    ...regions.map((region) => bus.onHint(region, (hint) => shards.hearHint(hint))),
    bus.onAnswers(nodeId, (answers) => shards.hearAnswers(answers)),
    bus.onBeat("delivery", (heard) => shards.hearBeat(heard)),
  ];
  const homeShards = () =>
    shards.held.filter(({ region }) => region === HOME_REGION).map(({ shard }) => shard);
  const lookIfMayFire = async () => void (clockWatch.mayFire() && (await firer.look(homeShards())));
  const looking = repeat("schedules", LOOK_EVERY_MS, lookIfMayFire, log);
  const lookingBack = repeat("late schedules", LOOK_BACK_EVERY_MS, () => firer.lookBack(homeShards()), log);
  const lookingForBulk = repeat("bulk", BULK_EVERY_MS, () => bulk.look(homeShards()), log);
  const ownershipEveryMs =
    OWNERSHIP_EVERY_MS.min + Math.random() * (OWNERSHIP_EVERY_MS.max - OWNERSHIP_EVERY_MS.min);
  const gauges = createCellGauges(cell);
  // A shard has one owner, so one worker shows the cell.
  const isShowingCell = () => shards.find(HOME_REGION, 0) !== undefined;
  const showingCell = repeat("cell", CELL_EVERY_MS, () => gauges.tick(isShowingCell()), log);
  const sweeping = repeat("sweep", SWEEP_EVERY_MS, () => shards.sweep(), log);
  const refilling = repeat("refill", Number.POSITIVE_INFINITY, () => shards.refill(), log);
  const loops = [
    repeat("beat", BEAT_EVERY_MS, beat, log),
    repeat("ownership", ownershipEveryMs, () => ownership.tick(), log),
    repeat("clock", CLOCK_EVERY_MS, watchClock, log),
    ...listDuties(options, clockWatch, rollUp).map(({ name, everyMs, run }) =>
      repeat(name, everyMs, async () => void (isOnDuty() && (await run(cell))), log),
    ),
    looking,
    lookingBack,
    lookingForBulk,
    showingCell,
    sweeping,
    refilling,
  ];
  return {
    async stop() {
      pump.stop();
      for (const subscription of subscriptions) subscription.unsubscribe();
      await Promise.all(loops.map((loop) => loop.stop()));
      await Promise.all([firer.drain(), bulk.drain()]);
      // Resigned shards are free at once, so that the other workers need not wait for the leases to end.
      await ownership.resign();
      await declareNodeDead(db, nodeId);
    },
    walk: {
      async look(isThorough) {
        const looks = [sweeping, looking, lookingForBulk, ...(isThorough ? [lookingBack] : [])];
        return (await Promise.all(looks.map((loop) => loop.now()))).every((isDone) => isDone);
      },
      isIdle() {
        const now = clock.now();
        const hasAll = shards.held.length >= regions.length * options.shardsPerRegion && ownership.isTrusted;
        return hasAll && !pump.isSoon && shards.isIdle(now) && firer.isIdle(now) && bulk.isIdle;
      },
      nextTimerAt: () => Math.min(shards.nextAt(), firer.nextAt()),
      nextBulkAt: () => clock.now() + bulk.nextInMs(),
      leapt(ms) {
        bulk.leapt(ms);
        pump.soon();
      },
      cleanUp: () => cleanUp(cell, rollUp),
    },
  };
}
