import { idToUuid, PROJECT_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { Region } from "../../domain/scope.ts";
import { regionCode, regionOf } from "../database/codes.ts";
import { column, type Database } from "../database/database.ts";
import type { OperatorCause } from "../resources/audit.ts";

/**
 * A hold on a region or a project: due attempts of its jobs and deliveries, retries by hand included, stay owed and are
 * not claimed. The claim itself reads the holds, so an answered hold binds every claim that begins after it. Attempts
 * on the wire go on to their end.
 */

export interface HeldRegion {
  region: Region;
  heldAt: number;
  /** True if the cell itself holds the region because it found its database restored (restored.ts). */
  isRestored: boolean;
}

/** The regions in which nothing is sent. */
export async function listHeldRegions(db: Database): Promise<HeldRegion[]> {
  const rows = await db.run<{ region: number; held_at: number; restored: boolean }>(
    "list_held_regions",
    "SELECT region, (extract(epoch FROM held_at) * 1000)::float8 AS held_at, restored FROM held_regions ORDER BY region",
    [],
  );
  return rows.map((row) => ({
    region: regionOf(row.region),
    heldAt: row.held_at,
    isRestored: row.restored,
  }));
}

/** Holds regions, or resumes them. Answers the regions for which that was a change. */
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

/** Holds one project, or resumes it. False if the project does not exist. A repeated call changes nothing. */
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

/** The ids of the held projects. */
export async function listHeldProjects(db: Database): Promise<string[]> {
  const rows = await db.run<{ id: string }>(
    "list_held_projects",
    "SELECT p.id FROM flows f JOIN projects p ON p.no = f.project_no WHERE f.held ORDER BY p.no",
    [],
  );
  return rows.map(({ id }) => uuidToId(PROJECT_PREFIX, id));
}
