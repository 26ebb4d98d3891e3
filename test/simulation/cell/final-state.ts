import { BULK_PREFIX, uuidToId } from "../../../shared/domain/ids.ts";
import { jobStatusOf } from "../../../shared/domain/job.ts";
import { nextInstant, readTimetable } from "../../../shared/domain/schedule.ts";
import { hostOfTarget } from "../../../shared/domain/target.ts";
import { JOB_END_TYPES } from "../../../shared/domain/webhook.ts";
import {
  bulkStatusOf,
  ENDED_DELIVERY_STATUSES,
  endedStatusOf,
  environmentOf,
  eventTypeOf,
  runStatusOf,
  waitReasonOf,
} from "../../../shared/store/database/codes.ts";
import type { FinalGate, FinalJob, FinalRun, FinalState } from "../../support/history/history.ts";
import { gateOf } from "./store/gates.ts";
import { countParkedAt } from "./store/host-gates.ts";
import { toMs, toMsOrNull } from "./store/parameters.ts";
import type { FlowKeyRow, JobRow, RunRow, Tables, TargetHostRow } from "./store/tables.ts";

const SET_BACK_MS_MAX = 300_000;

/** The final state of the tables, in the words of the API. */
export function readFinalState(tables: Tables, beganAt: number, endedAt: number): FinalState {
  return {
    jobs: [...tables.jobs.values()].map((job) => readJob(tables, job)),
    runs: [...tables.runs.values()].map(readRun),
    events: [...tables.events.values()].map(({ id, job_id, project_no, type }) => ({
      id: uuidToId("evt_", id),
      job: uuidToId("job_", job_id),
      project: project_no,
      type: eventTypeOf(type),
    })),
    deliveries: [
      ...[...tables.open_deliveries.values()].map((row) => ({
        ...row,
        attempts: row.attempt - 1,
        end: null,
      })),
      ...[...tables.ended_deliveries.values()].map((row) => ({ ...row, end: row.status })),
    ].map(({ id, event_id, webhook_id, attempts, end }) => ({
      id: uuidToId("dlv_", id),
      event: uuidToId("evt_", event_id),
      endpoint: uuidToId("whk_", webhook_id),
      status: end === null ? ("pending" as const) : (ENDED_DELIVERY_STATUSES[end] ?? "failed"),
      attempts,
    })),
    endpoints: [...tables.webhooks.values()].map(
      ({ id, url, project_no, environment, generation, enabled }) => ({
        url,
        id: uuidToId("whk_", id),
        project: project_no,
        environment: environmentOf(environment),
        types: JOB_END_TYPES,
        wasAlwaysEnabled: enabled && generation === 0,
      }),
    ),
    schedules: [...tables.schedules.values()].map(({ id, cron, timezone, spread_ms }) => ({
      id: uuidToId("sch_", id),
      spreadMs: spread_ms ?? 0,
      // The clock may have been set back to before the beginning.
      instants: instantsBetween(cron, timezone, beganAt - SET_BACK_MS_MAX, endedAt),
    })),
    firings: [...tables.firings.values()].map(({ schedule_id, fired_for, job_id, replaced, backfilled }) => ({
      schedule: uuidToId("sch_", schedule_id),
      firedFor: toMs(fired_for),
      job: job_id === null ? null : uuidToId("job_", job_id),
      replaced: replaced ?? 0,
      isBackfilled: backfilled,
    })),
    bulks: [...tables.bulk_operations.values()].map((row) => ({
      ...{ matched: row.matched, done: row.done, skipped: row.skipped, failed: row.failed },
      bulk: uuidToId(BULK_PREFIX, row.id),
      scope: `${row.project_no}/${row.environment}`,
      ...{ isDry: row.dry_run, perSecond: row.per_second, status: bulkStatusOf(row.status) },
      left: [...tables.bulk_members.values()].filter(({ bulk_id }) => bulk_id === row.id).length,
    })),
    permits: [...tables.flows.values()].map(({ project_no: project, in_use }) => ({
      project,
      inUse: in_use.reduce((sum, count) => sum + count, 0),
      onWire: [...tables.open_jobs.values(), ...tables.open_deliveries.values()].filter(
        (row) => row.project_no === project && row.node_id !== null,
      ).length,
    })),
    gates: [
      ...[...tables.flow_keys.values()].map((key) => readGate(tables, key)),
      ...[...tables.target_hosts.values()].map((host) => readHost(tables, host)),
    ],
    usage: [...tables.flows.values()].map((flow) => readUsage(tables, flow.project_no)),
  };
}

function readJob(tables: Tables, job: JobRow): FinalJob {
  const { id, project_no, environment, max_attempts, base_seconds, cap_seconds, schedule_id } = job;
  const [open, ended] = [tables.open_jobs.get(id), tables.ended_jobs.get(id)];
  const endedAs = ended === undefined ? null : endedStatusOf(ended.status);
  return {
    job: uuidToId("job_", id),
    project: project_no,
    environment: environmentOf(environment),
    maxAttempts: max_attempts,
    baseSeconds: base_seconds,
    capSeconds: cap_seconds,
    status: jobStatusOf({ endedAs, hasRunInProgress: open !== undefined && open.run_id !== null }),
    attempts: ended?.attempts ?? (open === undefined ? 0 : open.attempt - (open.run_id === null ? 1 : 0)),
    schedule: schedule_id === null ? null : uuidToId("sch_", schedule_id),
    runAt: toMs(job.run_at),
    ...(tables.target_hosts.size > 0 && { host: hostOfTarget(job.target_url) }),
    ...(job.flow !== null && { flow: { key: job.flow.key, hold: job.flow.hold ?? "attempt" } }),
  };
}

const readHost = (tables: Tables, row: TargetHostRow): FinalGate => ({
  ...{ project: row.project_no, environment: environmentOf(row.environment), gate: row.host },
  ...{ inUse: 0, places: 0, waiting: row.parked, parked: countParkedAt(tables, row) },
});

/** The counts of a flow key, and the jobs that stand there. */
function readGate(tables: Tables, key: FlowKeyRow): FinalGate {
  const { project_no, environment, flow_key, in_use, waiting } = key;
  const own = [...tables.open_jobs.values()].filter(
    (row) => row.project_no === project_no && row.environment === environment && row.flow_key === flow_key,
  );
  return {
    ...{ project: project_no, environment: environmentOf(environment), gate: flow_key, inUse: in_use },
    places: own.filter(({ has_place }) => has_place).length,
    waiting: waiting.reduce((sum, count) => sum + count, 0),
    parked: own.filter(({ gate, due_at }) => gate === gateOf(flow_key) && due_at === null).length,
  };
}

const readRun = (run: RunRow): FinalRun => ({
  run: uuidToId("run_", run.id),
  job: uuidToId("job_", run.job_id),
  attempt: run.attempt,
  status: runStatusOf(run.status),
  responseStatus: run.response_status,
  error: run.error,
  startedAt: toMs(run.started_at),
  durationMs: run.duration_ms,
  nextRetryAt: toMsOrNull(run.next_retry_at),
  heldFor: run.held_for === null ? null : waitReasonOf(run.held_for),
});

function instantsBetween(cron: string, timezone: string, from: number, to: number): number[] {
  const timetable = readTimetable(cron, timezone);
  const instants: number[] = [];
  for (let at = nextInstant(timetable, from); at !== null && at <= to; at = nextInstant(timetable, at))
    instants.push(at);
  return instants;
}

/** The runs that usage has counted, against those that exist and are in progress. */
function readUsage(tables: Tables, project: number) {
  let counted = 0;
  for (const [key, runs] of tables.usage_days) if (key.startsWith(`${project}/`)) counted += runs;
  const inProgress = [...tables.open_jobs.values()].filter(
    (row) => row.project_no === project && row.run_id !== null,
  ).length;
  const ended = [...tables.runs.values()].filter((row) => row.project_no === project).length;
  return { project, counted, runs: inProgress + ended };
}
