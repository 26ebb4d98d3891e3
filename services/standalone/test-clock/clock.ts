import { type Clock, startClock } from "../../../shared/platform/clock.ts";
import { askRealTime, readAhead } from "../../../shared/store/cell/test-clock.ts";
import type { Database } from "../../../shared/store/database/database.ts";

/** A clock that runs at real speed, ahead of real time by what the database has noted. */
export interface TestClock extends Clock {
  readonly real: Pick<Clock, "now">;
  /** By how much it is ahead, in microseconds. The database notes a change first. */
  aheadUs: number;
}

export async function startTestClock(db: Database): Promise<TestClock> {
  const aheadUs = await readAhead(db);
  const real = await startClock(() => askRealTime(db));
  const clock: TestClock = {
    real,
    aheadUs,
    now: () => real.now() + clock.aheadUs / 1_000,
    stop: () => real.stop(),
  };
  return clock;
}
