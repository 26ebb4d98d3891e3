import type { Cell } from "../../shared/process/cell.ts";
import { KEYS_PURGED_LATER_MS, purgeKeys } from "../../shared/store/resources/idempotency.ts";
import type { createInsights } from "./duties/insights.ts";
import { purgeAll, purgeExpired } from "./duties/purge.ts";
import { retainRuns } from "./duties/retention.ts";

/** The calls that a test clock needs of a worker to walk on. Instants are milliseconds since 1970. */
export interface WorkerWalk {
  /**
   * Learns all that is due or comes due soon, as the loops do in their time. False if some of it has failed. `isThorough`: also finds
   * schedules that are too late to fire.
   */
  look(isThorough: boolean): Promise<boolean>;
  /** Whether it owns all shards, and all attempts that it knows to be due wait for a limit, a quota or a hold. */
  isIdle(): boolean;
  /** When its next timer is, and when a bulk operation goes on; Infinity if there is none. */
  nextTimerAt(): number;
  nextBulkAt(): number;
  /** The clock was put ahead by so many milliseconds. */
  leapt(ms: number): void;
  cleanUp(): Promise<Purged>;
}

/** The bound of each loop. The duties do the rest in their time. */
const TURNS_MAX = 1_000;

/** How many rows were removed for their age. */
export interface Purged {
  keys: number;
  runs: number;
}

/**
 * Does at once what the duties that go by age would do in their time: removes what is over, makes and drops tables of runs, and
 * rolls up insights. It asks no ClockWatch, since the clock was put ahead on purpose.
 */
export async function cleanUp(cell: Cell, rollUp: ReturnType<typeof createInsights>): Promise<Purged> {
  const { db, clock, log } = cell;
  const now = clock.now();
  const purged: Purged = { keys: 0, runs: 0 };
  const walk = {
    onPurged(count: number) {
      purged.runs += count;
    },
  };
  for (let turn = 0; turn < TURNS_MAX && !(await rollUp(cell)); turn++);
  purged.keys = await purgeAll(purgeKeys, db, now + KEYS_PURGED_LATER_MS);
  await purgeExpired(db, now);
  for (let turn = 0; turn < TURNS_MAX && (await retainRuns(db, { now, log, walk })); turn++);
  return purged;
}
