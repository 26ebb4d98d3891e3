import { purgeNodes } from "../../../shared/store/cell/nodes.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { purgeDeletedSchedules, purgeFirings, purgeTimetables } from "../../../shared/store/queue/firings.ts";
import { purgeKeys } from "../../../shared/store/resources/idempotency.ts";
import {
  purgeDeliveryAttempts,
  purgeEndedDeliveries,
  purgeEvents,
} from "../../../shared/store/retention/delivery-purge.ts";

/** Small enough that nobody waits for one statement, and so many that what an hour brings is gone within it. */
const ROWS_PER_STATEMENT = 2_000;
const STATEMENTS_PER_TICK_MAX = 500;

const PURGES = [
  purgeKeys,
  purgeFirings,
  purgeTimetables,
  purgeDeletedSchedules,
  purgeEndedDeliveries,
  purgeDeliveryAttempts,
  purgeEvents,
  purgeNodes,
];

/**
 * Removes Idempotency-Keys whose life is over, firings, timetables and deliveries that nobody is shown any more, and dead
 * nodes, at `now` (milliseconds since 1970); answers how many.
 */
export async function purgeExpired(db: Database, now: number): Promise<number> {
  let purgedCount = 0;
  for (const purge of PURGES) {
    for (let statement = 0; statement < STATEMENTS_PER_TICK_MAX; statement++) {
      const count = await purge(db, ROWS_PER_STATEMENT, now);
      purgedCount += count;
      if (count < ROWS_PER_STATEMENT) break;
    }
  }
  return purgedCount;
}
