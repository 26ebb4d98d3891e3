import type { ProjectNo } from "../../domain/scope.ts";
import type { Database } from "../database/database.ts";
import { type CalledRow, readCalled } from "./called.ts";
import type { OnCalled } from "./claim.ts";

/**
 * How the rows of gate_calls (gate-calls.ts) are taken, a few gates at a time. A gate may have some hundred attempts to call, and one
 * statement must end in time whatever the rows ask for. So projects take turns, gate by gate, and no project's rows hide another's.
 */

/** How many projects one statement looks at, and how many rows of each. */
const PROJECTS_MAX = 20;
const ROWS_MAX = 500;

const IS_OF = { keys: "gate NOT LIKE 'h%'", hosts: "gate LIKE 'h%'" };

/**
 * Takes rows of flow keys or of hosts that other nodes have not taken, as `taken`, of `gatesMax` gates at most. A gate for which
 * `isDear` is true of a row (c) is taken alone. $1 is the project behind which to begin. It stands first, behind WITH RECURSIVE.
 *
 * The planner must take a project's first rows by the index over its project and id, whatever it knows of the table. So $2 is
 * ROWS_MAX: if the number stood in the text, the planner could read all rows of a project and sort them. And the project is compared
 * with an array: if it were compared with `p.no`, the planner could order by the id alone and read the rows of all projects.
 */
export const takeCalls = (
  kind: keyof typeof IS_OF,
  { gatesMax, isDear = "false" }: { gatesMax: number; isDear?: string },
): string => `project AS (
  (SELECT project_no AS no, 1 AS place FROM gate_calls WHERE ${IS_OF[kind]} AND project_no > $1 ORDER BY project_no LIMIT 1)
   UNION ALL
  SELECT n.no, p.place + 1
    FROM project p
   CROSS JOIN LATERAL (SELECT c.project_no AS no FROM gate_calls c WHERE ${IS_OF[kind]} AND c.project_no > p.no ORDER BY c.project_no LIMIT 1) n
   WHERE p.place < ${PROJECTS_MAX}
), seen AS MATERIALIZED (
  SELECT c.id, c.project_no, c.environment, substr(c.gate, 2) AS name, ${isDear} AS is_dear
    FROM project p
   CROSS JOIN LATERAL (
         SELECT * FROM gate_calls c WHERE ${IS_OF[kind]} AND c.project_no = ANY (ARRAY[p.no]) ORDER BY c.project_no, c.id LIMIT $2) c
), chosen AS MATERIALIZED (
  SELECT ids
    FROM (SELECT ids, sum(weight) OVER (ORDER BY turn, ids[1]) AS total
            FROM (SELECT array_agg(id ORDER BY id) AS ids, CASE WHEN bool_or(is_dear) THEN ${gatesMax} ELSE 1 END AS weight,
                         row_number() OVER (PARTITION BY project_no ORDER BY min(id)) AS turn
                    FROM seen GROUP BY project_no, environment, name) g) weighed
   WHERE total <= ${gatesMax}
), taken AS MATERIALIZED (
  DELETE FROM gate_calls
   WHERE id = ANY (ARRAY (SELECT c.id FROM gate_calls c WHERE c.id = ANY (ARRAY (SELECT unnest(ids) FROM chosen))
                           ORDER BY c.id FOR UPDATE SKIP LOCKED))
  RETURNING *
)`;

/** Columns of the answer: the project behind which the next statement begins (null after the last), and whether rows are left. */
export const LEFT_CALLS = `(SELECT max(no) FILTER (WHERE place = ${PROJECTS_MAX}) FROM project) AS next_after,
       EXISTS (SELECT FROM taken)
       AND ((SELECT count(*) FROM seen) > (SELECT sum(cardinality(ids)) FROM chosen)
            OR EXISTS (SELECT FROM seen GROUP BY project_no HAVING count(*) >= $2)) AS is_more_left`;

interface EmptiedRow {
  next_after: ProjectNo | null;
  is_more_left: boolean;
  called: CalledRow[] | null;
}

/** Once this much time has passed, no further walk over the projects begins. A client may make rows faster than they are taken. */
const EMPTYING_MS_MAX = 1_000;

/**
 * Runs such a statement, project by project, until no rows are left but those that another node has taken. If that takes long, it ends
 * after a walk over all projects, so that calls of the other kind have their turn.
 */
export async function emptyCalls(
  db: Database,
  name: string,
  text: string,
  onCalled: OnCalled,
): Promise<void> {
  const endBy = performance.now() + EMPTYING_MS_MAX;
  let isMoreLeft = false;
  for (let after: ProjectNo | null = 0; after !== null; ) {
    const rows: EmptiedRow[] = await db.run<EmptiedRow>(name, text, [after, ROWS_MAX]);
    for (const { called, is_more_left, next_after } of rows) {
      if (called !== null) onCalled(called.flatMap(readCalled));
      isMoreLeft ||= is_more_left;
      after = next_after;
    }
    if (after !== null || !isMoreLeft || performance.now() > endBy) continue;
    after = 0;
    isMoreLeft = false;
  }
}
