import { FLOW_CLASSES, type FlowClass } from "../domain/flow-class.ts";
import type { Database } from "./database.ts";
import type { NodeKind } from "./nodes.ts";

/** Over all projects and nodes, at one moment. */
export interface CellState {
  permitsInUse: Record<FlowClass, number>;
  /** Of each lane up to DUE_PER_LANE_MAX. */
  webhookDeliveriesDue: number;
  /** Those that are not declared dead; silent ones have not beaten for SILENT_SECONDS. */
  nodes: { kind: NodeKind; alive: number; silent: number }[];
}

/** What is due in the largest backlogs is not counted to its end, which the sum does not need to say that it is large. */
const DUE_PER_LANE_MAX = 1_000;
/** Ten beats. */
const SILENT_SECONDS = 5;

/** The work grows with the projects and with the lanes that ever had a delivery, not with what is owed. */
export async function lookAtCell(db: Database): Promise<CellState> {
  const [row] = await db.run<Row>("look_at_cell", LOOK, []);
  if (row === undefined) throw new Error("a statement of one row brought none");
  return {
    permitsInUse: Object.fromEntries(
      FLOW_CLASSES.map((name, place) => [name, row.in_use[place]]),
    ) as CellState["permitsInUse"],
    webhookDeliveriesDue: row.due,
    nodes: (["worker", "delivery"] as const).map((kind) => ({
      kind,
      alive: row.nodes[`${kind}_alive`],
      silent: row.nodes[`${kind}_silent`],
    })),
  };
}

interface Row {
  in_use: number[];
  due: number;
  nodes: Record<`${NodeKind}_${"alive" | "silent"}`, number>;
}

const LOOK = `
SELECT (SELECT ARRAY[coalesce(sum(development_jobs), 0), coalesce(sum(production_jobs), 0),
                     coalesce(sum(development_webhooks), 0), coalesce(sum(production_webhooks), 0)]::int[]
          FROM flows) AS in_use,
       (SELECT count(*)::int
          FROM lanes l
         CROSS JOIN LATERAL (SELECT
                  FROM open_deliveries o
                 WHERE o.project_no = l.project_no AND o.region = l.region AND o.environment = l.environment
                   AND o.due_at <= now()
                 LIMIT ${DUE_PER_LANE_MAX}) due
         WHERE l.has_deliveries) AS due,
       (SELECT json_build_object(
                 'worker_alive', count(*) FILTER (WHERE kind = 'worker' AND NOT silent),
                 'worker_silent', count(*) FILTER (WHERE kind = 'worker' AND silent),
                 'delivery_alive', count(*) FILTER (WHERE kind = 'delivery' AND NOT silent),
                 'delivery_silent', count(*) FILTER (WHERE kind = 'delivery' AND silent))
          FROM (SELECT kind, seen_at < now() - interval '${SILENT_SECONDS} s' AS silent
                  FROM nodes WHERE NOT dead) n) AS nodes`;
