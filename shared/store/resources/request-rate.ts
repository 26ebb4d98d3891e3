import { RATE_TICK_MS, RATE_WINDOW_TICKS } from "../../domain/plan.ts";
import type { Environment, ProjectNo } from "../../domain/scope.ts";
import { environmentCode } from "../database/codes.ts";
import { column, type Database } from "../database/database.ts";

/** The requests of one environment that arrived together at one gateway; none if the question only gives loans back. */
export interface RateQuestion {
  projectNo: ProjectNo;
  environment: Environment;
  requestCount: number;
  /** Requests per minute. */
  limit: number;
  /** A new uuid, the id of the loan that the answer may hold. */
  loan: string;
  /** How many requests the gateway expects in a whole tick; 0 takes no loan. */
  demand: number;
  /** Loans of this environment that are over. Repeating them changes nothing. */
  over: readonly SpentLoan[];
}

export interface SpentLoan {
  loan: string;
  spentCount: number;
}

export interface RateAnswer {
  /** The first `acceptedCount` requests are accepted. The others are refused and do not count, unless they are undecided. */
  acceptedCount: number;
  /**
   * True if the others may still be accepted: another gateway holds the missing requests as a loan, and may give them
   * back at once.
   */
  isUndecided: boolean;
  /** How many more requests the gateway may accept without asking, until `lentMs` after it sent the question. */
  lentCount: number;
  lentMs: number;
  /** The rest of the limit after these requests and loans. */
  remaining: number;
  /** The time until a refused request would be accepted; 0 if none was refused. */
  retryAfterMs: number;
  /** The time until no accepted request counts any more. */
  resetMs: number;
}

/**
 * Sessions that had the lock before have read the same clock, so a tick this far ahead is from before the clock was set
 * back.
 */
const FUTURE_TICKS = 10;

/** A loan is this much larger than the tick's demand, since the next tick may bring more. */
const LENT_PER_DEMAND = 1.25;
/** Smaller loans are not worth their bookkeeping, so small limits and occasional clients get none. */
const LENT_MIN = 5;
/** A loan is at most this part of the rest (one eighth). No loan is made once three quarters are used or lent. */
const LENT_PART = 8;
/**
 * How many ticks after its end a loan is waited for. A gateway gives back within some milliseconds of the tick's end,
 * or later on a busy machine. After this time the gateway is taken for dead or frozen, and its loan counts as accepted
 * until the minute is over or the gateway gives it back. The wait is well within the API's promised time for an answer.
 */
const AWAITED_TICKS = 7;

/**
 * Accepts requests within a sliding minute, by the database's clock and exact over any number of gateways: an accepted
 * request counts until the tick of its acceptance is a whole minute past. A statement may ask once for each
 * environment. The commit does not wait for the disk: a crash of Postgres may forget requests of its last second.
 *
 * A gateway with demand is lent requests for the rest of the tick. They count in full at once, in that tick. The
 * database reads its clock after the gateway sent the question, so a gateway that counts `lentMs` from there stops
 * before the tick ends, and each request that it spends is accepted in the tick in which it counts. A later question
 * gives back the unspent requests; until then no request is refused because of the loan (`isUndecided`).
 */
export async function takeRequests(db: Database, questions: readonly RateQuestion[]): Promise<RateAnswer[]> {
  const over = questions.flatMap((question) => question.over);
  const rows = await db.run<Row>("take_requests", TAKE, [
    column(questions.map((question) => question.projectNo)),
    column(questions.map((question) => environmentCode(question.environment))),
    column(questions.map((question) => question.requestCount)),
    column(questions.map((question) => question.limit)),
    column(questions.map((question) => question.demand)),
    column(questions.map((question) => question.loan)),
    JSON.stringify(Object.fromEntries(over.map(({ loan, spentCount }) => [loan, spentCount]))),
  ]);
  if (rows.length !== questions.length) throw new Error("a project's environment has no request rate");
  return rows.map((row) => ({
    acceptedCount: row.taken,
    isUndecided: row.undecided,
    lentCount: row.lent,
    lentMs: row.lent_ms,
    remaining: Math.max(0, row.remaining),
    retryAfterMs: row.retry_after_ms ?? 0,
    resetMs: Math.max(0, row.reset_ms),
  }));
}

// The row's sum and its loans decide, rather than the ticks: a statement that waited for the lock reads the locked row as
// it is now, but the ticks as they were when it began. A tick that another session has removed meanwhile is not removed
// again, so it is subtracted once. A loan is given back once as well, since giving it back removes it from the row.
const TAKE = `
WITH quick AS MATERIALIZED (
  SELECT set_config('synchronous_commit', 'off', true)
), asked AS MATERIALIZED (
  SELECT a.* FROM quick, unnest($1::int[], $2::smallint[], $3::int[], $4::int[], $5::int[], $6::uuid[])
         WITH ORDINALITY AS a (project_no, environment, request_count, max, demand, loan, n)
), win AS MATERIALIZED (
  SELECT a.*, w.accepted, w.loans
    FROM asked a JOIN rate_windows w USING (project_no, environment)
   ORDER BY a.project_no, a.environment
     FOR NO KEY UPDATE OF w
), timed AS MATERIALIZED (
  -- The clock after the lock was had, so that ticks never lie behind those of whoever had it before.
  SELECT *, (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now_ms FROM win
), ticked AS MATERIALIZED (
  SELECT *, floor(now_ms / ${RATE_TICK_MS})::bigint AS tick FROM timed
), expired AS (
  -- Looked for in two ranges of the index, or every tick of the minute would be looked at.
  DELETE FROM rate_ticks r USING ticked t
   WHERE r.project_no = t.project_no AND r.environment = t.environment
     AND r.tick = ANY (ARRAY (
           SELECT o.tick FROM rate_ticks o
            WHERE o.project_no = t.project_no AND o.environment = t.environment AND o.tick <= t.tick - ${RATE_WINDOW_TICKS}
            UNION ALL
           -- Ticks that are still to come are those of a clock that has gone back since; they would never expire.
           SELECT o.tick FROM rate_ticks o
            WHERE o.project_no = t.project_no AND o.environment = t.environment AND o.tick > t.tick + ${FUTURE_TICKS}))
  RETURNING r.project_no, r.environment, r.accepted
), accounted AS (
  -- Loans go with their ticks, whole; of those that are over, what was not spent is given back to the tick.
  SELECT t.*, l.*
    FROM ticked t
   CROSS JOIN LATERAL (
      SELECT jsonb_object_agg(k.loan, k.terms) FILTER (WHERE k.spent IS NULL) AS kept,
             bool_or(k.spent IS NULL AND k.tick >= t.tick - ${AWAITED_TICKS}) AS is_awaited,
             array_agg(k.tick) FILTER (WHERE k.spent < k.count) AS back_ticks,
             array_agg(k.count - k.spent) FILTER (WHERE k.spent < k.count) AS back_counts,
             coalesce(sum(k.count - k.spent) FILTER (WHERE k.spent < k.count), 0)::int AS back
        FROM (SELECT j.loan, j.terms, (j.terms->>0)::bigint AS tick, (j.terms->>1)::int AS count,
                     ($7::jsonb->>j.loan)::int AS spent
                FROM jsonb_each(t.loans) AS j (loan, terms)) k
       WHERE t.loans <> '{}' AND k.tick > t.tick - ${RATE_WINDOW_TICKS} AND k.tick <= t.tick + ${FUTURE_TICKS}
    ) l
), counted AS (
  SELECT a.*, a.accepted - coalesce(x.accepted, 0) - a.back AS standing
    FROM accounted a
    LEFT JOIN LATERAL (SELECT sum(e.accepted)::int AS accepted FROM expired e
                        WHERE e.project_no = a.project_no AND e.environment = a.environment) x ON true
), decided AS (
  SELECT *, least(request_count, greatest(max - standing, 0)) AS taken, (tick + 1) * ${RATE_TICK_MS} - now_ms AS lent_ms FROM counted
), lendable AS (
  SELECT *, least(ceil(demand * ${LENT_PER_DEMAND} * lent_ms / ${RATE_TICK_MS})::int,
                  (max - standing - taken) / ${LENT_PART}, max - max / 4 - standing - taken) AS most
    FROM decided
), granted AS MATERIALIZED (
  SELECT *, CASE WHEN most >= ${LENT_MIN} THEN most ELSE 0 END AS lent FROM lendable
), added AS (
  INSERT INTO rate_ticks AS r (project_no, environment, tick, accepted)
  SELECT c.project_no, c.environment, c.tick, sum(c.change)
    FROM (SELECT project_no, environment, tick, taken + lent AS change FROM granted WHERE taken + lent > 0
           UNION ALL
          SELECT g.project_no, g.environment, b.tick, -b.count
            FROM granted g, unnest(g.back_ticks, g.back_counts) AS b (tick, count)
           WHERE g.back > 0) c
   GROUP BY c.project_no, c.environment, c.tick
   ORDER BY c.project_no, c.environment, c.tick
      ON CONFLICT (project_no, environment, tick) DO UPDATE SET accepted = r.accepted + excluded.accepted
), summed AS (
  -- Compare with the row as locked; w is first judged by an older snapshot.
  UPDATE rate_windows w SET accepted = g.standing + g.taken + g.lent, loans = s.loans
    FROM granted g, LATERAL (SELECT CASE WHEN g.lent > 0 THEN
           coalesce(g.kept, '{}') || jsonb_build_object(g.loan, jsonb_build_array(g.tick, g.lent))
           ELSE coalesce(g.kept, '{}') END AS loans) s
   WHERE w.project_no = g.project_no AND w.environment = g.environment
     AND (g.accepted <> g.standing + g.taken + g.lent OR g.loans <> s.loans)
)
SELECT g.taken, g.lent, g.lent_ms, g.max - g.standing - g.taken - g.lent AS remaining,
       g.taken < g.request_count AND coalesce(g.is_awaited, false) AS undecided,
       CASE WHEN g.taken < g.request_count THEN
         (coalesce((SELECT f.tick
                      FROM (SELECT r.tick, sum(r.accepted) OVER (ORDER BY r.tick) AS freed
                              FROM (SELECT s.tick, s.accepted FROM rate_ticks s
                                     WHERE s.project_no = g.project_no AND s.environment = g.environment
                                       AND s.tick > g.tick - ${RATE_WINDOW_TICKS}
                                     UNION ALL
                                    SELECT b.tick, -b.count FROM unnest(g.back_ticks, g.back_counts) AS b (tick, count)) r) f
                     WHERE f.freed > g.standing + g.taken - g.max
                     ORDER BY f.tick LIMIT 1), g.tick) + ${RATE_WINDOW_TICKS}) * ${RATE_TICK_MS} - g.now_ms
       END::float8 AS retry_after_ms,
       (CASE WHEN g.taken > 0 THEN g.tick
             -- Another session may just have accepted requests. This statement sees their sum, not their ticks.
             ELSE coalesce((SELECT max(r.tick) FROM rate_ticks r
                             WHERE r.project_no = g.project_no AND r.environment = g.environment), g.tick)
        END + ${RATE_WINDOW_TICKS}) * ${RATE_TICK_MS} - g.now_ms AS reset_ms
  FROM granted g ORDER BY g.n`;

interface Row {
  taken: number;
  undecided: boolean;
  lent: number;
  lent_ms: number;
  remaining: number;
  retry_after_ms: number | null;
  reset_ms: number;
}
