import type { FailedRun } from "../../domain/insights/failure.ts";
import { addRunsToHost, type RunGroup } from "../../domain/insights/figures.ts";
import { bucketStart } from "../../domain/insights/levels.ts";
import { UNSENT_RUN_ERROR } from "../../domain/run.ts";
import { hostOfTarget } from "../../domain/target.ts";
import { ALL_REGIONS, endedStatusCode, runStatusCode, runStatusOf, waitReasonOf } from "../database/codes.ts";
import { type Database, epochMs } from "../database/database.ts";
import type { Parts } from "./parts.ts";
import type { Progress } from "./progress.ts";

/** So much of an error is read, which is enough to tell its kind. */
const ERROR_CHARACTERS = 300;

/**
 * Adds the runs that transactions from `fromXid` on and before `beforeXid` recorded, if they ended since `progress.countedSince`, each
 * to the minute in which it ended. All these transactions are over. Answers how many runs it added.
 */
export async function addNewRuns(
  db: Database,
  parts: Parts,
  progress: Progress,
  { fromXid, beforeXid }: { fromXid: number; beforeXid: number },
): Promise<number> {
  const rows = await db.run<GroupRow>("find_new_runs", FIND_NEW_RUNS, [
    fromXid,
    beforeXid,
    new Date(progress.countedSince).toISOString(),
  ]);
  const hosts = new Map<string, string>();
  let runCount = 0;
  for (const row of rows) {
    const group = readGroup(row, hosts);
    runCount += group.count;
    const { project_no: projectNo, environment, region } = row;
    const key = { projectNo, environment, region, at: bucketStart(0, row.minute * 60_000) };
    for (const { figures, hosts } of parts.ofMinute(key, progress)) {
      figures.addRuns(group);
      addRunsToHost(hosts, group);
    }
  }
  return runCount;
}

const FAILED = runStatusCode("failed");
/** A run that was never sent ended when its job was canceled. */
const ENDED_AT = `coalesce(
           CASE WHEN r.status = ${FAILED} AND r.error = '${UNSENT_RUN_ERROR}' THEN (
             SELECT e.ended_at FROM ended_jobs e
              WHERE e.project_no = r.project_no AND e.environment = r.environment AND e.status = ${endedStatusCode("canceled")}
                AND e.region = j.region AND e.job_id = r.job_id) END,
           r.started_at + r.duration_ms * interval '1 ms')`;
const joined = (values: string, condition: string) =>
  `coalesce(array_to_string(array_agg(${values}) FILTER (WHERE ${condition}), ','), '')`;

// A job never leaves its table, and the region of a run is that of its job. LIMIT keeps the planner from beginning with the jobs.
const FIND_NEW_RUNS = `
SELECT project_no, environment, region, minute, origin, status, response_status, error, count(*)::int AS count,
       ${joined("late_ms", "held_for IS NULL")} AS late, ${joined("late_ms", "held_for IS NOT NULL")} AS late_waited,
       ${joined("held_for", "held_for IS NOT NULL")} AS waited_for, ${joined("duration_ms", "true")} AS durations
  FROM (SELECT r.project_no, r.environment, j.region, floor(${epochMs(ENDED_AT)} / 60000) AS minute, split_part(j.target_url, '/', 3) AS origin,
               r.status, r.response_status, r.late_ms, r.held_for, r.duration_ms,
               CASE WHEN r.status = ${FAILED} AND r.response_status IS NULL THEN left(r.error, ${ERROR_CHARACTERS}) END AS error
          FROM runs r
         CROSS JOIN LATERAL (
               SELECT j.region, j.target_url FROM jobs j
                WHERE j.project_no = r.project_no AND j.environment = r.environment AND j.region = ANY (${ALL_REGIONS}) AND j.id = r.job_id
                LIMIT 1) j
         WHERE r.settled_in >= $1::bigint AND r.settled_in < $2::bigint AND ${ENDED_AT} >= $3::timestamptz) run
 GROUP BY project_no, environment, region, minute, origin, status, response_status, error`;

interface GroupRow {
  project_no: number;
  environment: number;
  region: number;
  /** Minutes since 1970. */
  minute: number;
  /** The text between the URL's second and third slash. */
  origin: string;
  status: number;
  response_status: number | null;
  error: string | null;
  count: number;
  /** Numbers with commas between them. */
  late: string;
  late_waited: string;
  waited_for: string;
  durations: string;
}

function readGroup(row: GroupRow, hosts: Map<string, string>): RunGroup {
  const status = runStatusOf(row.status) as FailedRun["status"] | "succeeded";
  const { response_status: responseStatus, error, count } = row;
  let host = hosts.get(row.origin);
  if (host === undefined) {
    host = hostOfTarget(`https://${row.origin}`);
    hosts.set(row.origin, host);
  }
  return {
    host,
    count,
    end: status === "succeeded" ? { status } : { status, responseStatus, error },
    late: numbersOf(row.late),
    lateWaited: numbersOf(row.late_waited),
    waitedFor: numbersOf(row.waited_for).map(waitReasonOf),
    // A run that was never sent has no duration.
    durations: error === UNSENT_RUN_ERROR ? [] : numbersOf(row.durations),
  };
}

const numbersOf = (text: string): number[] => (text === "" ? [] : text.split(",").map(Number));
