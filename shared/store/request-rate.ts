import type { Environment, ProjectNo } from "../domain/scope.ts";
import { environmentCode } from "./codes.ts";
import { column, type Database } from "./database.ts";

/** So many requests of one environment that arrived together at one gateway. */
export interface RateQuestion {
  projectNo: ProjectNo;
  environment: Environment;
  requestCount: number;
  /** Requests per minute. */
  limit: number;
}

export interface RateAnswer {
  /** The first so many of the requests are accepted, the others are refused and do not count. */
  acceptedCount: number;
  /** What is left of the limit after them. */
  remaining: number;
  /** Until a refused request would be accepted; 0 if none was refused. */
  retryAfterMs: number;
  /** Until nothing of what was accepted counts any more. */
  resetMs: number;
}

const TICK_MS = 100;
/** Whoever had the lock before read the same clock, so a tick this far ahead is of another one. */
const FUTURE_TICKS = 10;
/** A whole minute must lie behind the end of the tick in which a request was accepted. */
const WINDOW_TICKS = 601;

/**
 * Accepts requests within a sliding minute, by the database's clock and exact over any number of gateways: an accepted
 * request counts until the tick of its acceptance is a whole minute past. Each environment may be asked for once in a
 * statement. The commit is not waited for: a crash of Postgres may forget what was accepted in its last second.
 */
export async function takeRequests(db: Database, questions: readonly RateQuestion[]): Promise<RateAnswer[]> {
  const rows = await db.run<Row>("take_requests", TAKE, [
    column(questions.map((question) => question.projectNo)),
    column(questions.map((question) => environmentCode(question.environment))),
    column(questions.map((question) => question.requestCount)),
    column(questions.map((question) => question.limit)),
  ]);
  if (rows.length !== questions.length) throw new Error("a project's environment has no request rate");
  return rows.map((row) => ({
    acceptedCount: row.taken,
    remaining: Math.max(0, row.remaining),
    retryAfterMs: row.retry_after_ms ?? 0,
    resetMs: Math.max(0, row.reset_ms),
  }));
}

// The sum decides and not the ticks: a statement that waited for the lock reads the locked row as it is now, but ticks as
// they were when it began. A tick that a mate has removed meanwhile is not removed again, so it is subtracted once.
const TAKE = `
WITH quick AS MATERIALIZED (
  SELECT set_config('synchronous_commit', 'off', true)
), asked AS MATERIALIZED (
  SELECT a.* FROM quick, unnest($1::int[], $2::smallint[], $3::int[], $4::int[])
         WITH ORDINALITY AS a (project_no, environment, request_count, max, n)
), win AS MATERIALIZED (
  SELECT a.*, w.accepted
    FROM asked a JOIN rate_windows w USING (project_no, environment)
   ORDER BY a.project_no, a.environment
     FOR NO KEY UPDATE OF w
), timed AS MATERIALIZED (
  -- The clock after the lock was had, so that ticks never lie behind those of whoever had it before.
  SELECT *, (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now_ms FROM win
), ticked AS MATERIALIZED (
  SELECT *, floor(now_ms / ${TICK_MS})::bigint AS tick FROM timed
), expired AS (
  -- Looked for in two ranges of the index, or every tick of the minute would be looked at.
  DELETE FROM rate_ticks r USING ticked t
   WHERE r.project_no = t.project_no AND r.environment = t.environment
     AND r.tick = ANY (ARRAY (
           SELECT o.tick FROM rate_ticks o
            WHERE o.project_no = t.project_no AND o.environment = t.environment AND o.tick <= t.tick - ${WINDOW_TICKS}
            UNION ALL
           -- Ticks that are still to come are those of a clock that has gone back since; they would never expire.
           SELECT o.tick FROM rate_ticks o
            WHERE o.project_no = t.project_no AND o.environment = t.environment AND o.tick > t.tick + ${FUTURE_TICKS}))
  RETURNING r.project_no, r.environment, r.accepted
), counted AS MATERIALIZED (
  SELECT t.*, t.accepted - coalesce(x.accepted, 0) AS standing
    FROM ticked t
    LEFT JOIN LATERAL (SELECT sum(e.accepted)::int AS accepted FROM expired e
                        WHERE e.project_no = t.project_no AND e.environment = t.environment) x ON true
), decided AS MATERIALIZED (
  SELECT *, least(request_count, greatest(max - standing, 0)) AS taken FROM counted
), added AS (
  INSERT INTO rate_ticks AS r (project_no, environment, tick, accepted)
  SELECT project_no, environment, tick, taken FROM decided WHERE taken > 0
   ORDER BY project_no, environment
      ON CONFLICT (project_no, environment, tick) DO UPDATE SET accepted = r.accepted + excluded.accepted
), summed AS (
  -- What the lock has read is compared: w itself would first be judged by the snapshot, in which it can be older.
  UPDATE rate_windows w SET accepted = d.standing + d.taken
    FROM decided d
   WHERE w.project_no = d.project_no AND w.environment = d.environment AND d.accepted <> d.standing + d.taken
)
SELECT d.taken, d.max - d.standing - d.taken AS remaining,
       CASE WHEN d.taken < d.request_count THEN
         (coalesce((SELECT f.tick
                      FROM (SELECT r.tick, sum(r.accepted) OVER (ORDER BY r.tick) AS freed
                              FROM rate_ticks r
                             WHERE r.project_no = d.project_no AND r.environment = d.environment
                               AND r.tick > d.tick - ${WINDOW_TICKS}) f
                     WHERE f.freed > d.standing + d.taken - d.max
                     ORDER BY f.tick LIMIT 1), d.tick) + ${WINDOW_TICKS}) * ${TICK_MS} - d.now_ms
       END::float8 AS retry_after_ms,
       (CASE WHEN d.taken > 0 THEN d.tick
             -- Of what a mate has just accepted only the sum is seen.
             ELSE coalesce((SELECT max(r.tick) FROM rate_ticks r
                             WHERE r.project_no = d.project_no AND r.environment = d.environment), d.tick)
        END + ${WINDOW_TICKS}) * ${TICK_MS} - d.now_ms AS reset_ms
  FROM decided d ORDER BY d.n`;

interface Row {
  taken: number;
  remaining: number;
  retry_after_ms: number | null;
  reset_ms: number;
}
