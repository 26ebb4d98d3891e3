import { sql } from "drizzle-orm";
import * as pg from "drizzle-orm/pg-core";
import { bytea, instant, scope } from "./columns.ts";

/** Events that endpoints are to hear of, and the deliveries that are owed. */

/**
 * An event that some endpoint was to hear of. If a settlement ended a job, the event has the bits of its last run's id, and
 * that run's result. Other events have `data` instead, which event-data.ts reads. A sample has neither a job nor `data`.
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
 * The deliveries that have not ended: one row per event and endpoint. `due_at` is set while an attempt is owed and not
 * parked, `attempt_id` and `node_id` while an attempt is on the wire.
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
