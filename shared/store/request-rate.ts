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

/** The window, in ticks of a tenth of a second: a minute, and the tick in which the oldest may have been accepted. */
const WINDOW_TICKS = 601;
const TICK_MS = 100;

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
  const answers: RateAnswer[] = questions.map(() => ({
    acceptedCount: 0,
    remaining: 0,
    retryAfterMs: 0,
    resetMs: 0,
  }));
  for (const row of rows) {
    answers[row.n - 1] = {
      acceptedCount: row.taken,
      remaining: Math.max(0, row.remaining),
      retryAfterMs: Math.max(0, row.retry_after_ms ?? 0),
      resetMs: Math.max(0, row.reset_ms ?? 0),
    };
  }
  return answers;
}

const TAKE = `
WITH quick AS MATERIALIZED (
  SELECT set_config('synchronous_commit', 'off', true) AS setting
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
  SELECT *, extract(epoch FROM clock_timestamp()) * 1000 AS now_ms FROM win
), ticked AS MATERIALIZED (
  SELECT *, (now_ms / ${TICK_MS})::bigint AS tick FROM timed
), expired AS (
  DELETE FROM rate_ticks r USING ticked t
   WHERE r.project_no = t.project_no AND r.environment = t.environment AND r.tick <= t.tick - ${WINDOW_TICKS}
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
  UPDATE rate_windows w SET accepted = d.standing + d.taken
    FROM decided d
   WHERE w.project_no = d.project_no AND w.environment = d.environment AND w.accepted <> d.standing + d.taken
)
SELECT d.n::int AS n, d.taken, d.max - d.standing - d.taken AS remaining,
       CASE WHEN d.taken < d.request_count THEN
         ((SELECT r.tick FROM rate_ticks r
            WHERE r.project_no = d.project_no AND r.environment = d.environment AND r.tick > d.tick - ${WINDOW_TICKS}
            ORDER BY r.tick LIMIT 1) + ${WINDOW_TICKS}) * ${TICK_MS} - d.now_ms
       END::float8 AS retry_after_ms,
       CASE WHEN d.taken > 0 THEN ${WINDOW_TICKS * TICK_MS}
            ELSE ((SELECT r.tick FROM rate_ticks r
                    WHERE r.project_no = d.project_no AND r.environment = d.environment
                    ORDER BY r.tick DESC LIMIT 1) + ${WINDOW_TICKS}) * ${TICK_MS} - d.now_ms
       END::float8 AS reset_ms
  FROM decided d`;

interface Row {
  n: number;
  taken: number;
  remaining: number;
  retry_after_ms: number | null;
  reset_ms: number | null;
}
