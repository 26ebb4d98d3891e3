import type { Log } from "../../../shared/platform/log.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import {
  type Changed,
  createRunPartitions,
  dropExpiredPartitions,
  purgeDefaults,
} from "../../../shared/store/retention/retention.ts";
import { endRunMove, listRunMoves, moveRuns } from "../../../shared/store/retention/run-moves.ts";

/** Small enough that nobody waits for one statement. */
const RUNS_PER_STATEMENT = 1_000;
/** What remains is for the next tick, so that the duty never takes a large part of what Postgres can do. */
const STATEMENTS_PER_TICK_MAX = 200;
const MOVES_PER_TICK_MAX = 100;
/** There is one to make and one to drop a day. Where there are many, the clock may be wrong, and somebody has the time to see it. */
const TABLES_MADE_PER_TICK_MAX = 20;
const TABLES_DROPPED_PER_TICK_MAX = 2;

/**
 * Deletes runs that no plan shows any more, and keeps the tables ready that the next ones go into. `now` is milliseconds
 * since 1970. Any worker may do this; where two do it at once, one of them finds nothing to do.
 */
export async function retainRuns(db: Database, { now, log }: { now: number; log: Log }): Promise<void> {
  tell("runs.partition_created", await createRunPartitions(db, now, TABLES_MADE_PER_TICK_MAX), log);
  // Before anything is dropped, what an upgrade has saved is brought out of the way.
  await moveNotedRuns(db, log);
  tell("runs.partition_dropped", await dropExpiredPartitions(db, now, TABLES_DROPPED_PER_TICK_MAX), log);
  await purgeExpiredRuns(db, now, log);
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

async function purgeExpiredRuns(db: Database, now: number, log: Log): Promise<void> {
  let purgedCount = 0;
  for (let statement = 0; statement < STATEMENTS_PER_TICK_MAX; statement++) {
    const count = await purgeDefaults(db, now, RUNS_PER_STATEMENT);
    purgedCount += count;
    if (count === 0) break;
  }
  if (purgedCount > 0) log.info({ count: purgedCount }, "runs.purged");
}
