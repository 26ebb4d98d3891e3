import { column, type Database, epochMs, instant } from "../database/database.ts";

/**
 * How far the roll-up has come. A step reads this first. One statement writes the figures of the step together with the next state, and
 * does nothing if another step was written meanwhile. So each run is counted once, even if a process dies in a step.
 */
export interface Progress {
  /** Counts the steps. */
  revision: number;
  /** The runs that transactions before this one recorded are counted, if they ended since `countedSince`. */
  settledUntil: number;
  countedSince: number;
  /** Jobs whose ids are older than this instant are counted. A second count has corrected those older than `recountedUntil`. */
  createdUntil: number;
  recountedUntil: number;
  /** For each level from 1 on: its buckets before this instant are closed. */
  closedUntil: number[];
  /** The bucket that begins at `closedUntil` is closed for projects up to this number. */
  closedProject: number[];
}

/** The instant up to which the level before is complete, so that buckets of this level can be closed. */
export const completeUntil = ({ recountedUntil, closedUntil }: Progress, level: number): number =>
  level === 1 ? recountedUntil : (closedUntil[level - 2] ?? 0);

/** The state from which a step begins. Instants are milliseconds since 1970 by the database's clock. */
export interface Outset {
  progress: Progress;
  now: number;
  /**
   * Every transaction before this one is over: every later statement sees what these have recorded, and they record
   * nothing more.
   */
  settledBefore: number;
  /** False if the numbers of transactions are those of another Postgres, into which the cell was moved. */
  isSamePostgres: boolean;
}

/** Null if the database has no state of a roll-up, as in a model of the store. */
export async function findOutset(db: Database): Promise<Outset | null> {
  const [row] = await db.run<OutsetRow>("find_insight_progress", FIND, []);
  if (row === undefined) return null;
  return {
    progress: {
      revision: Number(row.revision),
      settledUntil: Number(row.settled_until),
      countedSince: row.counted_since,
      createdUntil: row.created_until,
      recountedUntil: row.recounted_until,
      closedUntil: row.closed_until,
      closedProject: row.closed_project,
    },
    now: row.now,
    settledBefore: Number(row.settled_before),
    isSamePostgres: row.is_same,
  };
}

const FIND = `
SELECT p.revision, p.settled_until, ${epochMs("p.counted_since")} AS counted_since, ${epochMs("p.created_until")} AS created_until,
       ${epochMs("p.recounted_until")} AS recounted_until,
       ARRAY(SELECT ${epochMs("at")} FROM unnest(p.closed_until) WITH ORDINALITY AS c (at, n) ORDER BY n) AS closed_until,
       p.closed_project, p.system_identifier = c.system_identifier AS is_same,
       ${epochMs("now()")} AS now, pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS settled_before
  FROM insight_progress p CROSS JOIN pg_control_system() c`;

interface OutsetRow {
  revision: string;
  settled_until: string;
  counted_since: number;
  created_until: number;
  recounted_until: number;
  closed_until: number[];
  closed_project: number[];
  is_same: boolean;
  now: number;
  settled_before: string;
}

/** The parameters of MOVE_PROGRESS, $1 to $7. */
export const progressValues = (progress: Progress): unknown[] => [
  progress.revision,
  progress.settledUntil,
  new Date(progress.countedSince).toISOString(),
  new Date(progress.createdUntil).toISOString(),
  new Date(progress.recountedUntil).toISOString(),
  column(progress.closedUntil.map(instant)),
  column(progress.closedProject),
];

/** The step from `progress.revision` to the next one: `moved` has no row if another step was written meanwhile. */
export const MOVE_PROGRESS = `moved AS (
  UPDATE insight_progress p
     SET revision = p.revision + 1, settled_until = $2::bigint, counted_since = $3::timestamptz, created_until = $4::timestamptz,
         recounted_until = $5::timestamptz, closed_until = $6::timestamptz[], closed_project = $7::int[],
         system_identifier = c.system_identifier
    FROM pg_control_system() c
   WHERE p.revision = $1::bigint
  RETURNING p.revision
)`;
