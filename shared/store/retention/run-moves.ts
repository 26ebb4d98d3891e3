import { sql } from "drizzle-orm";
import type { ProjectNo } from "../../domain/scope.ts";
import { ALL_ENDED_RUN_STATUSES, ALL_ENVIRONMENTS } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { runMoves } from "../database/schema/history.ts";
import { RETENTION_LOCK } from "./retention.ts";

/**
 * Runs stand in the retention class that their project had when they ended. After an upgrade those of before must not
 * be dropped with the class that they are in: the project is noted together with its plan, and a duty moves them. After a
 * downgrade they stay where they are: what is too old is not shown, and goes with the longer class.
 */

/** A project whose runs are to be in a longer class than some of them are. */
export interface RunMove {
  projectNo: ProjectNo;
  retentionClass: number;
  /** As Postgres prints it, to the microsecond: it tells one note from the next. */
  notedAt: string;
  /** Nothing is written any more into the classes of before. */
  isSettled: boolean;
}

/**
 * A run is written in the class of its flow. A settlement has that row locked, so it ends before the plan changes or
 * writes into the new class; a cancel has not, and may write into the old one until its statement times out. An upgrade's
 * own transaction is over by then as well.
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

/** Moves up to so many runs of the project; answers how many. Null while another process changes where runs stand. */
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

/** Ends a move of which nothing is left, unless the project has been noted again since. */
export async function endRunMove(db: Database, move: RunMove): Promise<void> {
  await db.run("end_run_move", "DELETE FROM run_moves WHERE project_no = $1 AND noted_at = $2", [
    move.projectNo,
    move.notedAt,
  ]);
}
