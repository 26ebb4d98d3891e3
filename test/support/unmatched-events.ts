import type { Database } from "../../shared/store/database/database.ts";

/** Runs that ended their job without its event, and events without such a run, where nothing was canceled. */
export function listUnmatchedEvents(db: Database): Promise<unknown[]> {
  return db.run("test_unmatched", UNMATCHED, []);
}

// A run without a planned next one has ended its job.
const UNMATCHED = `
SELECT r.id AS run_id, e.id AS event_id, e.type, r.status
  FROM (SELECT * FROM runs WHERE next_retry_at IS NULL) r FULL JOIN events e ON e.id = r.id
 WHERE r.id IS NULL OR e.id IS NULL OR e.job_id <> r.job_id OR e.attempt <> r.attempt
    OR e.type <> CASE WHEN r.status = 1 THEN 0 ELSE 1 END`;
