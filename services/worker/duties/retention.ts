import type { Log } from "../../../shared/platform/log.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import {
  type Changed,
  createRunPartitions,
  dropExpiredPartitions,
  purgeDefaults,
} from "../../../shared/store/retention/retention.ts";
import { endRunMove, listRunMoves, moveRuns } from "../../../shared/store/retention/run-moves.ts";

/** One statement is so small that no other one waits for it. */
const RUNS_PER_STATEMENT = 1_000;
/** The next tick does the rest, so that the duty never takes a large part of what Postgres can do. */
const STATEMENTS_PER_TICK_MAX = 200;
const MOVES_PER_TICK_MAX = 100;
/** A day makes one table and drops one. At this pace an operator has time to notice that the clock is wrong. */
const TABLES_MADE_PER_TICK_MAX = 20;
const TABLES_DROPPED_PER_TICK_MAX = 2;

/**
 * Deletes runs that no plan shows any more, and makes the tables that the next runs go into. `now` is milliseconds
 * since 1970. Any worker may do this; if two do it at once, one of them finds nothing to do. Returns whether it has changed something.
 * `walk` is given when a test clock walks on; its `onPurged` hears how many runs are deleted.
 */
export async function retainRuns(
  db: Database,
  { now, log, walk }: { now: number; log: Log; walk?: { onPurged(count: number): void } },
): Promise<boolean> {
  const created = await createRunPartitions(db, now, TABLES_MADE_PER_TICK_MAX, walk !== undefined);
  tell("runs.partition_created", created, log);
  // An upgrade of a plan keeps runs for longer: they are moved before their tables are dropped.
  await moveNotedRuns(db, log);
  const dropped = await dropExpiredPartitions(db, now, TABLES_DROPPED_PER_TICK_MAX, walk?.onPurged);
  tell("runs.partition_dropped", dropped, log);
  const purgedCount = await purgeExpiredRuns(db, now, log);
  walk?.onPurged(purgedCount);
  return created.names.length + dropped.names.length + purgedCount > 0;
}

function tell(event: string, { names, gaveWayCount }: Changed, log: Log): void {
  for (const name of names) log.info({ name }, event);
  if (gaveWayCount > 0) log.info({ count: gaveWayCount }, "runs.partition_in_use");
}

async function moveNotedRuns(db: Database, log: Log): Promise<void> {
  let statements = 0;
  for (const move of await listRunMoves(db, MOVES_PER_TICK_MAX)) {
    let movedCount = 0;
    let isDone = false;
    while (!isDone && statements < STATEMENTS_PER_TICK_MAX) {
      const count = await moveRuns(db, move, RUNS_PER_STATEMENT);
      if (count === null) return;
      statements++;
      movedCount += count;
      isDone = count < RUNS_PER_STATEMENT;
    }
    if (movedCount > 0) log.info({ projectNo: move.projectNo, count: movedCount }, "runs.moved");
    if (isDone && move.isSettled) await endRunMove(db, move);
  }
}

async function purgeExpiredRuns(db: Database, now: number, log: Log): Promise<number> {
  let purgedCount = 0;
  for (let statement = 0; statement < STATEMENTS_PER_TICK_MAX; statement++) {
    const count = await purgeDefaults(db, now, RUNS_PER_STATEMENT);
    purgedCount += count;
    if (count === 0) break;
  }
  if (purgedCount > 0) log.info({ count: purgedCount }, "runs.purged");
  return purgedCount;
}
