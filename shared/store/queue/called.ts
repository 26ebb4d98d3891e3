import { JOB_PREFIX, uuidToId } from "../../domain/ids.ts";
import { type OwedAttempt, oweAttempt, type Placed } from "../../domain/owed.ts";
import { environmentOf, regionOf } from "../database/codes.ts";

/** An attempt that a statement called to its lane: project, environment, region, shard, job, attempt, and when it is due. */
export type CalledRow = [
  projectNo: number,
  environment: number,
  region: number,
  shard: number,
  jobId: string,
  attempt: number,
  dueAt: number,
];

export function readCalled([
  projectNo,
  environment,
  region,
  shard,
  jobId,
  attempt,
  dueAt,
]: CalledRow): Placed<OwedAttempt>[] {
  const place = { projectNo, environment: environmentOf(environment), region: regionOf(region), shard };
  return oweAttempt("jobs", place, { id: uuidToId(JOB_PREFIX, jobId), attempt, dueAt, isGated: true });
}
