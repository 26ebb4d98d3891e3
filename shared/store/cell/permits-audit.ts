import { FLOW_CLASSES } from "../../domain/flow-class.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import type { Database } from "../database/database.ts";

/** A project whose permits in use differ from what it has on the wire, by class in the order of FLOW_CLASSES. */
export interface MiscountedFlow {
  projectNo: ProjectNo;
  inUse: number[];
  onWire: number[];
}

const LISTED_MAX = 100;

/**
 * Lists projects with miscounted permits. One snapshot is read, in which a change under way does not look like a fault.
 * The work grows with the projects and the attempts on the wire.
 */
export async function listMiscountedFlows(db: Database): Promise<MiscountedFlow[]> {
  const rows = await db.run<{ project_no: number; in_use: number[]; on_wire: number[] }>(
    "list_miscounted_flows",
    LIST,
    [LISTED_MAX],
  );
  return rows.map(({ project_no, in_use, on_wire }) => ({
    projectNo: project_no,
    inUse: in_use,
    onWire: on_wire,
  }));
}

const ON_WIRE = FLOW_CLASSES.map((_, code) => `count(*) FILTER (WHERE class = ${code})`).join(", ");

const LIST = `
WITH wire AS MATERIALIZED (
  SELECT project_no, environment AS class FROM (SELECT * FROM open_jobs WHERE run_id IS NOT NULL OFFSET 0) o
   WHERE node_id IS NOT NULL
  UNION ALL
  SELECT project_no, environment + 2 FROM open_deliveries WHERE node_id IS NOT NULL
), counted AS MATERIALIZED (
  SELECT project_no, ARRAY[${ON_WIRE}]::int[] AS on_wire
    FROM wire GROUP BY project_no
), flow AS MATERIALIZED (
  SELECT project_no, ARRAY[development_jobs, production_jobs, development_webhooks, production_webhooks] AS in_use
    FROM flows
   WHERE development_jobs <> 0 OR production_jobs <> 0 OR development_webhooks <> 0 OR production_webhooks <> 0
)
SELECT project_no, coalesce(f.in_use, '{0,0,0,0}') AS in_use, coalesce(c.on_wire, '{0,0,0,0}') AS on_wire
  FROM flow f FULL JOIN counted c USING (project_no)
 WHERE f.in_use IS DISTINCT FROM c.on_wire
 LIMIT $1`;
