import { DELIVERY_PREFIX, uuidToId } from "../../../domain/ids.ts";
import { type OwedAttempt, oweAttempt, type Placed } from "../../../domain/owed.ts";
import { regionOf } from "../../database/codes.ts";
import { type Database, epochMs } from "../../database/database.ts";
import { ATTEMPTS, CANCEL_OPEN, WAY } from "../canceled-jobs.ts";
import {
  ANSWER,
  type AnswerColumns,
  BULK_CLOCK,
  type BulkPlace,
  type JudgedPage,
  lockedBulk,
  NOTE_JUDGED,
  PAGE,
  placeOf,
  RUNNING,
  readAnswer,
} from "./page.ts";

/**
 * Cancels the next jobs of a bulk operation, at most `count`, as cancelJob (resources/jobs-by-hand.ts) cancels each. Jobs that
 * are over are skipped. It is one statement: a worker that dies has canceled and counted all of them, or none. `owed` holds the
 * deliveries of the cancels' events. Null if the operation does not run any more, or the shard has another owner. Lock order:
 * fence, the operation, open jobs by id.
 */
export async function cancelMembers(
  db: Database,
  bulk: BulkPlace,
  count: number,
): Promise<(JudgedPage & { owed: Placed<OwedAttempt>[] }) | null> {
  const rows = await db.run<Row>("cancel_bulk_members", CANCEL, [...placeOf(bulk), count]);
  const [first] = rows;
  if (first === undefined) return null;
  const { projectNo, environment } = bulk;
  const owed = rows.flatMap(({ delivery_id, region, shard, due_at: dueAt }) => {
    if (delivery_id === null) return [];
    const place = { projectNo, environment, region: regionOf(region ?? 0), shard };
    return oweAttempt("webhooks", place, { id: uuidToId(DELIVERY_PREFIX, delivery_id), attempt: 1, dueAt });
  });
  return { ...readAnswer(first), owed };
}

const CANCEL = `
WITH ${lockedBulk(`b.status = ${RUNNING}`)}, ${BULK_CLOCK}, ${PAGE}, open AS MATERIALIZED (
  SELECT p.position, o.*
    FROM (SELECT * FROM page ORDER BY job_id) p
   CROSS JOIN LATERAL (
         SELECT o.*, ${ATTEMPTS} AS attempts, ${WAY} AS way
           FROM open_jobs o
          WHERE o.project_no = ANY (ARRAY[$1::int]) AND o.environment = $2 AND o.region = p.region AND o.job_id = p.job_id
            AND NOT o.canceled
            FOR NO KEY UPDATE) o
), judged AS MATERIALIZED (
  SELECT p.position, CASE WHEN o.position IS NULL THEN 'skipped' ELSE 'done' END AS outcome
    FROM page p LEFT JOIN open o USING (position)
), ${CANCEL_OPEN}, ${NOTE_JUDGED}
SELECT ${ANSWER}, h.delivery_id, h.region, h.shard, ${epochMs("now()")} AS due_at
  FROM turn t CROSS JOIN total s LEFT JOIN heard h ON true`;

interface Row extends AnswerColumns {
  /** Null if no endpoint hears of these cancels. */
  delivery_id: string | null;
  region: number | null;
  shard: number | null;
  due_at: number;
}
