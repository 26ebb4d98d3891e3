import { SAMPLE_MAX } from "../../../../shared/domain/bulk.ts";
import { ATTEMPTS_MAX } from "../../../../shared/domain/job.ts";
import { bulkStatusCode } from "../../../../shared/store/database/codes.ts";
import { cancelOpen, reopen } from "./by-hand.ts";
import { addJob, addLane, hasQuota } from "./creations.ts";
import { giveFlows } from "./flow-keys.ts";
import { type Instant, monthOf, numbers, SECOND, texts, toMs, toMsOrNull } from "./parameters.ts";
import { countRuns, runsLeft } from "./permits.ts";
import {
  attemptKey,
  type BulkMemberRow,
  type BulkRow,
  laneKey,
  rowAt,
  type Statement,
  type StatementTime,
  shardKey,
  type Tables,
} from "./tables.ts";

/** Bulk operations: how they are asked for, counted and judged (shared/store/queue/bulk, shared/store/resources/bulk-operations.ts). */

const HOME = 0;
const FAILED_JOB = 1;
const HOME_PLAN = "hobby";
const OPEN_MAX = 100;
const [COUNTING, COUNTED, WAITING, RUNNING, DONE, ABORTED] = (
  ["counting", "counted", "waiting", "running", "done", "aborted"] as const
).map(bulkStatusCode) as [number, number, number, number, number, number];

const isOfScope = (one: BulkRow, other: { project_no: number; environment: number }) =>
  one.project_no === other.project_no && one.environment === other.environment;
const openOf = (tables: Tables, scope: { project_no: number; environment: number }) =>
  [...tables.bulk_operations.values()].filter((row) => row.ended_at === null && isOfScope(row, scope));

function findBulk(tables: Tables, [projectNo, environment, id]: readonly unknown[]): BulkRow | undefined {
  const row = tables.bulk_operations.get(String(id));
  return row?.project_no === projectNo && row?.environment === environment ? row : undefined;
}

export const createBulk: Statement = (tables, _time, values) => {
  const [project_no, environment, id] = values as [number, number, string];
  const [shard, action, per_second, dry_run, filter] = values.slice(9) as [
    number,
    number,
    number,
    boolean,
    string,
  ];
  if (openOf(tables, { project_no, environment }).length >= OPEN_MAX) return [{ outcome: "limit_exceeded" }];
  tables.bulk_operations.set(id, {
    ...{ id, project_no, environment, shard, action, per_second, dry_run, filter: JSON.parse(filter) },
    ...{ status: COUNTING, matched: null, counted: 0, done: 0, skipped: 0, failed: 0, judged_to: 0 },
    ...{ counted_to: null, sample: [], judged_at: [], judged_counts: [], leaves_members: false },
    ...{ started_at: null, ended_at: null },
  });
  return [{ outcome: "created" }];
};

export const lockBulk: Statement = (tables, { now }, values) => {
  const row = findBulk(tables, values);
  if (row === undefined) return [];
  const { started_at, ended_at } = row;
  return [{ ...row, started_at: toMsOrNull(started_at), ended_at: toMsOrNull(ended_at), now: toMs(now) }];
};

export const abortBulk: Statement = (tables, { now }, values) => {
  const row = findBulk(tables, values);
  if (row === undefined || row.ended_at !== null) return [];
  Object.assign(row, { status: ABORTED, ended_at: now, leaves_members: !row.dry_run });
  return [{}];
};

export const listOpenBulks: Statement = (tables, _time, values) => {
  const shards = numbers(values[0]);
  const open = [...tables.bulk_operations.values()].filter(
    ({ ended_at, shard }) => ended_at === null && shards.includes(shard),
  );
  const groups = Map.groupBy(
    open,
    (row) => `${row.project_no}/${row.environment}/${row.status === COUNTING}`,
  );
  return [...groups.values()]
    .flatMap((rows) =>
      rows
        .sort(
          (one, other) =>
            Number(one.status !== RUNNING) - Number(other.status !== RUNNING) || byId(one, other),
        )
        .slice(0, rows[0]?.status === COUNTING ? rows.length : 1),
    )
    .sort(byId)
    .map((row) => ({ ...row, plan: tables.projects.get(row.project_no)?.plan }));
};

const byId = (one: { id: string }, other: { id: string }) => (one.id < other.id ? -1 : 1);

/** A simulation never has more jobs than a page looks at. */
const findCandidates =
  (
    by: "all" | "schedule" | "tag",
    isMeant: (tables: Tables, id: string, values: readonly unknown[]) => boolean,
  ): Statement =>
  (tables, _time, values) => {
    const [projectNo, environment, , after, from, before, scheduleId, asksForHost] = values;
    const regions = numbers(values[2]);
    const tag = by === "tag" ? String(values.at(-1)) : null;
    const found = [...tables.jobs.values()].filter((job) => {
      if (job.project_no !== projectNo || job.environment !== environment) return false;
      if (!regions.includes(job.region) || (tag !== null && job.tags?.includes(tag) !== true)) return false;
      const isBetween = job.id > String(after) && job.id >= String(from) && job.id < String(before);
      return (
        isBetween &&
        (scheduleId === null || job.schedule_id === scheduleId) &&
        isMeant(tables, job.id, values)
      );
    });
    const rows = found
      .sort(byId)
      .map(({ id, region, target_url }) => ({ id, region, target_url: asksForHost ? target_url : null }));
    const none = { id: null, region: null, target_url: null };
    return (rows.length === 0 ? [none] : rows).map((row) => ({ end_id: null, ...row }));
  };

function isToCancel(tables: Tables, id: string, values: readonly unknown[]): boolean {
  const row = tables.open_jobs.get(id);
  const isRunning = values[8];
  return row !== undefined && !row.canceled && (isRunning === null || (row.run_id !== null) === isRunning);
}

function isToRetry(tables: Tables, id: string, values: readonly unknown[]): boolean {
  const row = tables.ended_jobs.get(id);
  if (row?.status !== FAILED_JOB) return false;
  const [text, responseStatus, since] = values.slice(8);
  if (text === null && responseStatus === null) return true;
  const last = findRun(tables, id, row.attempts, String(since));
  if (last === undefined || (text !== null && last.error?.includes(String(text)) !== true)) return false;
  return responseStatus === null || last.response_status === responseStatus;
}

const findRun = (tables: Tables, jobId: string, attempt: number, since: string) =>
  [...tables.runs.values()].find((run) => run.job_id === jobId && run.attempt === attempt && run.id >= since);

export const CANDIDATES: Readonly<Record<string, Statement>> = Object.fromEntries(
  (["all", "schedule", "tag"] as const).flatMap((by) => [
    [`find_cancel_candidates_by_${by}`, findCandidates(by, isToCancel)],
    [`find_retry_candidates_by_${by}`, findCandidates(by, isToRetry)],
  ]),
);

/** The operation's row, if the shard has this epoch and the row this status. */
function lockedBulk(tables: Tables, values: readonly unknown[], status: number): BulkRow | undefined {
  const isOwner = tables.shards.get(shardKey(HOME, Number(values[3])))?.epoch === values[4];
  const row = findBulk(tables, values);
  return isOwner && row?.status === status ? row : undefined;
}

const hasTurn = (tables: Tables, bulk: BulkRow): boolean =>
  openOf(tables, bulk).every(
    (other) => other === bulk || other.dry_run || (other.id > bulk.id && other.status !== RUNNING),
  );

export const countMembers: Statement = (tables, { now }, values) => {
  const bulk = lockedBulk(tables, values, COUNTING);
  const [from, to, count] = values.slice(5) as [string | null, string | null, number];
  if (bulk === undefined || bulk.counted_to !== from) return [];
  const isOfJobs = values[10] === null;
  const jobIds = isOfJobs ? texts(values[8]) : [];
  const regions = isOfJobs ? numbers(values[9]) : [];
  const positions = isOfJobs ? jobIds.map((_, index) => bulk.counted + index + 1) : numbers(values[10]);
  for (const [index, position] of positions.entries()) {
    const member = {
      bulk_id: bulk.id,
      position,
      job_id: jobIds[index] ?? null,
      region: regions[index] ?? null,
    };
    if (!bulk.dry_run) tables.bulk_members.set(attemptKey(bulk.id, position), member);
  }
  const sample = values[11] as string[];
  bulk.sample = (isOfJobs ? [...bulk.sample, ...sample] : [...sample, ...bulk.sample]).slice(0, SAMPLE_MAX);
  bulk.counted += count;
  bulk.counted_to = to;
  if (to !== null) return [{}];
  bulk.matched = bulk.counted;
  if (bulk.dry_run) Object.assign(bulk, { status: COUNTED, ended_at: now });
  else if (hasTurn(tables, bulk)) Object.assign(bulk, { status: RUNNING, started_at: now });
  else bulk.status = WAITING;
  return [{}];
};

export const startBulk: Statement = (tables, { now }, values) => {
  const bulk = lockedBulk(tables, values, WAITING);
  if (bulk === undefined || !hasTurn(tables, bulk)) return [];
  Object.assign(bulk, { status: RUNNING, started_at: now });
  return [{}];
};

/** The outcome of a member, and the row that tells what is owed for it. */
interface Verdict {
  outcome: "done" | "skipped" | "failed";
  /** The columns of the answer that are the member's own. */
  row?: object;
  /** For the history: how many attempts a canceled job had, and the run of a retried one with its number. */
  attempts?: number;
  run?: string;
  attempt?: number;
}

/**
 * Judges the members whose turn it is. `members` and `judged_at` of the first row tell the history of them; Postgres answers no
 * such columns, and the product reads none.
 */
const judgeMembers =
  (
    judge: (
      tables: Tables,
      time: StatementTime,
      values: readonly unknown[],
      page: readonly BulkMemberRow[],
    ) => Verdict[],
  ): Statement =>
  (tables, time, values) => {
    const bulk = lockedBulk(tables, values, RUNNING);
    if (bulk === undefined) return [];
    const at = time.clock;
    const noted = bulk.judged_at
      .map((its, index) => ({ at: its, count: bulk.judged_counts[index] ?? 0 }))
      .filter((page) => page.at >= at - SECOND && page.at <= at + SECOND)
      .sort((one, other) => one.at - other.at);
    const used = noted.reduce((sum, { count }) => sum + count, 0);
    const room = Math.max(0, Math.min(Number(values[5]), bulk.per_second - used));
    const page = [...tables.bulk_members.values()]
      .filter(({ bulk_id, position }) => bulk_id === bulk.id && position > bulk.judged_to)
      .sort((one, other) => one.position - other.position)
      .slice(0, room);
    const left = (bulk.matched ?? 0) - bulk.done - bulk.skipped - bulk.failed;
    const verdicts = judge(tables, time, values, page);
    const count = { done: 0, skipped: 0, failed: 0 };
    for (const { outcome } of verdicts) count[outcome]++;
    bulk.done += count.done;
    bulk.skipped += count.skipped;
    bulk.failed += count.failed;
    bulk.judged_to = page.at(-1)?.position ?? bulk.judged_to;
    const notes = page.length === 0 ? noted : [...noted, { at, count: page.length }];
    bulk.judged_at = notes.map((note) => note.at);
    bulk.judged_counts = notes.map((note) => note.count);
    const isOver = page.length >= left;
    if (isOver) Object.assign(bulk, { status: DONE, ended_at: at });
    for (const { position } of page) tables.bulk_members.delete(attemptKey(bulk.id, position));
    const firstAt = noted[0]?.at ?? at;
    const wait_ms = used + page.length < bulk.per_second ? 0 : toMs(firstAt + SECOND - at);
    const answer = { ...count, is_over: isOver, wait_ms, due_at: toMs(at), judged_at: toMs(at) };
    const rows = verdicts.flatMap(({ row }) => (row === undefined ? [] : [{ ...answer, ...row }]));
    const members = page.map((member, index) => ({ ...member, ...verdicts[index] }));
    const [first = { ...answer, job_id: null, delivery_id: null }, ...others] = rows;
    return [{ ...first, members }, ...others];
  };

const placeOf = (member: BulkMemberRow, values: readonly unknown[]) => ({
  project_no: Number(values[0]),
  environment: Number(values[1]),
  region: member.region as number,
});

export const cancelMembers: Statement = judgeMembers((tables, { now }, values, page) =>
  page.map((member): Verdict => {
    const row = rowAt(tables.open_jobs, placeOf(member, values), member.job_id as string);
    if (row === undefined || row.canceled) return { outcome: "skipped" };
    return { outcome: "done", attempts: cancelOpen(tables, row, now) };
  }),
);

export const retryMembers: Statement = judgeMembers((tables, { clock }, values, page) => {
  const flow = tables.flows.get(Number(values[0]));
  if (flow === undefined) throw new Error("a project has no flow");
  const runIds = texts(values[7]);
  const month = monthOf(clock);
  const left = runsLeft(flow, month) ?? Number.POSITIVE_INFINITY;
  let count = 0;
  const verdicts = page.map((member, index): Verdict => {
    const place = placeOf(member, values);
    const id = member.job_id as string;
    const ended = rowAt(tables.ended_jobs, place, id);
    if (ended?.status !== FAILED_JOB) return { outcome: "skipped" };
    const isAble =
      ended.attempts < ATTEMPTS_MAX && findRun(tables, id, ended.attempts, String(values[6])) !== undefined;
    if (!isAble || count >= left) return { outcome: "failed" };
    count++;
    const [attempt, run] = [ended.attempts + 1, runIds[index] as string];
    const attempts_allowed = Math.max(tables.jobs.get(id)?.max_attempts ?? 0, attempt);
    reopen(tables, { ...place, id, attempt, attempts_allowed, run_id: run }, clock);
    const shard = tables.lanes.get(laneKey(place))?.shard ?? null;
    return { outcome: "done", run, attempt, row: { job_id: id, region: place.region, attempt, shard } };
  });
  if (count > 0) countRuns(flow, count, month);
  return verdicts;
});

export const backfillMembers: Statement = judgeMembers((tables, { now }, values, page) => {
  const [projectNo, environment, , shard] = values as [number, number, string, number];
  const schedule = tables.schedules.get(String(values[6]));
  const jobIds = texts(values[7]);
  const isOwn = schedule?.project_no === projectNo && schedule.environment === environment;
  if (!isOwn || !hasQuota(tables, projectNo, now)) return page.map((): Verdict => ({ outcome: "failed" }));
  const project = tables.projects.get(projectNo);
  const region = project === undefined || project.plan === HOME_PLAN ? HOME : project.default_region;
  const place = { project_no: projectNo, environment, region };
  const { target_url, payload, max_attempts, base_seconds, cap_seconds, tags, flow } = schedule;
  const job = { ...place, target_url, payload, max_attempts, base_seconds, cap_seconds, tags, flow };
  const made = page.map(({ position }, index) => {
    const firedFor: Instant = position * 1_000;
    const before = tables.firings.get(attemptKey(schedule.id, firedFor));
    const id = jobIds[index] as string;
    return before != null && before.job_id !== null
      ? null
      : { before, job: { ...job, id, run_at: firedFor, schedule_id: schedule.id } };
  });
  const coming = made.flatMap((one) => (one === null ? [] : [one.job]));
  const parked = giveFlows(tables, now, coming, () => true);
  return made.map((one): Verdict => {
    if (one === null) return { outcome: "skipped" };
    const { id, run_at } = one.job;
    const none = {
      ...{ schedule_id: schedule.id, fired_for: run_at, due_at: null },
      ...{ skipped_for: null, replaced: null },
    };
    const firing = { ...(one.before ?? none), job_id: id, backfilled: true };
    tables.firings.set(attemptKey(schedule.id, run_at), firing);
    addJob(tables, one.job, now, parked);
    const lane = tables.lanes.get(laneKey(place));
    if (lane === undefined) addLane(tables, place, shard);
    const due_at = toMs(Math.max(run_at, now) as Instant);
    const keyed = { is_keyed: flow !== null, is_parked: parked.has(id) };
    const row = { job_id: id, region, lane_shard: lane?.shard ?? shard, due_at, ...keyed };
    return { outcome: "done", row };
  });
});

export const listTimetables: Statement = (tables, _time, values) => {
  const [until, untilNo, limit] = [
    Date.parse(String(values[1])) * 1_000,
    Number(values[2]),
    Number(values[3]),
  ];
  return [...tables.timetables.values()]
    .filter(
      ({ schedule_id, no, since, superseded_at }) =>
        schedule_id === values[0] && no <= untilNo && Math.min(since, superseded_at ?? since) <= until,
    )
    .sort((one, other) => other.no - one.no)
    .slice(0, limit)
    .map(({ no, since, superseded_at, paused, cron, timezone }) => ({
      ...{ no, paused, cron, timezone },
      since: toMs(since),
      superseded_at: toMsOrNull(superseded_at),
    }));
};

export const listFirings: Statement = (tables, _time, values) => {
  const [from, to] = [values[1], values[2]].map((text) => Date.parse(String(text)) * 1_000) as [
    number,
    number,
  ];
  return [...tables.firings.values()]
    .filter(({ schedule_id, fired_for }) => schedule_id === values[0] && fired_for >= from && fired_for <= to)
    .map((row) => ({ ...row, fired_for: toMs(row.fired_for), due_at: toMsOrNull(row.due_at) }));
};
