import { sql } from "drizzle-orm";
import * as pg from "drizzle-orm/pg-core";
import { bytea, instant, scope } from "./columns.ts";

/** Jobs as they were asked for, as they are owed, and as they ended. */

/** A job as it was asked for: written once and never changed. Its id holds the time of its creation. */
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

/** A tag of a job by how the job ended; `state` is -1 until the job has ended. */
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
 * The jobs that are not over, one row each. `due_at` is set while an attempt is owed and not parked, `run_id` while the
 * attempt has its run, and `node_id` while the attempt is on the wire.
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
