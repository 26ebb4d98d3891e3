import { sql } from "drizzle-orm";
import {
  bigint,
  boolean,
  customType,
  date,
  index,
  integer,
  json,
  jsonb,
  pgTable,
  primaryKey,
  smallint,
  text,
  timestamp,
  unique,
  uniqueIndex,
  uuid,
} from "drizzle-orm/pg-core";

/**
 * The tables as drizzle knows them; migrations/ makes them and says what each is for. A test compares the two.
 */

const bytea = customType<{ data: Buffer }>({ dataType: () => "bytea" });
const instant = (name: string) => timestamp(name, { withTimezone: true });

export const projects = pgTable("projects", {
  no: integer("no").primaryKey().generatedAlwaysAsIdentity(),
  id: uuid("id").notNull().unique(),
  name: text("name").notNull(),
  plan: text("plan").notNull(),
  defaultRegion: smallint("default_region").notNull().default(0),
  apiVersion: text("api_version").notNull(),
  requestsPerMinute: integer("requests_per_minute"),
  concurrency: integer("concurrency"),
  schedules: integer("schedules"),
  activeSchedules: integer("active_schedules").notNull().default(0),
});

export const apiKeys = pgTable(
  "api_keys",
  {
    id: uuid("id").primaryKey(),
    projectNo: integer("project_no")
      .notNull()
      .references(() => projects.no),
    environment: smallint("environment").notNull(),
    scope: text("scope").notNull(),
    name: text("name"),
    hash: bytea("hash").notNull().unique(),
    expiresAt: instant("expires_at"),
    revokedAt: instant("revoked_at"),
    lastUsedAt: instant("last_used_at"),
    no: integer("no").generatedAlwaysAsIdentity().unique(),
  },
  (table) => [index("api_keys_project").on(table.projectNo)],
);

export const signingSecrets = pgTable(
  "signing_secrets",
  {
    id: uuid("id").primaryKey(),
    projectNo: integer("project_no")
      .notNull()
      .references(() => projects.no),
    environment: smallint("environment").notNull(),
    sealed: bytea("sealed").notNull(),
    expiresAt: instant("expires_at"),
  },
  (table) => [index("signing_secrets_project").on(table.projectNo, table.environment)],
);

export const secretsKeys = pgTable(
  "secrets_keys",
  {
    firstUsedAt: instant("first_used_at").notNull().defaultNow(),
    retiredAt: instant("retired_at"),
    seals: boolean("seals").notNull(),
    fingerprint: text("fingerprint").primaryKey(),
  },
  (table) => [uniqueIndex("secrets_keys_sealing").on(table.seals).where(sql`${table.seals}`)],
);

export const flows = pgTable("flows", {
  projectNo: integer("project_no")
    .primaryKey()
    .references(() => projects.no),
  concurrency: integer("concurrency").notNull(),
  developmentJobs: integer("development_jobs").notNull().default(0),
  productionJobs: integer("production_jobs").notNull().default(0),
  developmentWebhooks: integer("development_webhooks").notNull().default(0),
  productionWebhooks: integer("production_webhooks").notNull().default(0),
  returned: bigint("returned", { mode: "number" }).notNull().default(0),
  waitingRegions: smallint("waiting_regions").notNull().default(0),
  month: date("month").notNull(),
  monthRuns: bigint("month_runs", { mode: "number" }).notNull().default(0),
  monthRunsMax: bigint("month_runs_max", { mode: "number" }),
  held: boolean("held").notNull().default(false),
  retentionClass: smallint("retention_class").notNull(),
  subscriptions: smallint("subscriptions").notNull().default(0),
  waiting: integer("waiting").notNull().default(0),
  lastClass: smallint("last_class").notNull().default(0),
  calledAt: instant("called_at").array().notNull().default(sql`'{-infinity,-infinity,-infinity,-infinity}'`),
});

export const usageDays = pgTable(
  "usage_days",
  {
    projectNo: integer("project_no").notNull(),
    day: date("day").notNull(),
    region: smallint("region").notNull(),
    runs: bigint("runs", { mode: "number" }).notNull(),
  },
  (table) => [primaryKey({ columns: [table.projectNo, table.day, table.region] })],
);

export const rateWindows = pgTable(
  "rate_windows",
  {
    projectNo: integer("project_no").notNull(),
    environment: smallint("environment").notNull(),
    accepted: integer("accepted").notNull().default(0),
    loans: jsonb("loans").notNull().default({}),
  },
  (table) => [primaryKey({ columns: [table.projectNo, table.environment] })],
);

export const rateTicks = pgTable(
  "rate_ticks",
  {
    projectNo: integer("project_no").notNull(),
    environment: smallint("environment").notNull(),
    tick: bigint("tick", { mode: "number" }).notNull(),
    accepted: integer("accepted").notNull(),
  },
  (table) => [primaryKey({ columns: [table.projectNo, table.environment, table.tick] })],
);

export const idempotencyKeys = pgTable(
  "idempotency_keys",
  {
    createdAt: instant("created_at").notNull(),
    projectNo: integer("project_no").notNull(),
    environment: smallint("environment").notNull(),
    attempt: smallint("attempt"),
    digest: bytea("digest").notNull(),
    requestHash: bytea("request_hash").notNull(),
    jobIds: uuid("job_ids").array().notNull(),
    runId: uuid("run_id"),
    answer: bytea("answer"),
  },
  (table) => [
    primaryKey({ columns: [table.projectNo, table.environment, table.digest] }),
    index("idempotency_keys_age").on(table.createdAt),
  ],
);

export const nodes = pgTable(
  "nodes",
  {
    id: integer("id").primaryKey().generatedAlwaysAsIdentity(),
    kind: text("kind").notNull(),
    name: text("name").notNull(),
    regions: smallint("regions").array().notNull(),
    process: text("process").notNull(),
    startedAt: instant("started_at").notNull().defaultNow(),
    seenAt: instant("seen_at").notNull().defaultNow(),
    dead: boolean("dead").notNull().default(false),
    beats: bigint("beats", { mode: "number" }).notNull().default(0),
  },
  (table) => [
    unique("nodes_id_dead_key").on(table.id, table.dead),
    uniqueIndex("nodes_living_name").on(table.kind, table.name).where(sql`NOT ${table.dead}`),
  ],
);

export const shards = pgTable(
  "shards",
  {
    region: smallint("region").notNull(),
    shard: smallint("shard").notNull(),
    epoch: bigint("epoch", { mode: "number" }).notNull().default(0),
    owner: integer("owner"),
    leaseUntil: instant("lease_until").notNull().default(sql`'-infinity'`),
  },
  (table) => [
    primaryKey({ columns: [table.region, table.shard] }),
    unique("shards_region_shard_epoch_key").on(table.region, table.shard, table.epoch),
  ],
);

export const lanes = pgTable(
  "lanes",
  {
    projectNo: integer("project_no").notNull(),
    region: smallint("region").notNull(),
    environment: smallint("environment").notNull(),
    shard: smallint("shard").notNull(),
    hasDeliveries: boolean("has_deliveries").notNull().default(false),
  },
  (table) => [
    primaryKey({ columns: [table.projectNo, table.region, table.environment] }),
    index("lanes_shard").on(table.region, table.shard),
    index("lanes_with_deliveries").on(table.region, table.shard).where(sql`${table.hasDeliveries}`),
  ],
);

export const jobs = pgTable(
  "jobs",
  {
    runAt: instant("run_at").notNull(),
    projectNo: integer("project_no").notNull(),
    baseSeconds: integer("base_seconds").notNull(),
    capSeconds: integer("cap_seconds").notNull(),
    environment: smallint("environment").notNull(),
    region: smallint("region").notNull(),
    maxAttempts: smallint("max_attempts").notNull(),
    id: uuid("id").notNull(),
    scheduleId: uuid("schedule_id"),
    targetUrl: text("target_url").notNull(),
    payload: text("payload").notNull(),
    keyNo: integer("key_no"),
    requestId: uuid("request_id"),
    trace: bytea("trace"),
  },
  (table) => [primaryKey({ columns: [table.projectNo, table.environment, table.region, table.id] })],
);

export const openJobs = pgTable(
  "open_jobs",
  {
    dueAt: instant("due_at"),
    startedAt: instant("started_at"),
    projectNo: integer("project_no").notNull(),
    nodeId: integer("node_id"),
    environment: smallint("environment").notNull(),
    region: smallint("region").notNull(),
    attempt: smallint("attempt").notNull().default(1),
    attemptsAllowed: smallint("attempts_allowed").notNull(),
    canceled: boolean("canceled").notNull().default(false),
    jobId: uuid("job_id").notNull(),
    runId: uuid("run_id"),
    trace: bytea("trace"),
    parkedHost: text("parked_host"),
    parkedDueAt: instant("parked_due_at"),
  },
  (table) => [
    primaryKey({ columns: [table.projectNo, table.environment, table.region, table.jobId] }),
    index("open_jobs_parked")
      .on(table.parkedHost, table.projectNo, table.region, table.environment, table.parkedDueAt)
      .where(sql`${table.dueAt} IS NULL AND ${table.nodeId} IS NULL`),
    index("open_jobs_due")
      .on(table.projectNo, table.region, table.environment, table.dueAt)
      .where(sql`${table.dueAt} IS NOT NULL`),
    index("open_jobs_running").on(table.projectNo, table.runId).where(sql`${table.runId} IS NOT NULL`),
  ],
);

export const endedJobs = pgTable(
  "ended_jobs",
  {
    endedAt: instant("ended_at").notNull(),
    projectNo: integer("project_no").notNull(),
    environment: smallint("environment").notNull(),
    status: smallint("status").notNull(),
    region: smallint("region").notNull(),
    attempts: smallint("attempts").notNull(),
    jobId: uuid("job_id").notNull(),
  },
  (table) => [
    primaryKey({ columns: [table.projectNo, table.environment, table.status, table.region, table.jobId] }),
  ],
);

export const runs = pgTable(
  "runs",
  {
    startedAt: instant("started_at").notNull(),
    nextRetryAt: instant("next_retry_at"),
    projectNo: integer("project_no").notNull(),
    durationMs: integer("duration_ms").notNull(),
    environment: smallint("environment").notNull(),
    status: smallint("status").notNull(),
    attempt: smallint("attempt").notNull(),
    responseStatus: smallint("response_status"),
    retentionClass: smallint("retention_class").notNull().default(3),
    id: uuid("id").notNull(),
    jobId: uuid("job_id").notNull(),
    error: text("error"),
  },
  (table) => [
    index("runs_of_job").on(table.jobId, table.attempt),
    index("runs_listed").on(table.projectNo, table.environment, table.status, table.id),
  ],
);

export const runMoves = pgTable("run_moves", {
  projectNo: integer("project_no").primaryKey(),
  notedAt: instant("noted_at").notNull().default(sql`clock_timestamp()`),
});

export const auditEntries = pgTable(
  "audit_entries",
  {
    id: uuid("id").primaryKey(),
    recordedAt: instant("recorded_at").notNull().defaultNow(),
    projectNo: integer("project_no"),
    environment: smallint("environment"),
    keyNo: integer("key_no"),
    operator: text("operator"),
    action: text("action").notNull(),
    subject: text("subject").notNull(),
    detail: json("detail"),
  },
  (table) => [
    index("audit_entries_project").on(table.projectNo, table.id),
    index("audit_entries_operators").on(table.id).where(sql`${table.operator} IS NOT NULL`),
  ],
);

export const schedules = pgTable(
  "schedules",
  {
    nextRunAt: instant("next_run_at"),
    projectNo: integer("project_no").notNull(),
    baseSeconds: integer("base_seconds").notNull(),
    capSeconds: integer("cap_seconds").notNull(),
    revision: integer("revision").notNull().default(0),
    environment: smallint("environment").notNull(),
    shard: smallint("shard").notNull(),
    maxAttempts: smallint("max_attempts").notNull(),
    paused: boolean("paused").notNull().default(false),
    id: uuid("id").notNull(),
    name: text("name").notNull(),
    cron: text("cron").notNull(),
    timezone: text("timezone").notNull(),
    targetUrl: text("target_url").notNull(),
    payload: text("payload").notNull(),
  },
  (table) => [
    primaryKey({ columns: [table.projectNo, table.environment, table.id] }),
    unique("schedules_name").on(table.projectNo, table.environment, table.name),
    index("schedules_due").on(table.shard, table.nextRunAt).where(sql`${table.nextRunAt} IS NOT NULL`),
    index("schedules_listed").on(table.projectNo, table.environment, table.paused, table.id),
  ],
);

export const firings = pgTable(
  "firings",
  {
    firedFor: instant("fired_for").notNull(),
    scheduleId: uuid("schedule_id").notNull(),
    jobId: uuid("job_id"),
  },
  (table) => [
    primaryKey({ columns: [table.scheduleId, table.firedFor] }),
    index("firings_age").on(table.firedFor),
  ],
);

export const timetables = pgTable(
  "timetables",
  {
    no: bigint("no", { mode: "number" }).generatedAlwaysAsIdentity(),
    since: instant("since").notNull().defaultNow(),
    supersededAt: instant("superseded_at"),
    scheduleId: uuid("schedule_id").notNull(),
    paused: boolean("paused").notNull(),
    cron: text("cron").notNull(),
    timezone: text("timezone").notNull(),
    replacedAt: instant("replaced_at"),
  },
  (table) => [
    primaryKey({ columns: [table.scheduleId, table.no] }),
    index("timetables_replaced").on(table.replacedAt).where(sql`${table.replacedAt} IS NOT NULL`),
  ],
);

export const deletedSchedules = pgTable("deleted_schedules", {
  scheduleId: uuid("schedule_id").primaryKey(),
});

export const clockWatch = pgTable("clock_watch", {
  seenAt: instant("seen_at").notNull(),
  steadySince: instant("steady_since").notNull(),
  one: boolean("one").primaryKey().default(true),
});

export const webhooks = pgTable(
  "webhooks",
  {
    failingSince: instant("failing_since"),
    succeededAt: instant("succeeded_at"),
    oldSecretUntil: instant("old_secret_until"),
    projectNo: integer("project_no").notNull(),
    generation: integer("generation").notNull().default(0),
    environment: smallint("environment").notNull(),
    events: smallint("events").notNull(),
    enabled: boolean("enabled").notNull().default(true),
    id: uuid("id").notNull(),
    url: text("url").notNull(),
    description: text("description"),
    sealedSecret: bytea("sealed_secret").notNull(),
    sealedOldSecret: bytea("sealed_old_secret"),
  },
  (table) => [primaryKey({ columns: [table.projectNo, table.environment, table.id] })],
);

export const events = pgTable(
  "events",
  {
    occurredAt: instant("occurred_at").notNull(),
    startedAt: instant("started_at").notNull(),
    projectNo: integer("project_no").notNull(),
    durationMs: integer("duration_ms").notNull(),
    environment: smallint("environment").notNull(),
    region: smallint("region").notNull(),
    type: smallint("type").notNull(),
    attempt: smallint("attempt").notNull(),
    runStatus: smallint("run_status").notNull(),
    responseStatus: smallint("response_status"),
    id: uuid("id").notNull(),
    jobId: uuid("job_id"),
    apiVersion: text("api_version").notNull(),
    error: text("error"),
    trace: bytea("trace"),
  },
  (table) => [
    primaryKey({ columns: [table.projectNo, table.environment, table.id] }),
    index("events_age").on(table.occurredAt),
  ],
);

export const openDeliveries = pgTable(
  "open_deliveries",
  {
    dueAt: instant("due_at"),
    startedAt: instant("started_at"),
    firstStartedAt: instant("first_started_at"),
    projectNo: integer("project_no").notNull(),
    nodeId: integer("node_id"),
    generation: integer("generation").notNull(),
    environment: smallint("environment").notNull(),
    region: smallint("region").notNull(),
    waits: smallint("waits").notNull().default(0),
    attempt: smallint("attempt").notNull().default(1),
    byHand: boolean("by_hand").notNull().default(false),
    id: uuid("id").notNull(),
    webhookId: uuid("webhook_id").notNull(),
    eventId: uuid("event_id").notNull(),
    attemptId: uuid("attempt_id"),
    parkedHost: text("parked_host"),
    parkedDueAt: instant("parked_due_at"),
  },
  (table) => [
    primaryKey({ columns: [table.projectNo, table.environment, table.region, table.id] }),
    index("open_deliveries_parked")
      .on(table.parkedHost, table.projectNo, table.region, table.environment, table.parkedDueAt)
      .where(sql`${table.dueAt} IS NULL AND ${table.nodeId} IS NULL`),
    index("open_deliveries_due")
      .on(table.projectNo, table.region, table.environment, table.dueAt)
      .where(sql`${table.dueAt} IS NOT NULL`),
    index("open_deliveries_running").on(table.nodeId).where(sql`${table.nodeId} IS NOT NULL`),
    index("open_deliveries_listed").on(
      table.projectNo,
      table.environment,
      table.webhookId,
      table.generation,
      table.id,
    ),
  ],
);

export const endedDeliveries = pgTable(
  "ended_deliveries",
  {
    endedAt: instant("ended_at").notNull(),
    firstStartedAt: instant("first_started_at"),
    projectNo: integer("project_no").notNull(),
    environment: smallint("environment").notNull(),
    region: smallint("region").notNull(),
    status: smallint("status").notNull(),
    attempts: smallint("attempts").notNull(),
    id: uuid("id").notNull(),
    webhookId: uuid("webhook_id").notNull(),
    eventId: uuid("event_id").notNull(),
  },
  (table) => [
    primaryKey({ columns: [table.projectNo, table.environment, table.webhookId, table.status, table.id] }),
    index("ended_deliveries_age").on(table.endedAt),
  ],
);

export const deliveryAttempts = pgTable(
  "delivery_attempts",
  {
    startedAt: instant("started_at").notNull(),
    durationMs: integer("duration_ms").notNull(),
    attempt: smallint("attempt").notNull(),
    status: smallint("status").notNull(),
    responseStatus: smallint("response_status"),
    counts: boolean("counts").notNull().default(true),
    deliveryId: uuid("delivery_id").notNull(),
    webhookId: uuid("webhook_id").notNull(),
    error: text("error"),
  },
  (table) => [
    primaryKey({ columns: [table.deliveryId, table.attempt] }),
    index("delivery_attempts_failed")
      .on(table.webhookId, table.startedAt)
      .where(sql`${table.status} <> 1 AND ${table.counts}`),
  ],
);

export const hostLimits = pgTable("host_limits", {
  limitedAt: instant("limited_at").notNull().defaultNow(),
  requests: integer("requests").notNull(),
  host: text("host").primaryKey(),
});

export const leftHosts = pgTable(
  "left_hosts",
  {
    leftAt: instant("left_at").notNull().default(sql`clock_timestamp()`),
    projectNo: integer("project_no").notNull(),
    environment: smallint("environment").notNull(),
    webhookId: uuid("webhook_id").notNull(),
    host: text("host").notNull(),
  },
  (table) => [primaryKey({ columns: [table.webhookId, table.host] })],
);

export const heldRegions = pgTable("held_regions", {
  heldAt: instant("held_at").notNull().defaultNow(),
  region: smallint("region").primaryKey(),
  restored: boolean("restored").notNull().default(false),
});

export const cell = pgTable("cell", {
  systemIdentifier: bigint("system_identifier", { mode: "bigint" }).notNull(),
  timeline: integer("timeline").notNull(),
  one: boolean("one").primaryKey().default(true),
  databaseOid: bigint("database_oid", { mode: "number" }),
});
