import { sql } from "drizzle-orm";
import {
  boolean,
  index,
  integer,
  jsonb,
  pgTable,
  primaryKey,
  smallint,
  text,
  unique,
  uuid,
} from "drizzle-orm/pg-core";
import { bytea, instant, scope, wholeNumber } from "./columns.ts";

/** What clients and operators make: projects and their keys, schedules, endpoints, and what their requests are counted by. */

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

/** A schedule. `next_run_at` is null while it is paused, and once its timetable has no further instant. */
export const schedules = pgTable(
  "schedules",
  {
    nextRunAt: instant("next_run_at"),
    ...scope,
    baseSeconds: integer("base_seconds").notNull(),
    capSeconds: integer("cap_seconds").notNull(),
    revision: integer("revision").notNull().default(0),
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

/** An endpoint. `generation` counts how often it was disabled; `failing_since` is its health (queue/endpoint-health.ts). */
export const webhooks = pgTable(
  "webhooks",
  {
    failingSince: instant("failing_since"),
    succeededAt: instant("succeeded_at"),
    oldSecretUntil: instant("old_secret_until"),
    ...scope,
    generation: integer("generation").notNull().default(0),
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

/** Per project and environment what was accepted within the last minute. The lock of its row orders the gateways. */
export const rateWindows = pgTable(
  "rate_windows",
  {
    ...scope,
    accepted: integer("accepted").notNull().default(0),
    loans: jsonb("loans").notNull().default({}),
  },
  (table) => [primaryKey({ columns: [table.projectNo, table.environment] })],
);

export const rateTicks = pgTable(
  "rate_ticks",
  {
    ...scope,
    tick: wholeNumber("tick").notNull(),
    accepted: integer("accepted").notNull(),
  },
  (table) => [primaryKey({ columns: [table.projectNo, table.environment, table.tick] })],
);

export const idempotencyKeys = pgTable(
  "idempotency_keys",
  {
    createdAt: instant("created_at").notNull(),
    ...scope,
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
