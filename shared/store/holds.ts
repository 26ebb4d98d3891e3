import { idToUuid, PROJECT_PREFIX, uuidToId } from "../domain/ids.ts";
import { REGIONS, type Region } from "../domain/scope.ts";
import type { OperatorCause } from "./audit.ts";
import { regionCode, regionOf } from "./codes.ts";
import { column, type Database } from "./database.ts";

/**
 * What is held: due attempts stay owed and are not claimed, those of jobs and of deliveries, retries by hand included.
 * The claim itself looks, so a hold that was answered binds every claim that begins after it. What is on the wire ends.
 */

/** The regions in which nothing is sent. */
export async function listHeldRegions(db: Database): Promise<{ region: Region; heldAt: number }[]> {
  const rows = await db.run<{ region: number; held_at: number }>(
    "list_held_regions",
    "SELECT region, (extract(epoch FROM held_at) * 1000)::float8 AS held_at FROM held_regions ORDER BY region",
    [],
  );
  return rows.map((row) => ({ region: regionOf(row.region), heldAt: row.held_at }));
}

/** Holds regions, or lets them go on. Answers those for which that was a change. */
export async function setRegionsHeld(
  db: Database,
  regions: readonly Region[],
  held: boolean,
  cause: OperatorCause,
): Promise<Region[]> {
  const rows = await db.run<{ region: number }>(
    held ? "hold_regions" : "resume_regions",
    held ? HOLD_REGIONS : RESUME_REGIONS,
    [
      column(regions.map(regionCode)),
      idToUuid(cause.requestId),
      cause.operator,
      held ? "region.hold" : "region.resume",
      regions.join(","),
    ],
  );
  return rows.map((row) => regionOf(row.region));
}

const audited = (change: string) => `
WITH changed AS (${change} RETURNING region
), audited AS (
  INSERT INTO audit_entries (id, operator, action, subject) SELECT $2, $3, $4, $5 WHERE EXISTS (SELECT FROM changed)
)
SELECT region FROM changed ORDER BY region`;
const HOLD_REGIONS = audited(
  "INSERT INTO held_regions (region) SELECT unnest($1::smallint[]) ON CONFLICT DO NOTHING",
);
const RESUME_REGIONS = audited("DELETE FROM held_regions WHERE region = ANY ($1::smallint[])");

/** Holds one project, or lets it go on. False if there is none of that id; to say it again changes nothing. */
export async function setProjectHeld(
  db: Database,
  id: string,
  held: boolean,
  cause: OperatorCause,
): Promise<boolean> {
  const rows = await db.run("set_project_held", SET_PROJECT_HELD, [
    idToUuid(id),
    held,
    idToUuid(cause.requestId),
    cause.operator,
    held ? "project.hold" : "project.resume",
    id,
  ]);
  return rows.length === 1;
}

const SET_PROJECT_HELD = `
WITH changed AS (
  UPDATE flows f SET held = $2 FROM projects p WHERE p.id = $1 AND f.project_no = p.no AND f.held <> $2
  RETURNING f.project_no
), audited AS (
  INSERT INTO audit_entries (id, project_no, operator, action, subject) SELECT $3, project_no, $4, $5, $6 FROM changed
)
SELECT FROM projects WHERE id = $1`;

/** The projects that are held, by their ids. */
export async function listHeldProjects(db: Database): Promise<string[]> {
  const rows = await db.run<{ id: string }>(
    "list_held_projects",
    "SELECT p.id FROM flows f JOIN projects p ON p.no = f.project_no WHERE f.held ORDER BY p.no",
    [],
  );
  return rows.map(({ id }) => uuidToId(PROJECT_PREFIX, id));
}

/** Backups are restored for longer than a failover lasts: nodes that beat within this time were at work in what went on. */
const FAILOVER_MINUTES_MAX = 5;

/**
 * Whoever joins the cell asks this before it does, and workers ask it again while they work, so that a failover is noted
 * while it is known to be one. If this Postgres is another than the one in which the cell was last at work, it was
 * restored from a backup: what happened since the backup is not known here, so every region is held, and an operator lets
 * it go on. Another system identifier proves a restored dump. A new timeline is that of a failover or of a recovery to an
 * earlier time; after a failover nodes have beaten just before. What looks the same in all of this is not told apart: a
 * copy of the disk, a recovery to a moment ago.
 */
export async function holdIfRestored(db: Database): Promise<boolean> {
  const [row] = await db.run<{ restored: boolean }>("hold_if_restored", HOLD_IF_RESTORED, [
    column(REGIONS.map(regionCode)),
  ]);
  return row?.restored ?? false;
}

const HOLD_IF_RESTORED = `
WITH here AS MATERIALIZED (
  -- The timeline that is written now; the control file has that of the last checkpoint.
  SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int AS timeline
    FROM pg_control_system()
), known AS MATERIALIZED (
  SELECT system_identifier, timeline FROM cell FOR NO KEY UPDATE
), restored AS MATERIALIZED (
  SELECT h.timeline
    FROM here h, known k
   WHERE h.system_identifier <> k.system_identifier
      OR h.timeline <> k.timeline
         AND NOT EXISTS (SELECT FROM nodes WHERE seen_at > now() - interval '${FAILOVER_MINUTES_MAX} min')
), noted AS (
  INSERT INTO cell AS c (system_identifier, timeline) SELECT system_identifier, timeline FROM here
      ON CONFLICT (one) DO UPDATE SET system_identifier = excluded.system_identifier, timeline = excluded.timeline
   WHERE (c.system_identifier, c.timeline) <> (excluded.system_identifier, excluded.timeline)
), held AS (
  INSERT INTO held_regions (region) SELECT unnest($1::smallint[]) WHERE EXISTS (SELECT FROM restored)
      ON CONFLICT DO NOTHING
)
SELECT EXISTS (SELECT FROM restored) AS restored`;
