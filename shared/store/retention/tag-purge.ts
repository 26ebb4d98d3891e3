import { PLAN_TERMS, PLANS } from "../../domain/plan.ts";
import type { Database } from "../database/database.ts";

/** Removes the tags of runs and the notes of shifted runs once no plan shows the runs. */

/**
 * Rows are kept two days longer than any plan shows runs, so that none disappears between two requests of a client that saw it.
 * A run is older by its id than by its end, and may have started before the time in its id by the error of a clock.
 */
const KEPT_DAYS = Math.max(...PLANS.map((plan) => PLAN_TERMS[plan].retentionDays)) + 2;

const purgeOf = (table: "run_tags" | "shifted_runs", age: "ended_on" | "started_at") => {
  const text = `
DELETE FROM ${table}
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM ${table} WHERE ${age} < $2::timestamptz - interval '${KEPT_DAYS} days'
                           ORDER BY ${age} LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING 1`;
  return async (db: Database, limit: number, now: number): Promise<number> =>
    (await db.run(`purge_${table}`, text, [limit, new Date(now).toISOString()])).length;
};

/** Removes up to `limit` tags of runs that no plan shows any more at `now` (milliseconds since 1970). Answers how many. */
export const purgeRunTags = purgeOf("run_tags", "ended_on");
/** The same for the notes of runs that started at another time than their ids tell. */
export const purgeShiftedRuns = purgeOf("shifted_runs", "started_at");
