import { idToUuid } from "../../domain/ids.ts";
import type { Environment, ProjectNo, Region } from "../../domain/scope.ts";
import { environmentCode, regionCode } from "../database/codes.ts";
import { column, type Database } from "../database/database.ts";

/** An owed job or delivery, by its id. */
export interface OwedPlace {
  projectNo: ProjectNo;
  environment: Environment;
  region: Region;
  id: string;
}

/** The target URLs of jobs, in their order; null for a job that does not exist. A job's URL never changes. */
export async function findTargetUrls(db: Database, jobs: readonly OwedPlace[]): Promise<(string | null)[]> {
  return findUrls(db, "find_target_urls", FIND_OF_JOBS, jobs);
}

/** The present URLs of the endpoints of deliveries, in their order; null for a delivery that is not owed. */
export async function findEndpointUrls(
  db: Database,
  deliveries: readonly OwedPlace[],
): Promise<(string | null)[]> {
  return findUrls(db, "find_endpoint_urls", FIND_OF_DELIVERIES, deliveries);
}

async function findUrls(
  db: Database,
  name: string,
  text: string,
  places: readonly OwedPlace[],
): Promise<(string | null)[]> {
  const rows = await db.run<{ url: string | null }>(name, text, [
    column(places.map((place) => place.projectNo)),
    column(places.map((place) => environmentCode(place.environment))),
    column(places.map((place) => regionCode(place.region))),
    column(places.map((place) => idToUuid(place.id))),
  ]);
  return rows.map((row) => row.url);
}

const find = (url: string) => `
SELECT (${url}) AS url
  FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::uuid[])
       WITH ORDINALITY AS i (project_no, environment, region, id, n)
 ORDER BY i.n`;

const FIND_OF_JOBS = find(`
  SELECT j.target_url FROM jobs j
   WHERE j.project_no = i.project_no AND j.environment = i.environment AND j.region = i.region AND j.id = i.id`);

const FIND_OF_DELIVERIES = find(`
  SELECT w.url FROM open_deliveries o
    LEFT JOIN webhooks w ON w.project_no = o.project_no AND w.environment = o.environment AND w.id = o.webhook_id
   WHERE o.project_no = i.project_no AND o.environment = i.environment AND o.region = i.region AND o.id = i.id`);
