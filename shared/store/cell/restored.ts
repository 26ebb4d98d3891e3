import { REGIONS } from "../../domain/scope.ts";
import { regionCode } from "../database/codes.ts";
import { column, type Database } from "../database/database.ts";

/**
 * Recognises a Postgres that was restored from a backup. A restored Postgres lacks the writes since the backup, so
 * every region is held until an operator resumes it.
 *
 * A start or a failover may find another Postgres (server, timeline or database) than the one that was noted. The nodes
 * at work then decide. A node knows how many of its beats were answered. If all of them are still there, no answered
 * write is missing, and the node notes the new Postgres with its next beat (beatNode). If no node at work notes it, the
 * cell is held. A node that misses beats proves a restore by itself, even if the Postgres looks the same.
 *
 * Two cases are not recognised: a copy of the disk, which is on the timeline of its origin, if every node was started
 * anew; and the loss of writes between the last beat and a failure, less than a second.
 */

const COLUMNS = "system_identifier, timeline, database_oid";

/** The Postgres that answers this query. */
const HERE = `
  SELECT system_identifier,
         -- The timeline that is written now; the control file names that of the last checkpoint.
         ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int AS timeline,
         (SELECT d.oid::bigint FROM pg_database d WHERE d.datname = current_database()) AS database_oid
    FROM pg_control_system()`;

/** True if the noted Postgres (c) is another one than this (h). The oldest notes do not name the database. */
const IS_OTHER = `(c.system_identifier, c.timeline, coalesce(c.database_oid, h.database_oid))
               <> (h.system_identifier, h.timeline, h.database_oid)`;

/**
 * Notes this Postgres as the one that the cell uses, if the query `when` finds a row. The statement inserts nothing if
 * this one is noted already: a conflict would lock the row, and every node's beat would wait for the beat before it.
 */
export const noteHere = (when: string): string => `
  INSERT INTO cell AS c (${COLUMNS})
  SELECT h.* FROM (${HERE}) h
   WHERE EXISTS (${when})
     AND NOT EXISTS (SELECT FROM cell n WHERE (n.system_identifier, n.timeline, n.database_oid)
                                            = (h.system_identifier, h.timeline, h.database_oid))
      ON CONFLICT (one) DO UPDATE
     SET system_identifier = excluded.system_identifier, timeline = excluded.timeline, database_oid = excluded.database_oid`;

/** True if the cell last used this Postgres. A cell that has used none yet notes this one. */
export async function isNoted(db: Database): Promise<boolean> {
  const [row] = await db.run<{ is_noted: boolean }>("is_noted", IS_NOTED, []);
  return row?.is_noted ?? false;
}

const IS_NOTED = `
WITH here AS MATERIALIZED (${HERE}), first AS (
  INSERT INTO cell (${COLUMNS}) SELECT ${COLUMNS} FROM here ON CONFLICT DO NOTHING
)
SELECT NOT EXISTS (SELECT FROM cell c, here h WHERE ${IS_OTHER}) AS is_noted`;

/**
 * Holds every region, and notes this Postgres, if it is another one than was noted or is proved to be restored. True
 * for the call that held the regions.
 */
export async function holdIfRestored(
  db: Database,
  { isProved }: { isProved: boolean } = { isProved: false },
): Promise<boolean> {
  const values = [column(REGIONS.map(regionCode)), isProved];
  const [row] = await db.run<{ restored: boolean }>("hold_if_restored", HOLD_IF_RESTORED, values);
  return row?.restored ?? false;
}

const HOLD_IF_RESTORED = `
WITH here AS MATERIALIZED (${HERE}), noted AS MATERIALIZED (
  SELECT * FROM cell FOR NO KEY UPDATE
), restored AS MATERIALIZED (
  SELECT FROM here h, noted c WHERE $2 OR ${IS_OTHER}
), renoted AS (${noteHere("SELECT FROM restored")}
), held AS (
  INSERT INTO held_regions (region, restored) SELECT unnest($1::smallint[]), true WHERE EXISTS (SELECT FROM restored)
      ON CONFLICT (region) DO UPDATE SET restored = true
)
SELECT EXISTS (SELECT FROM restored) AS restored`;
