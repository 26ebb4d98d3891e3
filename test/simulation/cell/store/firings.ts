import type { Flow } from "../../../../shared/domain/flow-key.ts";
import { CATCH_UP_MS } from "../../../../shared/domain/schedule.ts";
import { addJob, addLane, hasQuota } from "./creations.ts";
import { giveFlowOfSchedule, giveFlows, leaveGate } from "./flow-keys.ts";
import {
  type Instant,
  instantOrNull,
  instants,
  instantsOrNull,
  numbers,
  readInstant,
  SECOND,
  texts,
  toMs,
  toMsOrNull,
} from "./parameters.ts";
import {
  attemptKey,
  type JobRow,
  laneKey,
  type OpenJobRow,
  type ScheduleRow,
  type Statement,
  shardKey,
  type Tables,
  type TimetableRow,
} from "./tables.ts";
import { moveTags } from "./tags.ts";

/** Schedules and their firings (shared/store/queue/firings.ts, shared/store/resources/schedules.ts). */

const CATCH_UP: Instant = CATCH_UP_MS * 1_000;
const TOLERANCE: Instant = SECOND;
const MS: Instant = 1_000;
const HOME = 0;
const HOME_PLAN = "hobby";
const SKIP = 1;
const REPLACE = 2;
const FOR_OVERLAP = 1;
const CANCELED = 2;

export const listDueSchedules: Statement = (tables, { now }, values) => {
  const [sinceAt, aheadMs, limit] = [readInstant(values[1]), Number(values[2]), Number(values[3])];
  return numbers(values[0]).flatMap((shard) =>
    [...tables.schedules.values()]
      .filter(
        ({ shard: its, next_run_at: at }) =>
          its === shard && at !== null && at >= sinceAt && at <= now + aheadMs * 1_000,
      )
      .sort((one, other) => (one.next_run_at ?? 0) - (other.next_run_at ?? 0) || (one.id < other.id ? -1 : 1))
      .slice(0, limit)
      .map(({ project_no, environment, id, cron, timezone, next_run_at, overlap, flow }) => ({
        ...{ project_no, environment, id, shard, cron, timezone },
        is_bound: overlap === REPLACE || flow !== null,
        next_run_at: toMsOrNull(next_run_at),
      })),
  );
};

interface Firing {
  n: number;
  schedule: ScheduleRow;
  shard: number;
  firedFor: Instant | null;
  thenAt: Instant | null;
  jobId: string;
}

export const fireSchedules: Statement = (tables, { now }, values) =>
  fireDue(
    tables,
    now,
    readDue(tables, now, values).filter(
      ({ schedule }) => schedule.overlap !== REPLACE && schedule.flow === null,
    ),
  );

/** The schedules are fired one after the other, and none of them sees the jobs of another one in the statement. */
export const fireBoundSchedules: Statement = (tables, { now }, values) =>
  fireDue(tables, now, readDue(tables, now, values));

function fireDue(tables: Tables, now: Instant, due: readonly Firing[]): object[] {
  for (const { schedule, thenAt } of due) schedule.next_run_at = thenAt;
  const judged = due.map((firing) => ({ firing, turn: judgeTurn(tables, firing, now) }));
  const coming = judged.flatMap(({ turn }) => (turn?.makesJob ? [turn] : []));
  const firstOf = new Map(
    coming.toReversed().map(({ job, firedFor }) => [`${job.schedule_id} ${firedFor}`, job.id]),
  );
  const isNew = new Map(
    coming.map(({ job, isFirst, firedFor }) => [
      job.id,
      isFirst && firstOf.get(`${job.schedule_id} ${firedFor}`) === job.id,
    ]),
  );
  const parked = giveFlows(
    tables,
    now,
    coming.map(({ job }) => job),
    ({ id }) => isNew.get(id) === true,
  );
  return judged.map(({ firing, turn }) => {
    const { n } = firing;
    const lane = turn === null ? null : fire(tables, firing, turn, now, parked);
    if (lane === null) return { n, region: null, is_parked: false };
    const due_at = toMs(Math.max(lane.runAt, now));
    return {
      ...{ n, region: lane.region, lane_shard: lane.shard, due_at },
      ...{ is_parked: parked.has(firing.jobId), is_keyed: firing.schedule.flow !== null },
    };
  });
}

/** The effects that a firing is about to have. */
interface Turn {
  firedFor: Instant;
  job: JobRow;
  /** Whether no firing of this instant is recorded yet. */
  isFirst: boolean;
  isWithin: boolean;
  makesJob: boolean;
}

/** Answers null if every due instant is too late. */
function judgeTurn(tables: Tables, { schedule, jobId, firedFor }: Firing, now: Instant): Turn | null {
  if (firedFor === null) return null;
  const { id, project_no, environment } = schedule;
  const isFirst = !tables.firings.has(attemptKey(id, firedFor));
  const isOpen = ({ schedule_id, canceled }: OpenJobRow) => schedule_id === id && !canceled;
  const isInTheWay = schedule.overlap === SKIP ? [...tables.open_jobs.values()].some(isOpen) : !isFirst;
  const isWithin = hasQuota(tables, project_no, now);
  const project = tables.projects.get(project_no);
  const region = project === undefined || project.plan === HOME_PLAN ? HOME : project.default_region;
  const { target_url, payload, max_attempts, base_seconds, cap_seconds, tags, flow } = schedule;
  const place = { project_no, environment, region };
  const terms = { target_url, payload, max_attempts, base_seconds, cap_seconds, tags, flow };
  const run_at = firedFor + (schedule.spread_ms ?? 0) * MS;
  const job = { ...place, ...terms, id: jobId, run_at, schedule_id: id };
  return { firedFor, job, isFirst, isWithin, makesJob: isWithin && !isInTheWay };
}

/** Reads the firings that are due and that the shard's owner may make, by the instant and timetable that it knows. */
function readDue(tables: Tables, now: Instant, values: readonly unknown[]): Firing[] {
  const ids = texts(values[2]);
  const [shards, epochs, nextRunAts] = [numbers(values[3]), numbers(values[4]), instants(values[5])];
  const firedFors = instantsOrNull(values[6], ids.length);
  const thenAts = instantsOrNull(values[7], ids.length);
  const [jobIds, crons, timezones] = [texts(values[8]), texts(values[9]), texts(values[10])];
  return ids.flatMap((id, index): Firing[] => {
    const [shard, nextRunAt] = [shards[index] as number, nextRunAts[index] as Instant];
    const schedule = tables.schedules.get(id);
    const isOwner = tables.shards.get(shardKey(HOME, shard))?.epoch === epochs[index];
    if (!isOwner || schedule?.next_run_at !== nextRunAt) return [];
    if (schedule.cron !== crons[index] || schedule.timezone !== timezones[index]) return [];
    const firedFor = firedFors[index] ?? null;
    const isDue = firedFor === null ? nextRunAt <= now + TOLERANCE - CATCH_UP : firedFor <= now + TOLERANCE;
    const thenAt = thenAts[index] ?? null;
    return isDue ? [{ n: index + 1, schedule, shard, firedFor, thenAt, jobId: jobIds[index] as string }] : [];
  });
}

/** Records the firing and makes its job. Returns the lane in which the job is owed; null if no job was made. */
function fire(
  tables: Tables,
  { schedule, shard, jobId }: Firing,
  { firedFor, job, isWithin, makesJob }: Turn,
  now: Instant,
  parked: ReadonlySet<string>,
) {
  const { id } = schedule;
  // The same statement may have fired this instant: a schedule that is ready when the clock goes back may come twice.
  if (tables.firings.has(attemptKey(id, firedFor))) return null;
  tables.firings.set(attemptKey(id, firedFor), {
    ...{ schedule_id: id, fired_for: firedFor, job_id: makesJob ? jobId : null },
    due_at: makesJob && schedule.spread_ms !== null ? job.run_at : null,
    skipped_for: isWithin && !makesJob ? FOR_OVERLAP : null,
    replaced: makesJob && schedule.overlap === REPLACE ? cancelUnstarted(tables, id, now) : null,
    backfilled: false,
  });
  if (!makesJob) return null;
  addJob(tables, job, now, parked);
  const lane = tables.lanes.get(laneKey(job));
  if (lane === undefined) addLane(tables, job, shard);
  return { region: job.region, shard: lane?.shard ?? shard, runAt: job.run_at };
}

/** Cancels the schedule's jobs that have not started. A simulation never has more of them than one firing cancels. */
function cancelUnstarted(tables: Tables, scheduleId: string, now: Instant): number {
  const rows = [...tables.open_jobs.values()].filter(
    ({ schedule_id, attempt, run_id }) => schedule_id === scheduleId && attempt === 1 && run_id === null,
  );
  for (const row of rows) {
    const { id, project_no, environment, region, schedule_id } = row;
    leaveGate(tables, row);
    tables.open_jobs.delete(id);
    const place = { project_no, environment, region };
    tables.ended_jobs.set(id, { ...place, id, status: CANCELED, attempts: 0, ended_at: now, schedule_id });
    moveTags(tables, row, CANCELED);
  }
  return rows.length;
}

const scheduleColumns = (row: ScheduleRow) => ({
  ...{ id: row.id, projectNo: row.project_no, environment: row.environment, name: row.name },
  ...{ cron: row.cron, timezone: row.timezone, targetUrl: row.target_url, payload: row.payload },
  retryPolicy: {
    ...{ maxAttempts: row.max_attempts, baseSeconds: row.base_seconds, capSeconds: row.cap_seconds },
  },
  ...{ paused: row.paused, tags: row.tags, revision: row.revision },
  ...{ overlap: row.overlap, spreadSeconds: row.spread_seconds, flow: row.flow },
  nextRunAt: toMsOrNull(row.next_run_at),
});

function findRow(tables: Tables, [projectNo, environment, id]: readonly unknown[]) {
  const row = tables.schedules.get(String(id));
  return row?.project_no === projectNo && row?.environment === environment ? row : undefined;
}

export const findSchedule: Statement = (tables, _time, values) => {
  const row = findRow(tables, values);
  if (row === undefined) return [];
  const activeCount = tables.projects.get(row.project_no)?.active_schedules ?? 0;
  return [{ ...scheduleColumns(row), activeCount }];
};

export const changeSchedule: Statement = (tables, { clock }, values) => {
  const row = findRow(tables, values);
  const project = row && tables.projects.get(row.project_no);
  const [revision, cron, timezone, payload, paused, isTimed, at, activeMax, ...terms] = values.slice(6);
  if (row === undefined || project === undefined || row.revision !== revision) return [];
  const nextRunAt = instantOrNull(at ?? null);
  if (row.paused && !paused && project.active_schedules >= Number(activeMax)) return [];
  if (nextRunAt !== null && nextRunAt <= clock) return [];
  if (row.paused !== paused) project.active_schedules += paused ? -1 : 1;
  if (row.paused !== paused || row.cron !== cron || row.timezone !== timezone) {
    const last = [...tables.timetables.values()].findLast(({ schedule_id }) => schedule_id === row.id);
    if (last !== undefined) last.replaced_at = clock;
    const terms = { cron: String(cron), timezone: String(timezone), paused: paused === true };
    addTimetable(tables, { ...terms, schedule_id: row.id, since: clock, superseded_at: row.next_run_at });
  }
  Object.assign(row, { cron, timezone, payload, paused, revision: row.revision + 1 });
  const [
    name,
    target_url,
    max_attempts,
    base_seconds,
    cap_seconds,
    overlap,
    spread_seconds,
    spread_ms,
    tags,
    flowText,
  ] = terms;
  Object.assign(row, { name, target_url, max_attempts, base_seconds, cap_seconds });
  const flow = flowText === null ? null : (JSON.parse(String(flowText)) as Flow);
  if (flow !== null && flowText !== JSON.stringify(row.flow)) giveFlowOfSchedule(tables, row, flow);
  Object.assign(row, { overlap, spread_seconds, spread_ms, tags, flow });
  if (isTimed) row.next_run_at = nextRunAt;
  return [scheduleColumns(row)];
};

/** Adds a timetable. It is numbered as in Postgres, beginning with 1. */
export function addTimetable(tables: Tables, row: Omit<TimetableRow, "no" | "replaced_at">): void {
  const no = tables.timetables.size + 1;
  tables.timetables.set(no, { ...row, no, replaced_at: null });
}

export const deleteSchedule: Statement = (tables, _time, values) => {
  const row = findRow(tables, values);
  if (row === undefined) return [];
  tables.schedules.delete(row.id);
  const project = tables.projects.get(row.project_no);
  if (project !== undefined && !row.paused) project.active_schedules--;
  return [{}];
};
