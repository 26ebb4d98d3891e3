import { sql } from "drizzle-orm";
import * as pg from "drizzle-orm/pg-core";
import { bytea, instant, scope, wholeNumber } from "./columns.ts";

/** Rows that clients and operators make: projects and their keys, schedules, endpoints, and the counts of requests. */

export const projects = pg.pgTable("projects", {
  no: pg.integer("no").primaryKey().generatedAlwaysAsIdentity(),
  id: pg.uuid("id").notNull().unique(),
  name: pg.text("name").notNull(),
  plan: pg.text("plan").notNull(),
  defaultRegion: pg.smallint("default_region").notNull().default(0),
  apiVersion: pg.text("api_version").notNull(),
  requestsPerMinute: pg.integer("requests_per_minute"),
  concurrency: pg.integer("concurrency"),
  schedules: pg.integer("schedules"),
  activeSchedules: pg.integer("active_schedules").notNull().default(0),
  parkFailingHosts: pg.boolean("park_failing_hosts"),
});

export const apiKeys = pg.pgTable(
  "api_keys",
  {
    id: pg.uuid("id").primaryKey(),
    ...scope,
    scope: pg.text("scope").notNull(),
    name: pg.text("name"),
    hash: bytea("hash").notNull().unique(),
    expiresAt: instant("expires_at"),
    revokedAt: instant("revoked_at"),
    lastUsedAt: instant("last_used_at"),
    no: pg.integer("no").generatedAlwaysAsIdentity().unique(),
  },
  (table) => [
    pg.index("api_keys_project").on(table.projectNo),
    pg
      .index("api_keys_living")
      .on(table.projectNo, table.environment, table.expiresAt)
      .where(sql`${table.revokedAt} IS NULL`),
  ],
);

export const signingSecrets = pg.pgTable(
  "signing_secrets",
  {
    id: pg.uuid("id").primaryKey(),
    ...scope,
    sealed: bytea("sealed").notNull(),
    expiresAt: instant("expires_at"),
  },
  (table) => [pg.index("signing_secrets_project").on(table.projectNo, table.environment)],
);

/**
 * A schedule. `next_run_at` is null while the schedule is paused, and once its timetable has no further instant.
 * `overlap` and `spread_seconds` are null if no client has given them; `spread_ms` is the delay of this schedule's jobs.
 */
export const schedules = pg.pgTable(
  "schedules",
  {
    nextRunAt: instant("next_run_at"),
    ...scope,
    baseSeconds: pg.integer("base_seconds").notNull(),
    capSeconds: pg.integer("cap_seconds").notNull(),
    revision: pg.integer("revision").notNull().default(0),
    shard: pg.smallint("shard").notNull(),
    maxAttempts: pg.smallint("max_attempts").notNull(),
    paused: pg.boolean("paused").notNull().default(false),
    id: pg.uuid("id").notNull(),
    name: pg.text("name").notNull(),
    cron: pg.text("cron").notNull(),
    timezone: pg.text("timezone").notNull(),
    targetUrl: pg.text("target_url").notNull(),
    payload: pg.text("payload").notNull(),
    tags: pg.text("tags").array(),
    overlap: pg.smallint("overlap"),
    spreadSeconds: pg.smallint("spread_seconds"),
    spreadMs: pg.integer("spread_ms"),
    flow: pg.json("flow"),
  },
  (table) => [
    // The last column of this index is left out here: an expression, the flow's key.
    pg
      .index("schedules_of_flow")
      .on(table.projectNo, table.environment)
      .where(sql`${table.flow} IS NOT NULL`),
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.id] }),
    pg.unique("schedules_name").on(table.projectNo, table.environment, table.name),
    pg.index("schedules_due").on(table.shard, table.nextRunAt).where(sql`${table.nextRunAt} IS NOT NULL`),
    pg.index("schedules_listed").on(table.projectNo, table.environment, table.paused, table.id),
  ],
);

/** An endpoint. `generation` counts how often it was disabled; `failing_since` is its health (queue/endpoint-health.ts). */
export const webhooks = pg.pgTable(
  "webhooks",
  {
    failingSince: instant("failing_since"),
    succeededAt: instant("succeeded_at"),
    oldSecretUntil: instant("old_secret_until"),
    ...scope,
    generation: pg.integer("generation").notNull().default(0),
    events: pg.smallint("events").notNull(),
    eventOrder: pg.smallint("event_order").array(),
    enabled: pg.boolean("enabled").notNull().default(true),
    id: pg.uuid("id").notNull(),
    url: pg.text("url").notNull(),
    description: pg.text("description"),
    sealedSecret: bytea("sealed_secret").notNull(),
    sealedOldSecret: bytea("sealed_old_secret"),
  },
  (table) => [pg.primaryKey({ columns: [table.projectNo, table.environment, table.id] })],
);

/** How many requests of an environment were accepted within the last minute. Gateways take turns at the row's lock. */
export const rateWindows = pg.pgTable(
  "rate_windows",
  {
    ...scope,
    accepted: pg.integer("accepted").notNull().default(0),
    loans: pg.jsonb("loans").notNull().default({}),
  },
  (table) => [pg.primaryKey({ columns: [table.projectNo, table.environment] })],
);

export const rateTicks = pg.pgTable(
  "rate_ticks",
  {
    ...scope,
    tick: wholeNumber("tick").notNull(),
    accepted: pg.integer("accepted").notNull(),
  },
  (table) => [pg.primaryKey({ columns: [table.projectNo, table.environment, table.tick] })],
);

export const idempotencyKeys = pg.pgTable(
  "idempotency_keys",
  {
    createdAt: instant("created_at").notNull(),
    ...scope,
    attempt: pg.smallint("attempt"),
    digest: bytea("digest").notNull(),
    requestHash: bytea("request_hash").notNull(),
    jobIds: pg.uuid("job_ids").array().notNull(),
    runId: pg.uuid("run_id"),
    answer: bytea("answer"),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.digest] }),
    pg.index("idempotency_keys_age").on(table.createdAt),
  ],
);
