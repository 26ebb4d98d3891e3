import { sql } from "drizzle-orm";
import * as pg from "drizzle-orm/pg-core";
import { bytea, instant, scope, wholeNumber } from "./columns.ts";

/** The past: rows that are shown, grow in number, and are purged. */

/** The record of an attempt that has ended. Partitioned by how long a plan keeps it, then by time (retention/retention.ts). */
export const runs = pg.pgTable(
  "runs",
  {
    startedAt: instant("started_at").notNull(),
    nextRetryAt: instant("next_retry_at"),
    ...scope,
    durationMs: pg.integer("duration_ms").notNull(),
    status: pg.smallint("status").notNull(),
    attempt: pg.smallint("attempt").notNull(),
    responseStatus: pg.smallint("response_status"),
    retentionClass: pg.smallint("retention_class").notNull().default(3),
    id: pg.uuid("id").notNull(),
    jobId: pg.uuid("job_id").notNull(),
    error: pg.text("error"),
    lateMs: pg.integer("late_ms"),
    heldFor: pg.smallint("held_for"),
    scheduleId: pg.uuid("schedule_id"),
    settledIn: wholeNumber("settled_in").default(sql`pg_current_xact_id()::text::bigint`),
  },
  (table) => [
    pg.index("runs_settled").using("brin", table.settledIn),
    pg.index("runs_of_job").on(table.jobId, table.attempt),
    pg.index("runs_listed").on(table.projectNo, table.environment, table.status, table.id),
    pg
      .index("runs_of_schedule")
      .on(table.scheduleId, table.status, table.id)
      .where(sql`${table.scheduleId} IS NOT NULL`),
  ],
);

/** A tag of an ended run's job, for lists. It never changes. */
export const runTags = pg.pgTable(
  "run_tags",
  {
    endedOn: pg.date("ended_on").notNull(),
    ...scope,
    status: pg.smallint("status").notNull(),
    id: pg.uuid("id").notNull(),
    scheduleId: pg.uuid("schedule_id"),
    tag: pg.text("tag").notNull(),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.tag, table.status, table.id] }),
    pg
      .index("run_tags_of_schedule")
      .on(table.scheduleId, table.tag, table.status, table.id)
      .where(sql`${table.scheduleId} IS NOT NULL`),
    pg.index("run_tags_age").on(table.endedOn),
  ],
);

/** An ended run that started at another time than its id tells (queue/job-tags.ts). */
export const shiftedRuns = pg.pgTable(
  "shifted_runs",
  {
    startedAt: instant("started_at").notNull(),
    ...scope,
    status: pg.smallint("status").notNull(),
    id: pg.uuid("id").notNull(),
    scheduleId: pg.uuid("schedule_id"),
    tags: pg.text("tags").array(),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.id] }),
    pg.index("shifted_runs_age").on(table.startedAt),
  ],
);

/** The figures of a project's environment in a region and a stretch of time, in parts that add up (insights/roll-up.ts). */
export const insights = pg.pgTable(
  "insights",
  {
    at: instant("at").notNull(),
    part: wholeNumber("part").notNull(),
    created: wholeNumber("created").notNull(),
    succeeded: wholeNumber("succeeded").notNull(),
    failed: wholeNumber("failed").notNull(),
    timedOut: wholeNumber("timed_out").notNull(),
    ...scope,
    region: pg.smallint("region").notNull(),
    level: pg.smallint("level").notNull(),
    waitedFor: wholeNumber("waited_for").array(),
    late: bytea("late"),
    lateWaited: bytea("late_waited"),
    durations: bytea("durations"),
    hosts: pg.text("hosts"),
  },
  (table) => [
    pg.primaryKey({
      columns: [table.projectNo, table.environment, table.level, table.at, table.region, table.part],
    }),
  ],
);

/** How far the roll-up has come. */
export const insightProgress = pg.pgTable("insight_progress", {
  settledUntil: wholeNumber("settled_until").notNull(),
  revision: wholeNumber("revision").notNull().default(0),
  systemIdentifier: pg.bigint("system_identifier", { mode: "bigint" }).notNull(),
  countedSince: instant("counted_since").notNull(),
  createdUntil: instant("created_until").notNull(),
  recountedUntil: instant("recounted_until").notNull(),
  closedUntil: instant("closed_until").array().notNull(),
  closedProject: pg.integer("closed_project").array().notNull(),
  one: pg.boolean("one").primaryKey().default(true),
});

export const runMoves = pg.pgTable("run_moves", {
  projectNo: pg.integer("project_no").primaryKey(),
  notedAt: instant("noted_at").notNull().default(sql`clock_timestamp()`),
});

export const usageDays = pg.pgTable(
  "usage_days",
  {
    projectNo: pg.integer("project_no").notNull(),
    day: pg.date("day").notNull(),
    region: pg.smallint("region").notNull(),
    runs: wholeNumber("runs").notNull(),
  },
  (table) => [pg.primaryKey({ columns: [table.projectNo, table.day, table.region] })],
);

export const endedDeliveries = pg.pgTable(
  "ended_deliveries",
  {
    endedAt: instant("ended_at").notNull(),
    firstStartedAt: instant("first_started_at"),
    ...scope,
    region: pg.smallint("region").notNull(),
    status: pg.smallint("status").notNull(),
    attempts: pg.smallint("attempts").notNull(),
    id: pg.uuid("id").notNull(),
    webhookId: pg.uuid("webhook_id").notNull(),
    eventId: pg.uuid("event_id").notNull(),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.webhookId, table.status, table.id] }),
    pg.index("ended_deliveries_age").on(table.endedAt),
  ],
);

/** An attempt of a delivery that has ended. `counts` tells whether a failure counts against the endpoint's health. */
export const deliveryAttempts = pg.pgTable(
  "delivery_attempts",
  {
    startedAt: instant("started_at").notNull(),
    durationMs: pg.integer("duration_ms").notNull(),
    attempt: pg.smallint("attempt").notNull(),
    status: pg.smallint("status").notNull(),
    responseStatus: pg.smallint("response_status"),
    counts: pg.boolean("counts").notNull().default(true),
    deliveryId: pg.uuid("delivery_id").notNull(),
    webhookId: pg.uuid("webhook_id").notNull(),
    error: pg.text("error"),
  },
  (table) => [
    pg.primaryKey({ columns: [table.deliveryId, table.attempt] }),
    pg
      .index("delivery_attempts_failed")
      .on(table.webhookId, table.startedAt)
      .where(sql`${table.status} <> 1 AND ${table.counts}`),
  ],
);

/**
 * An instant of a schedule that was due and looked at in time, with its job or without one. `skipped_for` says why there is
 * no job; null stands for the quota. `due_at` is when the job is due if the schedule has a spread. `replaced` is how many jobs
 * were canceled for it if the schedule replaces them. `backfilled` says that a bulk operation made the job.
 */
export const firings = pg.pgTable(
  "firings",
  {
    firedFor: instant("fired_for").notNull(),
    scheduleId: pg.uuid("schedule_id").notNull(),
    jobId: pg.uuid("job_id"),
    dueAt: instant("due_at"),
    skippedFor: pg.smallint("skipped_for"),
    replaced: pg.smallint("replaced"),
    backfilled: pg.boolean("backfilled").notNull().default(false),
  },
  (table) => [
    pg.primaryKey({ columns: [table.scheduleId, table.firedFor] }),
    pg.index("firings_age").on(table.firedFor),
  ],
);

/** The timetables that a schedule has had, each from its change to the next. They tell which instants did not fire. */
export const timetables = pg.pgTable(
  "timetables",
  {
    no: wholeNumber("no").generatedAlwaysAsIdentity(),
    since: instant("since").notNull().defaultNow(),
    supersededAt: instant("superseded_at"),
    scheduleId: pg.uuid("schedule_id").notNull(),
    paused: pg.boolean("paused").notNull(),
    cron: pg.text("cron").notNull(),
    timezone: pg.text("timezone").notNull(),
    replacedAt: instant("replaced_at"),
  },
  (table) => [
    pg.primaryKey({ columns: [table.scheduleId, table.no] }),
    pg.index("timetables_replaced").on(table.replacedAt).where(sql`${table.replacedAt} IS NOT NULL`),
  ],
);

export const deletedSchedules = pg.pgTable("deleted_schedules", {
  scheduleId: pg.uuid("schedule_id").primaryKey(),
});

export const auditEntries = pg.pgTable(
  "audit_entries",
  {
    id: pg.uuid("id").primaryKey(),
    recordedAt: instant("recorded_at").notNull().defaultNow(),
    projectNo: pg.integer("project_no"),
    environment: pg.smallint("environment"),
    keyNo: pg.integer("key_no"),
    operator: pg.text("operator"),
    action: pg.text("action").notNull(),
    subject: pg.text("subject").notNull(),
    detail: pg.json("detail"),
  },
  (table) => [
    pg.index("audit_entries_project").on(table.projectNo, table.id),
    pg.index("audit_entries_operators").on(table.id).where(sql`${table.operator} IS NOT NULL`),
  ],
);
