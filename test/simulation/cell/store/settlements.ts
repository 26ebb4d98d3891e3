import { ENDS_HEARD } from "../../../../shared/store/queue/settle-ordinary.ts";
import {
  anyWaits,
  calledColumns,
  callGate,
  flowKeyOf,
  gateOf,
  headsOf,
  leaveQueue,
  roomOf,
  startsGoneAt,
  startsLeft,
} from "./gates.ts";
import { type MetHost, readHosts, watchHosts } from "./host-gates.ts";
import {
  fromMs,
  type Instant,
  numbers,
  numbersOrNull,
  SECOND,
  texts,
  textsOrNull,
  toMs,
  uuidOf,
} from "./parameters.ts";
import { isCalled, returnPermits } from "./permits.ts";
import {
  type FlowKeyRow,
  type FlowRow,
  laneKey,
  type OpenJobRow,
  type Place,
  type RunRow,
  rowAt,
  type Statement,
  type StatementTime,
  type Tables,
} from "./tables.ts";
import { moveTags, noteShiftedRun, tagRun } from "./tags.ts";

/** settleAttempts and settleOrdinary (shared/store/queue), with the events for endpoints. */

const QUEUED = 0;

export interface Outcome extends Place {
  n: number;
  id: string;
  /** The id under which the attempt was recorded. */
  attemptId: string;
  status: number;
  response_status: number | null;
  error: string | null;
  duration_ms: number;
}

/** The parameters 1 to 9 of both kinds of settlements. */
export function readOutcomes(values: readonly unknown[]): Outcome[] {
  const ids = texts(values[3]);
  const [projects, environments, regions] = [numbers(values[0]), numbers(values[1]), numbers(values[2])];
  const [attemptIds, statuses] = [texts(values[4]), numbers(values[5])];
  const [responses, errors] = [numbersOrNull(values[6]), textsOrNull(values[7])];
  const durations = numbers(values[8]);
  return ids.map((id, index) => ({
    n: index + 1,
    project_no: projects[index] as number,
    environment: environments[index] as number,
    region: regions[index] as number,
    id,
    attemptId: attemptIds[index] as string,
    status: statuses[index] as number,
    response_status: responses[index] ?? null,
    error: errors[index] ?? null,
    duration_ms: durations[index] as number,
  }));
}

interface Attempt {
  outcome: Outcome;
  row: OpenJobRow;
  next: number;
  dueAt: Instant;
}

/** Settles plain attempts: none has tags, a flow key or another start than its run's id tells. */
export const settle: Statement = (tables, time, values) =>
  settleSome(tables, time, readOutcomes(values), values, () => {});

export const settleWhole: Statement = (tables, time, values) => {
  const outcomes = readOutcomes(values);
  const keys = new Set(outcomes.flatMap((outcome) => keyOfJob(tables, outcome) ?? []));
  const freed: FlowKeyRow[] = [];
  const { hosts, hostOf } = readHosts(tables, outcomes, values);
  const met: MetHost[] = [];
  const answers = settleSome(tables, time, outcomes, values, (run, row, { n }, frees) => {
    const { project_no, environment, id } = row;
    const [startedAt, endedAt] = [run.started_at, run.started_at + (run.duration_ms * SECOND) / 1_000];
    met.push({ project_no, environment, id, startedAt, endedAt, ...hostOf(n) });
    tagRun(tables, run, row.tags);
    noteShiftedRun(tables, run, row.tags);
    const key = keyOfJob(tables, row);
    if (key !== undefined && frees) freed.push(key);
  });
  const called = [...keys].flatMap((key) =>
    leaveKey(tables, key, freed.filter((its) => its === key).length, time),
  );
  const watched = watchHosts(tables, hosts, met, time.now);
  called.push(...watched.called);
  return [
    ...answers,
    ...calledColumns(tables, called).map((row) => ({ kind: "called", ...row })),
    // These rows are for the history; Postgres tells endpoints of the changes.
    ...watched.changes.map((change) => ({ kind: "host", region: 0, ...change })),
  ];
};

export function keyOfJob(tables: Tables, place: Place & { id: string }): FlowKeyRow | undefined {
  const name = rowAt(tables.open_jobs, place, place.id)?.flow_key ?? null;
  return name === null ? undefined : tables.flow_keys.get(flowKeyOf(place, name));
}

/** Gives `freed` places of a key back. Returns the attempts that may start next for it. */
function leaveKey(
  tables: Tables,
  key: FlowKeyRow,
  freed: number,
  { now, clock }: StatementTime,
): OpenJobRow[] {
  const left = startsLeft(key, clock);
  const notBefore = left <= 0 ? startsGoneAt(key, clock, 1 - left) : null;
  const room = anyWaits(key) ? roomOf(key, key.in_use - freed) : 0;
  const called = callGate(now, headsOf(tables, key, gateOf(key.flow_key), room), notBefore);
  key.in_use = Math.max(key.in_use - freed, 0);
  leaveQueue(key, called);
  return called;
}

/** `note` is told each run, its job's row as it was, its outcome, and whether the place of its flow key comes back. */
function settleSome(
  tables: Tables,
  { now }: StatementTime,
  outcomes: readonly Outcome[],
  values: readonly unknown[],
  note: (run: RunRow, row: OpenJobRow, outcome: Outcome, frees: boolean) => void,
): object[] {
  const nexts = numbers(values[9]);
  const pauses = numbersOrNull(values[10], nexts.length);
  const [lates, waits] = [numbersOrNull(values[11]), numbersOrNull(values[12])];
  const attempts = outcomes.flatMap((outcome, index): Attempt[] => {
    const row = rowAt(tables.open_jobs, outcome, outcome.id);
    if (row === undefined || row.run_id !== outcome.attemptId || row.node_id === null) return [];
    const dueAt = now + fromMs(pauses[index] ?? 0);
    return [{ outcome, row, next: nexts[index] as number, dueAt }];
  });
  // The answers tell of the rows as they were. `is_keyed` is for the history; Postgres answers no such column.
  const answers = attempts.map(({ outcome, row, next, dueAt }) => ({
    kind: "attempt",
    n: outcome.n,
    project_no: row.project_no,
    environment: row.environment,
    region: row.region,
    attempt: row.attempt,
    next,
    canceled: row.canceled,
    is_keyed: row.flow_key !== null,
    due_at: next === QUEUED && !row.canceled ? toMs(dueAt) : null,
  }));
  const told = attempts.flatMap((attempt) => tellEndpoints(tables, attempt, now));
  for (const { outcome, row, next, dueAt } of attempts) {
    const isOwedAgain = next === QUEUED && !row.canceled;
    const run = recordRun(tables, row, outcome, {
      nextRetryAt: isOwedAgain ? dueAt : null,
      lateMs: lates[outcome.n - 1] ?? null,
      heldFor: waits[outcome.n - 1] ?? null,
    });
    const keeps = isOwedAgain && row.flow_key !== null && tables.jobs.get(row.id)?.flow?.hold === "job";
    note(run, row, outcome, row.has_place === true && !keeps);
    if (isOwedAgain) oweAgain(row, dueAt, keeps);
    else endJob(tables, row, next - 1, now);
  }
  const freed = giveBack(
    tables,
    attempts.map(({ outcome }) => ({ ...outcome, class: outcome.environment })),
    now,
  );
  return [...answers, ...freed, ...told];
}

/** The recorded fields of a run that neither its row nor its outcome tells. */
interface Recorded {
  nextRetryAt: Instant | null;
  lateMs: number | null;
  heldFor: number | null;
}

function recordRun(
  tables: Tables,
  row: OpenJobRow,
  outcome: Outcome,
  { nextRetryAt, lateMs, heldFor }: Recorded,
): RunRow {
  const { project_no, environment, status, response_status, error, duration_ms, attemptId } = outcome;
  const run: RunRow = {
    id: attemptId,
    job_id: row.id,
    project_no,
    environment,
    retention_class: (tables.flows.get(project_no) as FlowRow).retention_class,
    attempt: row.attempt,
    status,
    response_status,
    error,
    started_at: row.started_at as Instant,
    duration_ms,
    next_retry_at: nextRetryAt,
    schedule_id: row.schedule_id,
    late_ms: lateMs,
    held_for: heldFor,
  };
  tables.runs.set(attemptId, run);
  return run;
}

/** `keeps`: the job keeps its place of its flow key between attempts. */
function oweAgain(row: OpenJobRow, dueAt: Instant, keeps: boolean): void {
  row.attempt++;
  row.due_at = dueAt;
  row.run_id = null;
  row.node_id = null;
  row.started_at = null;
  row.parked_due_at = row.flow_key === null ? null : dueAt;
  row.gate = row.flow_key === null || (keeps && row.has_place) ? null : gateOf(row.flow_key);
  if (!keeps) row.has_place = null;
}

function endJob(tables: Tables, row: OpenJobRow, status: number, now: Instant): void {
  const { project_no, environment, region, id, attempt, schedule_id } = row;
  tables.open_jobs.delete(id);
  if (row.canceled) return;
  moveTags(tables, row, status);
  tables.ended_jobs.set(id, {
    project_no,
    environment,
    region,
    id,
    status,
    attempts: attempt,
    ended_at: now,
    schedule_id,
  });
}

/** Gives the permits of ended attempts back. Returns the rows that tell the shards of it. */
export function giveBack(
  tables: Tables,
  ended: readonly { project_no: number; class: number }[],
  now: Instant,
): object[] {
  return [...Map.groupBy(ended, ({ project_no }) => project_no)].flatMap(([no, attempts]) => {
    const flow = tables.flows.get(no) as FlowRow;
    const waiting = returnPermits(
      flow,
      attempts.map((attempt) => attempt.class),
      now,
    );
    const lanes = [...tables.lanes.values()].filter(
      ({ project_no, environment, region }) => project_no === no && isCalled(waiting, environment, region),
    );
    const places = new Map(lanes.map(({ region, shard }) => [`${region}/${shard}`, { region, shard }]));
    return [...places.values()].map((place) => ({
      kind: "freed",
      project_no: no,
      ...place,
      returned: String(flow.returned),
    }));
  });
}

/** Makes the event of a job that has ended, and a delivery for each endpoint that hears of it. Returns the rows that say so. */
function tellEndpoints(tables: Tables, { outcome, row, next }: Attempt, now: Instant): object[] {
  if (next === QUEUED || row.canceled) return [];
  const type = next - 1;
  const { project_no, environment, region } = row;
  const flow = tables.flows.get(project_no) as FlowRow;
  if ((flow.subscriptions & (1 << (environment * 2 + type))) === 0) return [];
  const heard = [...tables.webhooks.values()].filter(
    (endpoint) =>
      endpoint.project_no === project_no &&
      endpoint.environment === environment &&
      endpoint.enabled &&
      (endpoint.events & (1 << type)) !== 0,
  );
  if (heard.length === 0) return [];
  tables.events.set(outcome.attemptId, {
    ...{ project_no, environment, region, type },
    id: outcome.attemptId,
    job_id: row.id,
    attempt: row.attempt,
    run_status: outcome.status,
    response_status: outcome.response_status,
    error: outcome.error,
    started_at: row.started_at as Instant,
    duration_ms: outcome.duration_ms,
    occurred_at: now,
    api_version: tables.projects.get(project_no)?.api_version ?? "",
  });
  const lane = tables.lanes.get(laneKey(row));
  if (lane !== undefined) lane.has_deliveries = true;
  return heard.flatMap((endpoint) => {
    const id = deliveryId(outcome.attemptId, endpoint.id, now);
    tables.open_deliveries.set(id, {
      ...{ project_no, environment, region, id },
      webhook_id: endpoint.id,
      event_id: outcome.attemptId,
      generation: endpoint.generation,
      by_hand: false,
      due_at: now,
      attempt: 1,
      waits: 0,
      attempt_id: null,
      node_id: null,
      started_at: null,
      first_started_at: null,
      parked_host: null,
      parked_due_at: null,
    });
    const told = {
      kind: "delivery",
      project_no,
      environment,
      region,
      shard: lane?.shard,
      id,
      due_at: toMs(now),
    };
    return lane === undefined ? [] : [told];
  });
}

function deliveryId(runId: string, webhookId: string, now: Instant): string {
  const time = Math.floor(toMs(now)).toString(16).padStart(12, "0");
  const digest = new Bun.CryptoHasher("md5").update(runId + webhookId).digest("hex");
  return uuidOf(time + digest.slice(0, 20));
}

/** An attempt that a short way ends, with the status of its job. */
export interface LastAttempt {
  outcome: Outcome;
  row: OpenJobRow;
  status: number;
}

/** The attempts that a short way may end: those of ordinary projects that have none of the bits of `heard`. */
export function readLast(tables: Tables, values: readonly unknown[], heard = ENDS_HEARD): LastAttempt[] {
  const ordinary = new Set(
    numbers(values[0]).filter((no) => {
      const flow = tables.flows.get(no);
      return flow !== undefined && flow.waiting === 0 && (flow.subscriptions & heard) === 0;
    }),
  );
  const statuses = numbers(values[11]);
  return readOutcomes(values.slice(2)).flatMap((outcome, index) => {
    const row = rowAt(tables.open_jobs, outcome, outcome.id);
    if (!ordinary.has(outcome.project_no) || row?.run_id !== outcome.attemptId || row.node_id === null)
      return [];
    if (row.tags !== null) return [];
    return [{ outcome, row, status: statuses[index] as number }];
  });
}

/** Ends the jobs. Returns the rows that answer their attempts. */
export function endLast(
  tables: Tables,
  now: Instant,
  values: readonly unknown[],
  attempts: readonly LastAttempt[],
): object[] {
  const [lates, waits] = [numbersOrNull(values[12]), numbersOrNull(values[13])];
  const answers = attempts.map(({ outcome: { n }, row: { attempt, canceled } }) => ({
    n,
    attempt,
    canceled,
  }));
  for (const { outcome, row, status } of attempts) {
    recordRun(tables, row, outcome, {
      nextRetryAt: null,
      lateMs: lates[outcome.n - 1] ?? null,
      heldFor: waits[outcome.n - 1] ?? null,
    });
    endJob(tables, row, status, now);
  }
  giveBack(
    tables,
    attempts.map(({ outcome }) => ({ ...outcome, class: outcome.environment })),
    now,
  );
  return answers;
}

export const settleOrdinary: Statement = (tables, { now }, values) =>
  endLast(
    tables,
    now,
    values,
    readLast(tables, values).filter(({ row }) => row.flow_key === null),
  );
