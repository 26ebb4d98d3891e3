import { sql } from "drizzle-orm";
import {
  boolean,
  date,
  index,
  integer,
  json,
  pgTable,
  primaryKey,
  smallint,
  text,
  uuid,
} from "drizzle-orm/pg-core";
import { instant, scope, wholeNumber } from "./columns.ts";

/** What was: it is shown, grows, and is purged. */

/** The record of an attempt that has ended. Partitioned by how long a plan keeps it, then by time (retention/retention.ts). */
export const runs = pgTable(
  "runs",
  {
    startedAt: instant("started_at").notNull(),
    nextRetryAt: instant("next_retry_at"),
    ...scope,
    durationMs: integer("duration_ms").notNull(),
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

export const usageDays = pgTable(
  "usage_days",
  {
    projectNo: integer("project_no").notNull(),
    day: date("day").notNull(),
    region: smallint("region").notNull(),
    runs: wholeNumber("runs").notNull(),
  },
  (table) => [primaryKey({ columns: [table.projectNo, table.day, table.region] })],
);

export const endedDeliveries = pgTable(
  "ended_deliveries",
  {
    endedAt: instant("ended_at").notNull(),
    firstStartedAt: instant("first_started_at"),
    ...scope,
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

/** Each attempt of a delivery that has ended. `counts` tells whether its failure speaks of the endpoint's health. */
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

/** An instant of a schedule that was due and looked at in time: with its job, or without one if no quota was left. */
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

/** The timetables that a schedule has had, each from its change to the next. What did not fire follows from them. */
export const timetables = pgTable(
  "timetables",
  {
    no: wholeNumber("no").generatedAlwaysAsIdentity(),
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
