import type { Flow } from "../../../../shared/domain/flow-key.ts";
import type { Instant } from "./parameters.ts";

/**
 * The rows that the modelled statements read and write, with the columns and codes of the real tables. Instants are whole
 * microseconds. Rows are found by their id alone, which no two rows of a table share.
 */

export interface ProjectRow {
  no: number;
  id: string;
  plan: string;
  default_region: number;
  api_version: string;
  active_schedules: number;
  park_failing_hosts: boolean | null;
}

export interface FlowRow {
  project_no: number;
  concurrency: number;
  /** By class: development_jobs, production_jobs, development_webhooks, production_webhooks. */
  in_use: [number, number, number, number];
  returned: number;
  month: string;
  month_runs: number;
  month_runs_max: number | null;
  held: boolean;
  retention_class: number;
  subscriptions: number;
  waiting: number;
  last_class: number;
  called_at: [Instant, Instant, Instant, Instant];
}

export interface LaneRow {
  project_no: number;
  region: number;
  environment: number;
  shard: number;
  has_deliveries: boolean;
}

export interface ShardRow {
  region: number;
  shard: number;
  epoch: number;
  owner: number | null;
  lease_until: Instant;
}

export interface NodeRow {
  id: number;
  kind: string;
  name: string;
  regions: number[];
  process: string;
  dead: boolean;
  seen_at: Instant;
  beats: number;
}

/** The place to which a row of a job or of a delivery belongs. */
export interface Place {
  project_no: number;
  environment: number;
  region: number;
}

export interface JobRow extends Place {
  id: string;
  target_url: string;
  payload: string;
  run_at: Instant;
  max_attempts: number;
  base_seconds: number;
  cap_seconds: number;
  schedule_id: string | null;
  tags: string[] | null;
  flow: Flow | null;
}

/** The columns that open_jobs and open_deliveries have in common. */
export interface OwedRow extends Place {
  id: string;
  attempt: number;
  due_at: Instant | null;
  node_id: number | null;
  started_at: Instant | null;
  parked_host: string | null;
  parked_due_at: Instant | null;
}

export interface OpenJobRow extends OwedRow {
  attempts_allowed: number;
  canceled: boolean;
  run_id: string | null;
  schedule_id: string | null;
  tags: string[] | null;
  flow_key: string | null;
  gate: string | null;
  has_place: boolean | null;
}

/** A flow key, with how many are parked at it in each region, and the starts within its window. */
export interface FlowKeyRow {
  project_no: number;
  environment: number;
  flow_key: string;
  concurrency: number | null;
  rate_count: number | null;
  rate_seconds: number | null;
  paused: boolean;
  pinned: boolean;
  in_use: number;
  waiting: number[];
  started_at: Instant[];
  started: number[];
}

/** A target host in an environment: down, opening, or neither while attempts in a row find nobody. */
export interface TargetHostRow {
  project_no: number;
  environment: number;
  host: string;
  since: Instant;
  next_probe_at: Instant | null;
  failing_since: Instant | null;
  parked: number;
  second: number;
  started: number;
  state: number | null;
  by: number | null;
  failures: number;
  probe_seconds: number;
  probe: string | null;
}

export interface GateCallRow extends Place {
  gate: string;
  waiting_change: number;
  in_use_change: number;
}

export interface OpenDeliveryRow extends OwedRow {
  webhook_id: string;
  event_id: string;
  attempt_id: string | null;
  generation: number;
  waits: number;
  by_hand: boolean;
  first_started_at: Instant | null;
}

export interface EndedJobRow extends Place {
  id: string;
  status: number;
  attempts: number;
  ended_at: Instant;
  schedule_id: string | null;
}

export interface JobTagRow extends Place {
  job_id: string;
  tag: string;
}

export interface RunTagRow {
  id: string;
  project_no: number;
  environment: number;
  status: number;
  schedule_id: string | null;
  tag: string;
}

export interface ShiftedRunRow extends Omit<RunTagRow, "tag"> {
  tags: string[] | null;
  started_at: Instant;
}

export interface RunRow {
  id: string;
  job_id: string;
  project_no: number;
  environment: number;
  retention_class: number;
  attempt: number;
  status: number;
  response_status: number | null;
  error: string | null;
  started_at: Instant;
  duration_ms: number;
  next_retry_at: Instant | null;
  late_ms: number | null;
  held_for: number | null;
  schedule_id: string | null;
}

export interface EventRow extends Place {
  id: string;
  type: number;
  job_id: string;
  attempt: number;
  run_status: number;
  response_status: number | null;
  error: string | null;
  started_at: Instant;
  duration_ms: number;
  occurred_at: Instant;
  api_version: string;
}

export interface EndedDeliveryRow extends Place {
  id: string;
  webhook_id: string;
  event_id: string;
  status: number;
  attempts: number;
  first_started_at: Instant | null;
  ended_at: Instant;
}

export interface DeliveryAttemptRow {
  delivery_id: string;
  attempt: number;
  webhook_id: string;
  status: number;
  response_status: number | null;
  error: string | null;
  started_at: Instant;
  duration_ms: number;
  counts: boolean;
}

export interface WebhookRow {
  id: string;
  project_no: number;
  environment: number;
  url: string;
  events: number;
  enabled: boolean;
  generation: number;
  sealed_secret: Buffer;
  failing_since: Instant | null;
  succeeded_at: Instant | null;
}

export interface ScheduleRow {
  id: string;
  project_no: number;
  environment: number;
  shard: number;
  name: string;
  cron: string;
  timezone: string;
  target_url: string;
  payload: string;
  max_attempts: number;
  base_seconds: number;
  cap_seconds: number;
  paused: boolean;
  tags: string[] | null;
  flow: Flow | null;
  revision: number;
  next_run_at: Instant | null;
  overlap: number | null;
  spread_seconds: number | null;
  spread_ms: number | null;
}

export interface FiringRow {
  schedule_id: string;
  fired_for: Instant;
  job_id: string | null;
  due_at: Instant | null;
  skipped_for: number | null;
  replaced: number | null;
  backfilled: boolean;
}

export interface TimetableRow {
  no: number;
  schedule_id: string;
  since: Instant;
  superseded_at: Instant | null;
  replaced_at: Instant | null;
  paused: boolean;
  cron: string;
  timezone: string;
}

export interface BulkRow {
  id: string;
  project_no: number;
  environment: number;
  shard: number;
  action: number;
  status: number;
  per_second: number;
  dry_run: boolean;
  filter: object;
  matched: number | null;
  counted: number;
  done: number;
  skipped: number;
  failed: number;
  judged_to: number;
  counted_to: string | null;
  sample: string[];
  judged_at: Instant[];
  judged_counts: number[];
  leaves_members: boolean;
  started_at: Instant | null;
  ended_at: Instant | null;
}

export interface BulkMemberRow {
  bulk_id: string;
  position: number;
  job_id: string | null;
  region: number | null;
}

export interface Tables {
  projects: Map<number, ProjectRow>;
  flows: Map<number, FlowRow>;
  lanes: Map<string, LaneRow>;
  shards: Map<string, ShardRow>;
  nodes: Map<number, NodeRow>;
  /** The last number that was given to a node. */
  node_count: number;
  jobs: Map<string, JobRow>;
  open_jobs: Map<string, OpenJobRow>;
  ended_jobs: Map<string, EndedJobRow>;
  flow_keys: Map<string, FlowKeyRow>;
  target_hosts: Map<string, TargetHostRow>;
  /** In the order of their ids. */
  gate_calls: GateCallRow[];
  job_tags: Map<string, JobTagRow & { schedule_id: string | null }>;
  job_tag_states: Map<string, JobTagRow & { state: number }>;
  runs: Map<string, RunRow>;
  run_tags: Map<string, RunTagRow>;
  shifted_runs: Map<string, ShiftedRunRow>;
  usage_days: Map<string, number>;
  webhooks: Map<string, WebhookRow>;
  events: Map<string, EventRow>;
  open_deliveries: Map<string, OpenDeliveryRow>;
  ended_deliveries: Map<string, EndedDeliveryRow>;
  delivery_attempts: Map<string, DeliveryAttemptRow>;
  schedules: Map<string, ScheduleRow>;
  firings: Map<string, FiringRow>;
  timetables: Map<number, TimetableRow>;
  bulk_operations: Map<string, BulkRow>;
  bulk_members: Map<string, BulkMemberRow>;
  held_regions: Set<number>;
  host_limits: Map<string, number>;
  signing_secret: Buffer;
  clock_watch: { seen_at: Instant; steady_since: Instant } | null;
}

export function emptyTables(): Tables {
  return {
    projects: new Map(),
    flows: new Map(),
    lanes: new Map(),
    shards: new Map(),
    nodes: new Map(),
    node_count: 0,
    jobs: new Map(),
    open_jobs: new Map(),
    ended_jobs: new Map(),
    flow_keys: new Map(),
    target_hosts: new Map(),
    gate_calls: [],
    job_tags: new Map(),
    job_tag_states: new Map(),
    runs: new Map(),
    run_tags: new Map(),
    shifted_runs: new Map(),
    usage_days: new Map(),
    webhooks: new Map(),
    events: new Map(),
    open_deliveries: new Map(),
    ended_deliveries: new Map(),
    delivery_attempts: new Map(),
    schedules: new Map(),
    firings: new Map(),
    timetables: new Map(),
    bulk_operations: new Map(),
    bulk_members: new Map(),
    held_regions: new Set(),
    host_limits: new Map(),
    signing_secret: Buffer.from("secret"),
    clock_watch: null,
  };
}

/** The times of a statement: its beginning (now()), and when it has its locks and commits (clock_timestamp()). */
export interface StatementTime {
  now: Instant;
  clock: Instant;
}

/** One statement of the model: it answers these parameters, and changes the rows, as Postgres does. */
export type Statement = (tables: Tables, time: StatementTime, values: readonly unknown[]) => object[];

export const laneKey = ({ project_no, region, environment }: Place) =>
  `${project_no}/${region}/${environment}`;
export const shardKey = (region: number, shard: number) => `${region}/${shard}`;
export const attemptKey = (id: string, attempt: number | string) => `${id}/${attempt}`;

/** The row of that id, if it stands at this place. */
export function rowAt<Row extends Place>(rows: ReadonlyMap<string, Row>, place: Place, id: string) {
  const row = rows.get(id);
  const isThere =
    row !== undefined &&
    row.project_no === place.project_no &&
    row.environment === place.environment &&
    row.region === place.region;
  return isThere ? row : undefined;
}

export const findJob = (tables: Tables, { id }: { id: string }): JobRow => {
  const job = tables.jobs.get(id);
  if (job === undefined) throw new Error(`the job ${id} has no row`);
  return job;
};
