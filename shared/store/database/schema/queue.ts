import { sql } from "drizzle-orm";
import * as pg from "drizzle-orm/pg-core";
import { bytea, instant, scope, wholeNumber } from "./columns.ts";

/** What is owed and who looks after it: read and changed for every job. */

/**
 * One narrow row per project: its permits in use by class, the runs of its month, and what its endpoints hear of.
 * Only the key has an index, so that every update stays on its page (HOT).
 */
export const flows = pg.pgTable("flows", {
  projectNo: pg.integer("project_no").primaryKey(),
  concurrency: pg.integer("concurrency").notNull(),
  developmentJobs: pg.integer("development_jobs").notNull().default(0),
  productionJobs: pg.integer("production_jobs").notNull().default(0),
  developmentWebhooks: pg.integer("development_webhooks").notNull().default(0),
  productionWebhooks: pg.integer("production_webhooks").notNull().default(0),
  returned: wholeNumber("returned").notNull().default(0),
  month: pg.date("month").notNull(),
  monthRuns: wholeNumber("month_runs").notNull().default(0),
  monthRunsMax: wholeNumber("month_runs_max"),
  held: pg.boolean("held").notNull().default(false),
  retentionClass: pg.smallint("retention_class").notNull(),
  subscriptions: pg.smallint("subscriptions").notNull().default(0),
  waiting: pg.integer("waiting").notNull().default(0),
  lastClass: pg.smallint("last_class").notNull().default(0),
  calledAt: instant("called_at").array().notNull().default(sql`'{-infinity,-infinity,-infinity,-infinity}'`),
});

/** Who owns which shard. A takeover increments `epoch`; what an owner writes is fenced by it. */
export const shards = pg.pgTable(
  "shards",
  {
    region: pg.smallint("region").notNull(),
    shard: pg.smallint("shard").notNull(),
    epoch: wholeNumber("epoch").notNull().default(0),
    owner: pg.integer("owner"),
    leaseUntil: instant("lease_until").notNull().default(sql`'-infinity'`),
  },
  (table) => [
    pg.primaryKey({ columns: [table.region, table.shard] }),
    pg.unique("shards_region_shard_epoch_key").on(table.region, table.shard, table.epoch),
  ],
);

/** The projects that have jobs, by region and environment: the list that the sweep walks. */
export const lanes = pg.pgTable(
  "lanes",
  {
    ...scope,
    region: pg.smallint("region").notNull(),
    shard: pg.smallint("shard").notNull(),
    hasDeliveries: pg.boolean("has_deliveries").notNull().default(false),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.region, table.environment] }),
    pg.index("lanes_shard").on(table.region, table.shard),
    pg.index("lanes_with_deliveries").on(table.region, table.shard).where(sql`${table.hasDeliveries}`),
  ],
);

/** What was asked: written once and never changed. The time of its creation is in the id. */
export const jobs = pg.pgTable(
  "jobs",
  {
    runAt: instant("run_at").notNull(),
    ...scope,
    baseSeconds: pg.integer("base_seconds").notNull(),
    capSeconds: pg.integer("cap_seconds").notNull(),
    region: pg.smallint("region").notNull(),
    maxAttempts: pg.smallint("max_attempts").notNull(),
    id: pg.uuid("id").notNull(),
    scheduleId: pg.uuid("schedule_id"),
    targetUrl: pg.text("target_url").notNull(),
    payload: pg.text("payload").notNull(),
    keyNo: pg.integer("key_no"),
    requestId: pg.uuid("request_id"),
    trace: bytea("trace"),
    tags: pg.text("tags").array(),
    flow: pg.json("flow"),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.region, table.id] }),
    pg
      .index("jobs_of_schedule")
      .on(table.scheduleId, table.region, table.id)
      .where(sql`${table.scheduleId} IS NOT NULL`),
  ],
);

/** A tag of a job, for lists. It never changes. */
export const jobTags = pg.pgTable(
  "job_tags",
  {
    ...scope,
    region: pg.smallint("region").notNull(),
    jobId: pg.uuid("job_id").notNull(),
    scheduleId: pg.uuid("schedule_id"),
    tag: pg.text("tag").notNull(),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.tag, table.region, table.jobId] }),
    pg
      .index("job_tags_of_schedule")
      .on(table.scheduleId, table.tag, table.region, table.jobId)
      .where(sql`${table.scheduleId} IS NOT NULL`),
  ],
);

/** The same by how the job ended; `state` is -1 until it has. */
export const jobTagStates = pg.pgTable(
  "job_tag_states",
  {
    ...scope,
    state: pg.smallint("state").notNull(),
    region: pg.smallint("region").notNull(),
    jobId: pg.uuid("job_id").notNull(),
    tag: pg.text("tag").notNull(),
  },
  (table) => [
    pg.primaryKey({
      columns: [table.projectNo, table.environment, table.tag, table.state, table.region, table.jobId],
    }),
  ],
);

/**
 * What is owed: one row per job that is not over. `due_at` is set while an attempt is owed, `run_id` while the attempt has
 * its run, and `node_id` while it is on the wire.
 */
export const openJobs = pg.pgTable(
  "open_jobs",
  {
    dueAt: instant("due_at"),
    startedAt: instant("started_at"),
    ...scope,
    nodeId: pg.integer("node_id"),
    region: pg.smallint("region").notNull(),
    attempt: pg.smallint("attempt").notNull().default(1),
    attemptsAllowed: pg.smallint("attempts_allowed").notNull(),
    canceled: pg.boolean("canceled").notNull().default(false),
    jobId: pg.uuid("job_id").notNull(),
    runId: pg.uuid("run_id"),
    trace: bytea("trace"),
    parkedHost: pg.text("parked_host"),
    parkedDueAt: instant("parked_due_at"),
    scheduleId: pg.uuid("schedule_id"),
    tags: pg.text("tags").array(),
    hasPlace: pg.boolean("has_place"),
    flowKey: pg.text("flow_key"),
    gate: pg.text("gate"),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.region, table.jobId] }),
    pg
      .index("open_jobs_gate")
      .on(table.projectNo, table.environment, table.gate, table.region, table.parkedDueAt, table.jobId)
      .where(sql`${table.gate} IS NOT NULL`),
    pg
      .index("open_jobs_parked")
      .on(table.parkedHost, table.projectNo, table.region, table.environment, table.parkedDueAt)
      .where(sql`${table.dueAt} IS NULL AND ${table.nodeId} IS NULL`),
    pg
      .index("open_jobs_due")
      .on(table.projectNo, table.region, table.environment, table.dueAt)
      .where(sql`${table.dueAt} IS NOT NULL`),
    pg
      .index("open_jobs_overlap")
      .on(table.scheduleId, table.attempt, table.jobId)
      .where(sql`${table.scheduleId} IS NOT NULL`),
    pg
      .index("open_jobs_in_progress")
      .on(table.projectNo, table.environment, table.runId)
      .where(sql`${table.runId} IS NOT NULL`),
    pg
      .index("open_jobs_of_schedule")
      .on(table.scheduleId, table.region, table.jobId)
      .where(sql`${table.scheduleId} IS NOT NULL AND ${table.runId} IS NULL`),
  ],
);

/**
 * A flow key: its limits, its places in use, how many attempts are parked at it by region, and the starts within the window of its rate
 * (flow-gates.ts).
 */
export const flowKeys = pg.pgTable(
  "flow_keys",
  {
    usedAt: instant("used_at").notNull().default(sql`now()`),
    projectNo: pg.integer("project_no").notNull(),
    concurrency: pg.integer("concurrency"),
    rateCount: pg.integer("rate_count"),
    rateSeconds: pg.integer("rate_seconds"),
    inUse: pg.integer("in_use").notNull().default(0),
    environment: pg.smallint("environment").notNull(),
    paused: pg.boolean("paused").notNull().default(false),
    pinned: pg.boolean("pinned").notNull().default(false),
    flowKey: pg.text("flow_key").notNull(),
    waiting: wholeNumber("waiting").array().notNull().default(sql`'{0,0,0,0}'`),
    startedAt: instant("started_at").array().notNull().default(sql`'{}'`),
    started: pg.integer("started").array().notNull().default(sql`'{}'`),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.flowKey] }),
    pg.index("flow_keys_idle").on(table.usedAt).where(sql`NOT ${table.pinned} AND NOT ${table.paused}`),
  ],
);

/** A target host that is down or opening for an environment, or at which attempts in a row have found nobody (target-hosts.ts). */
export const targetHosts = pg.pgTable(
  "target_hosts",
  {
    since: instant("since").notNull().default(sql`now()`),
    nextProbeAt: instant("next_probe_at"),
    failingSince: instant("failing_since"),
    parked: wholeNumber("parked").notNull().default(0),
    projectNo: pg.integer("project_no").notNull(),
    second: pg.integer("second").notNull().default(0),
    started: pg.integer("started").notNull().default(0),
    environment: pg.smallint("environment").notNull(),
    state: pg.smallint("state"),
    by: pg.smallint("by"),
    failures: pg.smallint("failures").notNull().default(0),
    probeSeconds: pg.smallint("probe_seconds").notNull().default(0),
    probe: pg.uuid("probe"),
    host: pg.text("host").notNull(),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.host] }),
    pg.index("target_hosts_not_well").on(table.nextProbeAt).where(sql`${table.state} IS NOT NULL`),
    pg
      .index("target_hosts_listed")
      .on(table.projectNo, table.environment, table.state, table.host)
      .where(sql`${table.state} IS NOT NULL`),
    pg
      .index("target_hosts_probe")
      .on(table.projectNo, table.environment, table.probe)
      .where(sql`${table.probe} IS NOT NULL`),
    pg.index("target_hosts_well").on(table.since).where(sql`${table.state} IS NULL`),
  ],
);

/** What has changed at a gate without its lock (gate-calls.ts). */
export const gateCalls = pg.pgTable("gate_calls", {
  id: wholeNumber("id").primaryKey().generatedAlwaysAsIdentity(),
  projectNo: pg.integer("project_no").notNull(),
  waitingChange: pg.integer("waiting_change").notNull().default(0),
  inUseChange: pg.integer("in_use_change").notNull().default(0),
  environment: pg.smallint("environment").notNull(),
  region: pg.smallint("region").notNull().default(0),
  gate: pg.text("gate").notNull(),
});

export const endedJobs = pg.pgTable(
  "ended_jobs",
  {
    endedAt: instant("ended_at").notNull(),
    ...scope,
    status: pg.smallint("status").notNull(),
    region: pg.smallint("region").notNull(),
    attempts: pg.smallint("attempts").notNull(),
    jobId: pg.uuid("job_id").notNull(),
    scheduleId: pg.uuid("schedule_id"),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.status, table.region, table.jobId] }),
    pg
      .index("ended_jobs_of_schedule")
      .on(table.scheduleId, table.status, table.region, table.jobId)
      .where(sql`${table.scheduleId} IS NOT NULL`),
  ],
);

/**
 * What some endpoint was to hear of. The end of a job that a settlement gave it has the bits of its last run's id, and what
 * that run came to. Anything else has `data` instead, which event-data.ts reads. Without a job and without `data` it is a sample.
 */
export const events = pg.pgTable(
  "events",
  {
    occurredAt: instant("occurred_at").notNull(),
    startedAt: instant("started_at"),
    ...scope,
    durationMs: pg.integer("duration_ms"),
    region: pg.smallint("region").notNull(),
    type: pg.smallint("type").notNull(),
    attempt: pg.smallint("attempt"),
    runStatus: pg.smallint("run_status"),
    responseStatus: pg.smallint("response_status"),
    id: pg.uuid("id").notNull(),
    jobId: pg.uuid("job_id"),
    apiVersion: pg.text("api_version").notNull(),
    error: pg.text("error"),
    trace: bytea("trace"),
    data: pg.json("data"),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.id] }),
    pg.index("events_age").on(table.occurredAt),
  ],
);

/**
 * What is owed to endpoints: one row per event and endpoint until it has ended. `due_at` is set while an attempt is owed,
 * `attempt_id` and `node_id` while it is on the wire.
 */
export const openDeliveries = pg.pgTable(
  "open_deliveries",
  {
    dueAt: instant("due_at"),
    startedAt: instant("started_at"),
    firstStartedAt: instant("first_started_at"),
    ...scope,
    nodeId: pg.integer("node_id"),
    generation: pg.integer("generation").notNull(),
    region: pg.smallint("region").notNull(),
    waits: pg.smallint("waits").notNull().default(0),
    attempt: pg.smallint("attempt").notNull().default(1),
    byHand: pg.boolean("by_hand").notNull().default(false),
    id: pg.uuid("id").notNull(),
    webhookId: pg.uuid("webhook_id").notNull(),
    eventId: pg.uuid("event_id").notNull(),
    attemptId: pg.uuid("attempt_id"),
    parkedHost: pg.text("parked_host"),
    parkedDueAt: instant("parked_due_at"),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.region, table.id] }),
    pg
      .index("open_deliveries_parked")
      .on(table.parkedHost, table.projectNo, table.region, table.environment, table.parkedDueAt)
      .where(sql`${table.dueAt} IS NULL AND ${table.nodeId} IS NULL`),
    pg
      .index("open_deliveries_due")
      .on(table.projectNo, table.region, table.environment, table.dueAt)
      .where(sql`${table.dueAt} IS NOT NULL`),
    pg.index("open_deliveries_running").on(table.nodeId).where(sql`${table.nodeId} IS NOT NULL`),
    pg
      .index("open_deliveries_listed")
      .on(table.projectNo, table.environment, table.webhookId, table.generation, table.id),
  ],
);

export const leftHosts = pg.pgTable(
  "left_hosts",
  {
    leftAt: instant("left_at").notNull().default(sql`clock_timestamp()`),
    ...scope,
    webhookId: pg.uuid("webhook_id").notNull(),
    host: pg.text("host").notNull(),
  },
  (table) => [pg.primaryKey({ columns: [table.webhookId, table.host] })],
);

/**
 * What a client asks for many jobs at once (queue/bulk/). `matched` is null until all members are counted. `counted_to` is where the counting goes on, `judged_to` the place of the
 * last member that was judged, and `judged_at` with `judged_counts` are the members of the last second. An aborted one leaves members.
 */
export const bulkOperations = pg.pgTable(
  "bulk_operations",
  {
    startedAt: instant("started_at"),
    endedAt: instant("ended_at"),
    matched: wholeNumber("matched"),
    counted: wholeNumber("counted").notNull().default(0),
    done: wholeNumber("done").notNull().default(0),
    skipped: wholeNumber("skipped").notNull().default(0),
    failed: wholeNumber("failed").notNull().default(0),
    judgedTo: wholeNumber("judged_to").notNull().default(0),
    ...scope,
    shard: pg.smallint("shard").notNull(),
    action: pg.smallint("action").notNull(),
    status: pg.smallint("status").notNull(),
    perSecond: pg.smallint("per_second").notNull(),
    dryRun: pg.boolean("dry_run").notNull(),
    leavesMembers: pg.boolean("leaves_members").notNull().default(false),
    id: pg.uuid("id").notNull(),
    filter: pg.json("filter").notNull(),
    sample: pg.text("sample").array().notNull().default(sql`'{}'`),
    countedTo: pg.text("counted_to"),
    judgedAt: instant("judged_at").array().notNull().default(sql`'{}'`),
    judgedCounts: pg.smallint("judged_counts").array().notNull().default(sql`'{}'`),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.id] }),
    pg
      .index("bulk_operations_open")
      .on(table.projectNo, table.environment, table.id)
      .where(sql`${table.endedAt} IS NULL`),
    pg.index("bulk_operations_of_shard").on(table.shard, table.id).where(sql`${table.endedAt} IS NULL`),
    pg
      .uniqueIndex("bulk_operations_running")
      .on(table.projectNo, table.environment)
      .where(sql`${table.status} = 3`),
    pg.index("bulk_operations_ended").on(table.endedAt).where(sql`${table.endedAt} IS NOT NULL`),
    pg.index("bulk_operations_left").on(table.id).where(sql`${table.leavesMembers}`),
  ],
);

/** A member that is still to be judged: a job, or an instant of a schedule, whose `position` is its milliseconds since 1970. */
export const bulkMembers = pg.pgTable(
  "bulk_members",
  {
    position: wholeNumber("position").notNull(),
    region: pg.smallint("region"),
    bulkId: pg.uuid("bulk_id").notNull(),
    jobId: pg.uuid("job_id"),
  },
  (table) => [pg.primaryKey({ columns: [table.bulkId, table.position] })],
);
