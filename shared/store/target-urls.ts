import { idToUuid } from "../domain/ids.ts";
import type { Environment, ProjectNo, Region } from "../domain/scope.ts";
import { environmentCode, regionCode } from "./codes.ts";
import { column, type Database } from "./database.ts";

export interface JobPlace {
  projectNo: ProjectNo;
  environment: Environment;
  region: Region;
  jobId: string;
}

/** Where jobs lead, in their order; null for one that does not exist. It never changes. */
export async function findTargetUrls(db: Database, jobs: readonly JobPlace[]): Promise<(string | null)[]> {
  const rows = await db.run<{ target_url: string | null }>("find_target_urls", FIND, [
    column(jobs.map((job) => job.projectNo)),
    column(jobs.map((job) => environmentCode(job.environment))),
    column(jobs.map((job) => regionCode(job.region))),
    column(jobs.map((job) => idToUuid(job.jobId))),
  ]);
  return rows.map((row) => row.target_url);
}

const FIND = `
SELECT (SELECT j.target_url FROM jobs j
         WHERE j.project_no = i.project_no AND j.environment = i.environment AND j.region = i.region AND j.id = i.job_id)
  FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::uuid[])
       WITH ORDINALITY AS i (project_no, environment, region, job_id, n)
 ORDER BY i.n`;
