import type { FlowKind } from "../../domain/flow-class.ts";
import { idToUuid } from "../../domain/ids.ts";
import type { Environment, ProjectNo, Region } from "../../domain/scope.ts";
import { environmentCode, regionCode } from "../database/codes.ts";
import { column, type Database } from "../database/database.ts";
import { callGates } from "./gate-calls.ts";
import { OWED, type Owed } from "./sweep.ts";

/**
 * Parks an owed attempt whose host takes no more requests now: the attempt is not due any more, so no sweep meets it.
 * Only its row says so. A node that has room at the host releases it (parked.ts). A cancel deletes the row, and a retry
 * by hand makes it due, whether it is parked or not.
 */

/** An owed attempt that a node wants to park, and its target URL. */
export interface Parked {
  projectNo: ProjectNo;
  environment: Environment;
  region: Region;
  id: string;
  attempt: number;
  host: string;
  url: string;
}

/**
 * `gone`: the attempt was not owed any more, or was parked already. `elsewhere`: its endpoint has another URL by now,
 * so it stays due.
 */
export type ParkOutcome = "parked" | "gone" | "elsewhere";

/**
 * Parks the attempts that are still owed, in one statement that compares and sets. The answers have the order of the
 * attempts.
 */
export async function parkAttempts(
  db: Database,
  kind: FlowKind,
  attempts: readonly Parked[],
): Promise<ParkOutcome[]> {
  const rows = await db.run<{ n: number; is_parked: boolean }>(`park_${kind}`, PARK[kind], [
    column(attempts.map((item) => item.projectNo)),
    column(attempts.map((item) => environmentCode(item.environment))),
    column(attempts.map((item) => regionCode(item.region))),
    column(attempts.map((item) => idToUuid(item.id))),
    column(attempts.map((item) => item.attempt)),
    attempts.map((item) => item.host),
    attempts.map((item) => item.url),
  ]);
  const outcomes: ParkOutcome[] = attempts.map(() => "gone");
  for (const { n, is_parked } of rows) outcomes[n - 1] = is_parked ? "parked" : "elsewhere";
  return outcomes;
}

// Locks and look-ups are those of claim-statement.ts: rows by id, each by its key alone and judged afterwards, then endpoints,
// which are read as they are now.
const park = (
  { table, id }: Owed,
  { columns, check, leave = "", set = "" }: { columns: string; check: string; leave?: string; set?: string },
) => `
WITH found AS MATERIALIZED (
  SELECT i.n, i.host, i.url, i.attempt AS asked, o.*
    FROM (SELECT *
            FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::uuid[], $5::smallint[], $6::text[], $7::text[])
                 WITH ORDINALITY AS i (project_no, environment, region, id, attempt, host, url, n)
           ORDER BY id) i
   CROSS JOIN LATERAL (
         SELECT o.project_no, o.environment, o.region, o.${id} AS id, o.attempt, o.due_at${columns} FROM ${table} o
          WHERE o.project_no = i.project_no AND o.environment = i.environment AND o.region = i.region AND o.${id} = i.id
            FOR NO KEY UPDATE) o
), owed AS MATERIALIZED (
  SELECT * FROM found WHERE attempt = asked AND due_at IS NOT NULL
), ${check}, ${leave}parked AS (
  UPDATE ${table} o SET due_at = NULL, parked_host = c.host, parked_due_at = coalesce(o.parked_due_at, o.due_at)${set}
    FROM checked c
   WHERE c.is_parked AND o.project_no = ANY (ARRAY[c.project_no]) AND o.environment = c.environment
     AND o.region = c.region AND o.${id} = c.id
)
SELECT n::int AS n, is_parked FROM checked`;
const PARK: Record<FlowKind, string> = {
  jobs: park(OWED.jobs, {
    columns: ", o.flow_key, o.gate",
    check: "checked AS MATERIALIZED (SELECT *, true AS is_parked FROM owed)",
    // An attempt that waits for a host does not stand in the way of others of its flow key.
    leave: `${callGates("checked WHERE gate IS NOT NULL", { isOver: false })}, `,
    set: ", gate = NULL",
  }),
  webhooks: park(OWED.webhooks, {
    columns: ", o.webhook_id",
    check: `endpoint AS MATERIALIZED (
  SELECT w.*
    FROM (SELECT DISTINCT project_no, environment, webhook_id FROM owed ORDER BY webhook_id) a
   CROSS JOIN LATERAL (
         SELECT w.id, w.url FROM webhooks w
          WHERE w.project_no = a.project_no AND w.environment = a.environment AND w.id = a.webhook_id
            FOR SHARE) w
), checked AS MATERIALIZED (
  SELECT o.*, coalesce(e.url = o.url, false) AS is_parked FROM owed o LEFT JOIN endpoint e ON e.id = o.webhook_id
)`,
  }),
};
