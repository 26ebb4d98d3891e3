import type { Flow } from "../../../../shared/domain/flow-key.ts";
import { flowColumns, giveFlows } from "./flow-keys.ts";
import {
  type Instant,
  instants,
  monthOf,
  numbers,
  numbersOrNull,
  texts,
  textsOrNull,
  toMs,
} from "./parameters.ts";
import { clearsInMs, freeForAny, runsLeft } from "./permits.ts";
import {
  type FlowRow,
  type JobRow,
  type LaneRow,
  laneKey,
  rowAt,
  type Statement,
  type Tables,
} from "./tables.ts";
import { tagJob } from "./tags.ts";

/** createJobs by its long way and by its short way (shared/store/resources/job-creation.ts, ordinary-creation.ts). */

/** Reads the first 13 parameters of each statement. Tags, flows and schedules have one more parameter each where a job may have any. */
function readJobs(
  values: readonly unknown[],
  tagsOf?: unknown,
  flowsOf?: unknown,
  schedulesOf?: unknown,
): JobRow[] {
  const projects = numbers(values[0]);
  const [environments, regions, ids] = [numbers(values[1]), numbers(values[2]), texts(values[3])];
  const [targetUrls, payloads, runAts] = [texts(values[4]), texts(values[5]), instants(values[6])];
  const [maxAttempts, bases, caps] = [numbers(values[7]), numbers(values[8]), numbers(values[9])];
  const schedules = textsOrNull(schedulesOf ?? null, ids.length);
  const tags = textsOrNull(tagsOf ?? null, ids.length);
  const flows = textsOrNull(flowsOf ?? null, ids.length).map((text) => text && (JSON.parse(text) as Flow));
  return ids.map((id, index) => ({
    id,
    project_no: projects[index] as number,
    environment: environments[index] as number,
    region: regions[index] as number,
    target_url: targetUrls[index] as string,
    payload: payloads[index] as string,
    run_at: runAts[index] as Instant,
    max_attempts: maxAttempts[index] as number,
    base_seconds: bases[index] as number,
    cap_seconds: caps[index] as number,
    schedule_id: schedules[index] ?? null,
    tags: tags[index]?.slice(1, -1).replaceAll('"', "").split(",") ?? null,
    flow: flows[index] || null,
  }));
}

/** Adds a job and its first attempt, unless the job exists. Its flow key may keep the attempt back (giveFlows). */
export function addJob(tables: Tables, job: JobRow, now: Instant, parked?: ReadonlySet<string>): void {
  if (tables.jobs.has(job.id)) return;
  const { id, project_no, environment, region, schedule_id, tags } = job;
  const dueAt = Math.max(job.run_at, now);
  tables.jobs.set(id, job);
  tagJob(tables, job);
  tables.open_jobs.set(id, {
    ...{ id, project_no, environment, region },
    attempt: 1,
    attempts_allowed: job.max_attempts,
    due_at: parked?.has(id) ? null : dueAt,
    canceled: false,
    run_id: null,
    node_id: null,
    started_at: null,
    parked_host: null,
    ...{ schedule_id, tags, ...flowColumns(job.flow, dueAt) },
  });
}

/** Adds the lane if it is missing, and moves it if it has another shard. */
export function addLane(
  tables: Tables,
  place: Pick<LaneRow, "project_no" | "environment" | "region">,
  shard: number,
) {
  const lane = tables.lanes.get(laneKey(place));
  if (lane !== undefined) lane.shard = shard;
  else {
    const { project_no, environment, region } = place;
    tables.lanes.set(laneKey(place), { project_no, environment, region, shard, has_deliveries: false });
  }
}

export function hasQuota(tables: Tables, projectNo: number, now: Instant): boolean {
  const flow = tables.flows.get(projectNo);
  return flow !== undefined && (runsLeft(flow, monthOf(now)) ?? 1) > 0;
}

const permitsOf = (tables: Tables, projectNo: number, now: Instant): number | null =>
  freeForAny(tables.flows.get(projectNo) as FlowRow, now);

export const createJobs: Statement = (tables, { now }, values) => {
  const jobs = readJobs(values, values[15], values[16], values[13]);
  const newShards = numbersOrNull(values[14], jobs.length);
  const isThere = (job: JobRow) => rowAt(tables.jobs, job, job.id) !== undefined;
  const judged = jobs
    .map((job, index) => ({ job, shard: newShards[index] ?? null }))
    .filter(({ job }) => tables.flows.has(job.project_no))
    .map(({ job, shard }) => {
      const created = hasQuota(tables, job.project_no, now) || isThere(job);
      return { job, created, isNew: created && !isThere(job), shard };
    });
  const coming = judged.flatMap(({ job, isNew }) => (isNew ? [job] : []));
  const parked = giveFlows(tables, now, coming, () => true);
  return judged.map(({ job, created, shard }) => {
    if (created) {
      addJob(tables, job, now, parked);
      if (shard !== null) addLane(tables, job, shard);
    }
    const due_at = toMs(Math.max(job.run_at, now));
    const clears_in_ms = created ? null : clearsInMs(tables.flows.get(job.project_no) as FlowRow, now);
    const permits = permitsOf(tables, job.project_no, now);
    return { clears_in_ms, due_at, permits, is_parked: parked.has(job.id), key_taken: false };
  });
};

/** The refusal of a key that exists already, as Postgres words it for isTakenKey. */
export class TakenKey extends Error {}

export const createOrdinaryJobs: Statement = (tables, { now }, values) => {
  const jobs = readJobs(values, values[14]);
  const projects = numbers(values[13]).filter((no) => hasQuota(tables, no, now));
  if (projects.length === numbers(values[13]).length) {
    if (jobs.some(({ id }) => tables.jobs.has(id))) throw new TakenKey("jobs");
    for (const job of jobs) addJob(tables, job, now);
  }
  return projects.map((no) => ({ project_no: no, permits: permitsOf(tables, no, now), now: toMs(now) }));
};

/** The places of the parameters that uniform jobs have in common. */
const COMMON = [0, 1, 2, 7, 8, 9, 10];

export const createUniformJobs: Statement = (tables, time, values) => {
  const count = texts(values[3]).length;
  const columns = values.map((value, place) =>
    COMMON.includes(place) ? Array.from({ length: count }, () => value) : value,
  );
  return createOrdinaryJobs(tables, time, columns);
};

export const createOrdinaryJob: Statement = (tables, { now }, values) => {
  const [job] = readJobs(
    values.map((value) => (value === null ? null : [value])),
    null,
  );
  if (job === undefined || !hasQuota(tables, job.project_no, now)) return [];
  if (tables.jobs.has(job.id)) throw new TakenKey("jobs");
  addJob(tables, job, now);
  return [{ due_at: toMs(Math.max(job.run_at, now)), permits: permitsOf(tables, job.project_no, now) }];
};
