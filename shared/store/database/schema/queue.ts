import { sql } from "drizzle-orm";
import {
  boolean,
  date,
  index,
  integer,
  pgTable,
  primaryKey,
  smallint,
  text,
  unique,
  uuid,
} from "drizzle-orm/pg-core";
import { bytea, instant, scope, wholeNumber } from "./columns.ts";
import { projects } from "./resources.ts";

/** What is owed and who looks after it: read and changed for every job. */

/**
 * One narrow row per project: its permits in use by class, the runs of its month, and what its endpoints hear of.
 * Only the key has an index, so that every update stays on its page (HOT).
 */
export const flows = pgTable("flows", {
  projectNo: integer("project_no")
    .primaryKey()
    .references(() => projects.no),
  concurrency: integer("concurrency").notNull(),
  developmentJobs: integer("development_jobs").notNull().default(0),
  productionJobs: integer("production_jobs").notNull().default(0),
  developmentWebhooks: integer("development_webhooks").notNull().default(0),
  productionWebhooks: integer("production_webhooks").notNull().default(0),
  returned: wholeNumber("returned").notNull().default(0),
  month: date("month").notNull(),
  monthRuns: wholeNumber("month_runs").notNull().default(0),
  monthRunsMax: wholeNumber("month_runs_max"),
  held: boolean("held").notNull().default(false),
  retentionClass: smallint("retention_class").notNull(),
  subscriptions: smallint("subscriptions").notNull().default(0),
  waiting: integer("waiting").notNull().default(0),
  lastClass: smallint("last_class").notNull().default(0),
  calledAt: instant("called_at").array().notNull().default(sql`'{-infinity,-infinity,-infinity,-infinity}'`),
});

/** Who owns which shard. A takeover increments `epoch`; what an owner writes is fenced by it. */
export const shards = pgTable(
  "shards",
  {
    region: smallint("region").notNull(),
    shard: smallint("shard").notNull(),
    epoch: wholeNumber("epoch").notNull().default(0),
    owner: integer("owner"),
    leaseUntil: instant("lease_until").notNull().default(sql`'-infinity'`),
  },
  (table) => [
    primaryKey({ columns: [table.region, table.shard] }),
    unique("shards_region_shard_epoch_key").on(table.region, table.shard, table.epoch),
  ],
);

/** The projects that have jobs, by region and environment: the list that the sweep walks. */
export const lanes = pgTable(
  "lanes",
  {
    ...scope,
    region: smallint("region").notNull(),
    shard: smallint("shard").notNull(),
    hasDeliveries: boolean("has_deliveries").notNull().default(false),
  },
  (table) => [
    primaryKey({ columns: [table.projectNo, table.region, table.environment] }),
    index("lanes_shard").on(table.region, table.shard),
    index("lanes_with_deliveries").on(table.region, table.shard).where(sql`${table.hasDeliveries}`),
  ],
);

/** What was asked: written once and never changed. The time of its creation is in the id. */
export const jobs = pgTable(
  "jobs",
  {
    runAt: instant("run_at").notNull(),
    ...scope,
    baseSeconds: integer("base_seconds").notNull(),
    capSeconds: integer("cap_seconds").notNull(),
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

/**
 * What is owed: one row per job that is not over. `due_at` is set while an attempt is owed, `run_id` while the attempt has
 * its run, and `node_id` while it is on the wire.
 */
export const openJobs = pgTable(
  "open_jobs",
  {
    dueAt: instant("due_at"),
    startedAt: instant("started_at"),
    ...scope,
    nodeId: integer("node_id"),
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
    ...scope,
    status: smallint("status").notNull(),
    region: smallint("region").notNull(),
    attempts: smallint("attempts").notNull(),
    jobId: uuid("job_id").notNull(),
  },
  (table) => [
    primaryKey({ columns: [table.projectNo, table.environment, table.status, table.region, table.jobId] }),
  ],
);

/** The end of a job that some endpoint was to hear of, with the bits of its last run's id; without a job it is a sample. */
export const events = pgTable(
  "events",
  {
    occurredAt: instant("occurred_at").notNull(),
    startedAt: instant("started_at").notNull(),
    ...scope,
    durationMs: integer("duration_ms").notNull(),
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

/**
 * What is owed to endpoints: one row per event and endpoint until it has ended. `due_at` is set while an attempt is owed,
 * `attempt_id` and `node_id` while it is on the wire.
 */
export const openDeliveries = pgTable(
  "open_deliveries",
  {
    dueAt: instant("due_at"),
    startedAt: instant("started_at"),
    firstStartedAt: instant("first_started_at"),
    ...scope,
    nodeId: integer("node_id"),
    generation: integer("generation").notNull(),
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

export const leftHosts = pgTable(
  "left_hosts",
  {
    leftAt: instant("left_at").notNull().default(sql`clock_timestamp()`),
    ...scope,
    webhookId: uuid("webhook_id").notNull(),
    host: text("host").notNull(),
  },
  (table) => [primaryKey({ columns: [table.webhookId, table.host] })],
);
