import { idToUuid } from "../../../domain/ids.ts";
import { HOME_REGION } from "../../../domain/plan.ts";
import type { ProjectNo, Scope } from "../../../domain/scope.ts";
import { bulkStatusCode, environmentCode, regionCode } from "../../database/codes.ts";
import type { HeldShard } from "../shards.ts";

/**
 * The common parts of the statements that count and judge the members of a bulk operation. Each statement is fenced by the
 * epoch of the operation's shard and locks the operation's row. An abort waits for it, and the later of two workers goes on
 * where the earlier one has ended.
 */

/** A bulk operation, and the shard by whose ownership a worker carries it out. */
export interface BulkPlace extends Scope {
  projectNo: ProjectNo;
  id: string;
  held: HeldShard;
}

/** The first five parameters of each statement. */
export const placeOf = ({ projectNo, environment, id, held }: BulkPlace) => [
  projectNo,
  environmentCode(environment),
  idToUuid(id),
  held.shard,
  held.epoch,
];

export const THE_BULK = "b.project_no = $1 AND b.environment = $2 AND b.id = $3";
export const RUNNING = bulkStatusCode("running");

/** `bulk` is the operation's row, locked, if it meets `condition`. */
export const lockedBulk = (condition: string): string => `fence AS MATERIALIZED (
  SELECT shard FROM shards WHERE region = ${regionCode(HOME_REGION)} AND shard = $4 AND epoch = $5 FOR KEY SHARE
), bulk AS MATERIALIZED (
  SELECT b.* FROM bulk_operations b
   WHERE ${THE_BULK} AND ${condition} AND EXISTS (SELECT FROM fence)
     FOR NO KEY UPDATE
)`;

/**
 * Whether the turn of a bulk operation (b) has come: no operation of its environment runs, and none that is to change something
 * was asked for before it. If two operations start at once, each unseen by the other, the unique index of running ones refuses
 * one, which tries again.
 */
export const HAS_TURN = `NOT EXISTS (
    SELECT FROM bulk_operations o
     WHERE o.project_no = b.project_no AND o.environment = b.environment AND o.ended_at IS NULL AND o.id <> b.id
       AND NOT o.dry_run AND (o.id < b.id OR o.status = ${RUNNING}))`;

const PACE_WINDOW = "interval '1 s'";

/**
 * `page` has the members whose turn it is, at most $6, with their places `n` from 1. It stands behind `bulk` and `clock`, whose
 * `at` is read once all rows are locked that are locked before the members. At most `per_second` members are judged in any
 * second by that clock: the row notes the pages of the last second. Pages noted more than a second ahead, before the clock was
 * set back, do not count.
 */
export const PAGE = `turn AS MATERIALIZED (
  SELECT b.id, b.judged_to, b.per_second, b.matched - b.done - b.skipped - b.failed AS left_count, clock.at, w.ats, w.counts, w.used
    FROM bulk b
   CROSS JOIN clock
   CROSS JOIN LATERAL (
         SELECT coalesce(array_agg(p.at ORDER BY p.at), '{}') AS ats, coalesce(array_agg(p.count ORDER BY p.at), '{}') AS counts,
                coalesce(sum(p.count), 0)::int AS used
           FROM unnest(b.judged_at, b.judged_counts) AS p (at, count)
          WHERE p.at BETWEEN clock.at - ${PACE_WINDOW} AND clock.at + ${PACE_WINDOW}) w
), page AS MATERIALIZED (
  SELECT m.*, row_number() OVER (ORDER BY m.position) AS n
    FROM turn t
   CROSS JOIN LATERAL (
         SELECT position, region, job_id FROM bulk_members
          WHERE bulk_id = t.id AND position > t.judged_to
          ORDER BY position LIMIT greatest(0, least($6::int, t.per_second - t.used))) m
)`;

/** The clock of a statement that may read the time as soon as it has locked the operation's row. */
export const BULK_CLOCK = "clock AS MATERIALIZED (SELECT clock_timestamp() AS at FROM bulk)";

/** Notes the outcomes of the page's members, and deletes the members. `judged` has the `position` and the `outcome` of each. */
export const NOTE_JUDGED = `total AS MATERIALIZED (
  SELECT count(*)::smallint AS judged, count(*) FILTER (WHERE outcome = 'done')::int AS done,
         count(*) FILTER (WHERE outcome = 'skipped')::int AS skipped, count(*) FILTER (WHERE outcome = 'failed')::int AS failed,
         max(position) AS judged_to
    FROM judged
), noted AS (
  UPDATE bulk_operations b
     SET done = b.done + s.done, skipped = b.skipped + s.skipped, failed = b.failed + s.failed,
         judged_to = coalesce(s.judged_to, b.judged_to),
         judged_at = CASE WHEN s.judged > 0 THEN t.ats || t.at ELSE t.ats END,
         judged_counts = CASE WHEN s.judged > 0 THEN t.counts || s.judged ELSE t.counts END,
         status = CASE WHEN s.judged >= t.left_count THEN ${bulkStatusCode("done")} ELSE b.status END,
         ended_at = CASE WHEN s.judged >= t.left_count THEN t.at END
    FROM turn t CROSS JOIN total s
   WHERE ${THE_BULK}
), forgotten AS (
  DELETE FROM bulk_members m USING page p WHERE m.bulk_id = $3 AND m.position = p.position
)`;

/** The answer's columns, to stand before FROM turn t CROSS JOIN total s. */
export const ANSWER = `s.done, s.skipped, s.failed, s.judged >= t.left_count AS is_over,
       CASE WHEN t.used + s.judged < t.per_second THEN 0
            ELSE extract(epoch FROM coalesce(t.ats[1], t.at) + ${PACE_WINDOW} - t.at) * 1000 END::float8 AS wait_ms`;

export interface AnswerColumns {
  done: number;
  skipped: number;
  failed: number;
  is_over: boolean;
  wait_ms: number;
}

/** The outcome of a page of members. */
export interface JudgedPage {
  done: number;
  skipped: number;
  failed: number;
  /** Whether it was the last one. */
  isOver: boolean;
  /** How long to wait until the pace allows more; 0 if it does now. */
  waitMs: number;
}

export const readAnswer = ({ done, skipped, failed, is_over, wait_ms }: AnswerColumns): JudgedPage => ({
  ...{ done, skipped, failed, isOver: is_over },
  waitMs: Math.max(0, wait_ms),
});
