import type { Database } from "../../../shared/store/database.ts";
import { purgeKeys } from "../../../shared/store/idempotency.ts";

/** Small enough that nobody waits for one statement, and so many that what an hour brings is gone within it. */
const KEYS_PER_STATEMENT = 2_000;
const STATEMENTS_PER_TICK_MAX = 500;

/** Removes Idempotency-Keys whose life is over; answers how many. */
export async function purgeExpiredKeys(db: Database): Promise<number> {
  let purgedCount = 0;
  for (let statement = 0; statement < STATEMENTS_PER_TICK_MAX; statement++) {
    const count = await purgeKeys(db, KEYS_PER_STATEMENT);
    purgedCount += count;
    if (count < KEYS_PER_STATEMENT) break;
  }
  return purgedCount;
}
