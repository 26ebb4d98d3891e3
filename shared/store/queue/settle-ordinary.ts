import type { NextOfJob } from "../../domain/run.ts";
import {
  endedStatusCode,
  environmentCode,
  QUOTA_HEARD,
  regionCode,
  runStatusCode,
} from "../database/codes.ts";
import { idColumn, int2Column, int4Column, textColumn } from "../database/columns.ts";
import type { Database } from "../database/database.ts";
import { inLockOrder, type OrderedItem } from "./lock-order.ts";
import { countByEnvironment } from "./permits.ts";
import { DURATION_MS_MAX, lateColumns, SETTLED_IN, type SettledItem, type Settlement } from "./settle.ts";

/** The settlement of a job's last attempt. */
export interface LastSettlement extends Settlement {
  next: Exclude<NextOfJob, { status: "queued" }>;
}

export const isLast = (settlement: Settlement): settlement is LastSettlement =>
  settlement.next.status !== "queued";

/**
 * The short way of a settlement that ends its job. It settles in ordinary projects: no class waits for a permit, and no
 * endpoint is subscribed to ends of jobs. It leaves the rest to settleAttempts, unchanged: settlements in other projects,
 * settlements made before, and attempts of jobs with tags or a flow key. It does not note shifted runs (job-tags.ts): callers
 * ask about plain attempts. For each settlement that it makes, settleAttempts would have answered the same and left the same
 * rows.
 *
 * One self-committing statement, with the locks of settleAttempts in their order. One DELETE judges and deletes the open jobs,
 * in the order in which the items come, since only nested loops are planned. Under READ COMMITTED it judges a row once more if
 * others changed the row meanwhile, as a cancel does, and returns its newest version. COALESCE keeps the planner to the key.
 *
 * Answers come in the order of the settlements; one that is left has null.
 */
export async function settleOrdinary(
  db: Database,
  settlements: readonly LastSettlement[],
): Promise<(SettledItem | null)[]> {
  const { values, ordered } = lastSettlements(settlements);
  const rows = await db.run<SettledRow>("settle_ordinary", SETTLE_ORDINARY, values);
  return readSettled(settlements.length, ordered, rows);
}

/** The parameters of ORDINARY_CLASSES and SETTLED_ITEMS, the projects, and the settlements in the order of these. */
export function lastSettlements<Item extends LastSettlement>(settlements: readonly Item[]) {
  const { projects, ordered } = inLockOrder(settlements);
  const values = [
    int4Column(projects.map((project) => project.no)),
    int4Column(ordered.map(({ projectPlace }) => projectPlace)),
    int4Column(ordered.map(({ item }) => item.projectNo)),
    int2Column(ordered.map(({ item }) => environmentCode(item.environment))),
    int2Column(ordered.map(({ item }) => regionCode(item.region))),
    idColumn(ordered.map(({ item }) => item.jobId)),
    idColumn(ordered.map(({ item }) => item.runId)),
    int2Column(ordered.map(({ item }) => runStatusCode(item.status))),
    int2Column(ordered.map(({ item }) => item.responseStatus)),
    textColumn(ordered.map(({ item }) => item.error)),
    int4Column(ordered.map(({ item }) => Math.min(Math.round(item.durationMs), DURATION_MS_MAX))),
    int2Column(ordered.map(({ item }) => endedStatusCode(item.next.status))),
    ...lateColumns(ordered.map(({ item }) => item)),
  ];
  return { values, projects, ordered };
}

/** The answers in the order in which the settlements came; one that is left has null. */
export function readSettled(
  count: number,
  ordered: readonly OrderedItem<LastSettlement>[],
  rows: readonly SettledRow[],
): (SettledItem | null)[] {
  const items: (SettledItem | null)[] = Array.from({ length: count }, () => null);
  for (const { n, attempt, canceled } of rows) {
    const settled = ordered[n - 1];
    if (settled === undefined) continue;
    const { jobId, next } = settled.item;
    items[settled.index] = {
      jobId,
      attempt,
      status: canceled ? "canceled" : next.status,
      nextRetryAt: null,
    };
  }
  return items;
}

/** The bits of a flow's `subscriptions` that concern a settlement. */
export const ENDS_HEARD = QUOTA_HEARD - 1;

/** The retention class of a project's flow (f) whose subscriptions have none of the bits `heard`; null if it is not ordinary. */
export const ordinaryClass = (heard: number): string =>
  `CASE WHEN f.waiting = 0 AND f.subscriptions & ${heard} = 0 THEN f.retention_class END`;
/** Locks the flows and answers the class of each project; null if it is not ordinary, or has no flow. */
const ORDINARY_CLASSES = `ARRAY (
           SELECT f.retention_class
             FROM unnest($1::int[]) AS p (project_no)
             LEFT JOIN LATERAL (
                  SELECT ${ordinaryClass(ENDS_HEARD)} AS retention_class
                    FROM flows f
                   WHERE f.project_no = p.project_no
                     FOR NO KEY UPDATE) f ON true)`;
/** The arrays are taken apart as in claim-ordinary.ts. */
export const SETTLED_ITEMS = `(SELECT unnest($2::int[]) AS place, unnest($3::int[]) AS project_no, unnest($4::smallint[]) AS environment,
                        unnest($5::smallint[]) AS region, unnest($6::uuid[]) AS job_id, unnest($7::uuid[]) AS run_id,
                        unnest($8::smallint[]) AS status, unnest($9::smallint[]) AS response_status, unnest($10::text[]) AS error,
                        unnest($11::int[]) AS duration_ms, unnest($12::smallint[]) AS job_status, unnest($13::int[]) AS late_ms,
                        unnest($14::smallint[]) AS held_for, generate_subscripts($6::uuid[], 1) AS n) a`;

/** Ends jobs and their attempts, behind `attempt`: rows with the columns of SETTLED_ITEMS and of their open jobs. */
export const END_ATTEMPTS = `ended AS (
  INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at, schedule_id)
  SELECT project_no, environment, region, job_id, job_status, attempt, now(), schedule_id FROM attempt WHERE NOT canceled
), recorded AS (
  INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, response_status, error,
                    started_at, duration_ms, schedule_id, late_ms, held_for, settled_in)
  SELECT run_id, job_id, project_no, environment, retention_class, attempt, status, response_status, error,
         started_at, duration_ms, schedule_id, late_ms, held_for, ${SETTLED_IN}
    FROM attempt
)`;

const SETTLE_ORDINARY = `
WITH locked AS MATERIALIZED (
  SELECT ${ORDINARY_CLASSES} AS classes
), attempt AS (
  DELETE FROM open_jobs o
   USING (SELECT a.*, l.classes[a.place] AS retention_class
            FROM locked l
           CROSS JOIN ${SETTLED_ITEMS}
           WHERE l.classes[a.place] IS NOT NULL
          OFFSET 0) i
   WHERE o.project_no = ANY (ARRAY[i.project_no]) AND o.environment = i.environment AND o.region = i.region
     AND o.job_id = i.job_id AND coalesce(o.run_id = i.run_id AND o.node_id IS NOT NULL, false)
     AND o.tags IS NULL AND o.flow_key IS NULL
  RETURNING i.*, o.attempt, o.started_at, o.canceled, o.schedule_id
), ${END_ATTEMPTS}, returned AS (
  UPDATE flows f
     SET development_jobs = f.development_jobs - c.development,
         production_jobs = f.production_jobs - c.production,
         returned = f.returned + c.development + c.production
    FROM ${countByEnvironment("attempt")}
   WHERE f.project_no = c.project_no
)
SELECT n::int AS n, attempt, canceled FROM attempt`;

/** `n` is the place among the ordered settlements, from 1. */
export interface SettledRow {
  n: number;
  attempt: number;
  canceled: boolean;
}
