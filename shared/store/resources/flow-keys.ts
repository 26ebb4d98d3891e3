import { FLOW_KEYS_KEPT_MAX, type FlowKeyTerms, type FlowRate } from "../../domain/flow-key.ts";
import { idToUuid } from "../../domain/ids.ts";
import type { Scope } from "../../domain/scope.ts";
import { ALL_REGIONS, environmentCode } from "../database/codes.ts";
import { type Database, epochMs } from "../database/database.ts";
import { HEADS, placesLeft, startsLeft } from "../queue/flow-gates.ts";
import { nextStartOf } from "../queue/flow-start.ts";
import { auditFrom, type KeyCause } from "./audit.ts";
import { lockProject } from "./lock-project.ts";

/** Flow keys as clients see and change them. The statements of queue/flow-gates.ts decide which attempts keys let start. */

/** A flow key. Instants are milliseconds since 1970. */
export interface FlowKeyRow extends FlowKeyTerms {
  key: string;
  /** Places of its concurrency that are taken. */
  inUse: number;
  /** Due attempts that wait for the key. */
  waiting: number;
  /** When its rate lets the next attempt start; null if the rate keeps none from starting now. */
  nextStartAt: number | null;
}

/**
 * How many due attempts the key keeps back: the parked ones, and those in their lanes beyond what the key lets start now, such
 * as the ones that its rate has put off. Attempts within what it lets start wait for something else, such as the project's limit.
 * A key keeps no more than HEADS attempts of a region in their lane. A list needs no newer snapshot, so gate_heads is not called
 * for each key.
 */
const WAITING = `((SELECT sum(w) FROM unnest(k.waiting) AS w)
          + (SELECT greatest(count(*) - greatest(least(${placesLeft}, ${startsLeft("now()")}), 0), 0)
               FROM unnest(${ALL_REGIONS}::smallint[]) AS r (region)
              CROSS JOIN LATERAL (
                    SELECT o.due_at, o.parked_due_at FROM open_jobs o
                     WHERE o.project_no = k.project_no AND o.environment = k.environment AND o.gate = 'k' || k.flow_key AND o.region = r.region
                     ORDER BY o.parked_due_at, o.job_id
                     LIMIT ${HEADS}) h
              WHERE h.due_at IS NOT NULL AND h.parked_due_at <= now()))`;
const COLUMNS = `k.flow_key, k.concurrency, k.rate_count, k.rate_seconds, k.paused, k.pinned, k.in_use, ${WAITING}::float8 AS waiting,
       ${epochMs(nextStartOf("k"))} AS next_start_at`;
const IN_SCOPE = "k.project_no = $1 AND k.environment = $2";

/** One key, or null if it is not known. */
export async function findFlowKey(
  db: Database,
  { projectNo, environment }: Scope,
  key: string,
): Promise<FlowKeyRow | null> {
  const [row] = await db.run<Row>("find_flow_key", FIND, [projectNo, environmentCode(environment), key]);
  return row === undefined ? null : readFlowKey(row);
}

const FIND = `SELECT ${COLUMNS} FROM flow_keys k WHERE ${IN_SCOPE} AND k.flow_key = $3`;

/** A page of an environment's keys, in ascending order of bytes; null for `after` begins with the first. */
export async function listFlowKeys(
  db: Database,
  { projectNo, environment }: Scope,
  { after, limit }: { after: string | null; limit: number },
): Promise<FlowKeyRow[]> {
  const values = [projectNo, environmentCode(environment), after ?? "", limit];
  return (await db.run<Row>("list_flow_keys", LIST, values)).map(readFlowKey);
}

const LIST = `SELECT ${COLUMNS} FROM flow_keys k WHERE ${IN_SCOPE} AND k.flow_key > $3 ORDER BY k.flow_key LIMIT $4`;

/**
 * Changes the given terms of a key, and makes a key that is not known. Delivery nodes empty gate_calls
 * (queue/gate-calls.ts) and call the attempts that may start now, within a second. Nothing is changed if the environment
 * would keep too many keys by hand.
 */
export async function changeFlowKey(
  db: Database,
  { projectNo, environment }: Scope,
  key: string,
  change: Partial<FlowKeyTerms>,
  { requestId, keyNo }: KeyCause,
): Promise<FlowKeyRow | "too_many"> {
  const { concurrency, rate, paused, pinned } = change;
  const values = [
    ...[projectNo, environmentCode(environment), JSON.stringify(change), idToUuid(requestId), keyNo, key],
    ...[concurrency !== undefined, concurrency ?? null],
    ...[rate !== undefined, rate?.count ?? null, rate?.per_seconds ?? null],
    ...[paused ?? null, pinned ?? null],
  ];
  const [row] =
    paused === true || pinned === true
      ? await db.transact(async (tx) => {
          // Under the project's lock the count is exact.
          await lockProject(tx, projectNo);
          return tx.run<Row>("change_flow_key", CHANGE, values);
        })
      : await db.run<Row>("change_flow_key", CHANGE, values);
  return row === undefined ? "too_many" : readFlowKey(row);
}

const IS_KEPT = "(pinned OR paused)";

const CHANGE = `
WITH k AS (
  INSERT INTO flow_keys AS k (project_no, environment, flow_key, concurrency, rate_count, rate_seconds, paused, pinned)
  SELECT $1::int, $2::smallint, $6::text, $8::int, $10::int, $11::int, coalesce($12::boolean, false), coalesce($13::boolean, false)
   WHERE NOT coalesce($12 OR $13, false)
      OR EXISTS (SELECT FROM flow_keys k WHERE ${IN_SCOPE} AND k.flow_key = $6 AND ${IS_KEPT})
      OR (SELECT count(*) FROM (SELECT FROM flow_keys k WHERE ${IN_SCOPE} AND ${IS_KEPT} LIMIT ${FLOW_KEYS_KEPT_MAX}) kept) < ${FLOW_KEYS_KEPT_MAX}
      ON CONFLICT (project_no, environment, flow_key) DO UPDATE
     SET used_at = now(), concurrency = CASE WHEN $7::boolean THEN excluded.concurrency ELSE k.concurrency END,
         rate_count = CASE WHEN $9::boolean THEN excluded.rate_count ELSE k.rate_count END,
         rate_seconds = CASE WHEN $9 THEN excluded.rate_seconds ELSE k.rate_seconds END,
         paused = coalesce($12, k.paused), pinned = coalesce($13, k.pinned)
  RETURNING *
), told AS (
  -- An attempt that has its place waits at a gate of its own while the key is paused.
  INSERT INTO gate_calls (project_no, environment, gate)
  SELECT project_no, environment, g.kind || flow_key FROM k CROSS JOIN unnest('{k,p}'::text[]) AS g (kind)
), ${auditFrom("flow.update", "k", "$3")}
SELECT ${COLUMNS} FROM k`;

interface Row {
  flow_key: string;
  concurrency: number | null;
  rate_count: number | null;
  rate_seconds: number | null;
  paused: boolean;
  pinned: boolean;
  in_use: number;
  waiting: number;
  next_start_at: number | null;
}

const readFlowKey = (row: Row): FlowKeyRow => ({
  key: row.flow_key,
  concurrency: row.concurrency,
  rate: readRate(row),
  paused: row.paused,
  pinned: row.pinned,
  inUse: row.in_use,
  waiting: row.waiting,
  nextStartAt: row.next_start_at,
});

export const readRate = ({
  rate_count: count,
  rate_seconds: perSeconds,
}: Pick<Row, "rate_count" | "rate_seconds">): FlowRate | null =>
  count === null || perSeconds === null ? null : { count, per_seconds: perSeconds };
