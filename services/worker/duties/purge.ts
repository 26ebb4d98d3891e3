import { purgeNodes } from "../../../shared/store/cell/nodes.ts";
import { type Database, isDatabaseFault } from "../../../shared/store/database/database.ts";
import { purgeInsights } from "../../../shared/store/insights/purge.ts";
import { purgeBulkMembers, purgeBulkOperations } from "../../../shared/store/queue/bulk/purge.ts";
import {
  purgeDeletedSchedules,
  purgeFirings,
  purgeTimetables,
} from "../../../shared/store/queue/firing-ledger.ts";
import { purgeFlowKeys } from "../../../shared/store/queue/flow-key-purge.ts";
import { purgeTargetHosts } from "../../../shared/store/queue/host-purge.ts";
import { purgeKeys } from "../../../shared/store/resources/idempotency.ts";
import {
  purgeDeliveryAttempts,
  purgeEndedDeliveries,
  purgeEvents,
} from "../../../shared/store/retention/delivery-purge.ts";
import { purgeRunTags, purgeShiftedRuns } from "../../../shared/store/retention/tag-purge.ts";

/** One statement is so small that no other one waits for it; together they remove in an hour what an hour brings. */
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
  purgeRunTags,
  purgeShiftedRuns,
  purgeBulkMembers,
  purgeBulkOperations,
  purgeInsights,
  purgeFlowKeys,
  purgeTargetHosts,
  purgeNodes,
];

/**
 * Removes rows that are over at `now` (milliseconds since 1970): expired Idempotency-Keys, firings, timetables and deliveries
 * that the API no longer shows, the tags of runs, insights, bulk operations and the members that they leave, flow keys out of
 * use, the rows of hosts that are well, and dead nodes. Returns how many rows were removed, or looked at and kept. Throws the
 * first error once every purge has had its turn: a purge that fails each time keeps no other from removing its rows.
 */
export async function purgeExpired(db: Database, now: number): Promise<number> {
  let purgedCount = 0;
  const errors: unknown[] = [];
  for (const purge of PURGES) {
    try {
      purgedCount += await purgeAll(purge, db, now);
    } catch (error) {
      // Without Postgres each of the others would wait for it in vain.
      if (isDatabaseFault(error)) throw error;
      errors.push(error);
    }
  }
  if (errors.length > 0) throw errors[0];
  return purgedCount;
}

/** Calls one purge, which answers how many rows it found, until it finds no more, at most STATEMENTS_PER_TICK_MAX times. */
export async function purgeAll(purge: typeof purgeKeys, db: Database, now: number): Promise<number> {
  let purgedCount = 0;
  for (let statement = 0; statement < STATEMENTS_PER_TICK_MAX; statement++) {
    const count = await purge(db, ROWS_PER_STATEMENT, now);
    purgedCount += count;
    if (count < ROWS_PER_STATEMENT) break;
  }
  return purgedCount;
}
