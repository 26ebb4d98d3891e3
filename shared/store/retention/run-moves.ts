import { sql } from "drizzle-orm";
import type { ProjectNo } from "../../domain/scope.ts";
import { ALL_ENDED_RUN_STATUSES, ALL_ENVIRONMENTS } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { runMoves } from "../database/schema/history.ts";
import { RETENTION_LOCK } from "./retention.ts";

/**
 * A run is stored in the retention class that its project had when the run ended. After an upgrade the earlier runs
 * must outlive the drop of their class: the project is noted together with its plan, and a duty moves the runs. After a
 * downgrade runs stay where they are: the ones too old are not shown, and are dropped with the longer class.
 */

/** A project some of whose runs have to move to a longer class. */
export interface RunMove {
  projectNo: ProjectNo;
  retentionClass: number;
  /** As Postgres prints it, to the microsecond: it identifies the note. */
  notedAt: string;
  /** True once nothing can be written into the earlier classes any more. */
  isSettled: boolean;
}

/**
 * A run is written in the class of its flow. A settlement locks the flow, so it ends before the plan changes or writes
 * into the new class. A cancel does not lock the flow, and may write into the old class until its statement times out.
 * The upgrade's own transaction has ended by then as well.
 */
const SETTLED_AFTER = "interval '60 s'";

/** Notes a project within the transaction that gives it a longer retention. */
export async function noteRunMove(
  tx: Pick<Database["drizzle"], "insert">,
  projectNo: ProjectNo,
): Promise<void> {
  const notedAt = sql`clock_timestamp()`;
  await tx
    .insert(runMoves)
    .values({ projectNo, notedAt })
    .onConflictDoUpdate({ target: runMoves.projectNo, set: { notedAt } });
}

/** The projects that were noted first. */
export async function listRunMoves(db: Database, limit: number): Promise<RunMove[]> {
  const rows = await db.run<MoveRow>("list_run_moves", LIST, [limit]);
  return rows.map((row) => ({
    projectNo: row.project_no,
    retentionClass: row.retention_class,
    notedAt: row.noted_at,
    isSettled: row.is_settled,
  }));
}

const LIST = `
SELECT m.project_no, f.retention_class, m.noted_at::text AS noted_at,
       m.noted_at < clock_timestamp() - ${SETTLED_AFTER} AS is_settled
  FROM run_moves m JOIN flows f USING (project_no)
 ORDER BY m.noted_at LIMIT $1`;

interface MoveRow {
  project_no: number;
  retention_class: number;
  noted_at: string;
  is_settled: boolean;
}

/** Moves up to `limit` runs of the project. Answers how many; null while another process changes where runs are stored. */
export async function moveRuns(db: Database, move: RunMove, limit: number): Promise<number | null> {
  const [row] = await db.run<{ is_mine: boolean; moved: number }>("move_runs", MOVE, [
    move.projectNo,
    move.retentionClass,
    limit,
  ]);
  return row?.is_mine ? row.moved : null;
}

const MOVE = `
WITH turn AS MATERIALIZED (
  SELECT pg_try_advisory_xact_lock(${RETENTION_LOCK}) AS is_mine
), batch AS MATERIALIZED (
  SELECT retention_class, environment, status, id FROM runs
   WHERE (SELECT is_mine FROM turn)
     AND retention_class < $2 AND project_no = $1 AND environment = ANY (${ALL_ENVIRONMENTS})
     AND status = ANY (${ALL_ENDED_RUN_STATUSES})
   LIMIT $3
), moved AS (
  UPDATE runs r SET retention_class = $2
    FROM batch b
   WHERE r.retention_class = b.retention_class AND r.project_no = $1 AND r.environment = b.environment
     AND r.status = b.status AND r.id = b.id
  RETURNING 1
)
SELECT is_mine, (SELECT count(*)::int FROM moved) AS moved FROM turn`;

/** Ends a move that has no runs left, unless the project has been noted again since. */
export async function endRunMove(db: Database, move: RunMove): Promise<void> {
  await db.run("end_run_move", "DELETE FROM run_moves WHERE project_no = $1 AND noted_at = $2", [
    move.projectNo,
    move.notedAt,
  ]);
}
