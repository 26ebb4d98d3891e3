import { sql } from "drizzle-orm";
import * as pg from "drizzle-orm/pg-core";
import { instant, wholeNumber } from "./columns.ts";

/** The limits that let attempts start: the project's permits and quota, flow keys, target hosts. */

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
    queueSince: instant("queue_since").notNull().default(sql`'-infinity'`),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.flowKey] }),
    pg
      .index("flow_keys_kept")
      .on(table.projectNo, table.environment)
      .where(sql`${table.pinned} OR ${table.paused}`),
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

/** A change at a gate by a statement that does not lock the gate (gate-calls.ts). */
export const gateCalls = pg.pgTable(
  "gate_calls",
  {
    id: wholeNumber("id").primaryKey().generatedAlwaysAsIdentity(),
    projectNo: pg.integer("project_no").notNull(),
    waitingChange: pg.integer("waiting_change").notNull().default(0),
    inUseChange: pg.integer("in_use_change").notNull().default(0),
    environment: pg.smallint("environment").notNull(),
    region: pg.smallint("region").notNull().default(0),
    gate: pg.text("gate").notNull(),
    comesBack: pg.boolean("comes_back").notNull().default(false),
  },
  (table) => [
    pg.index("gate_calls_of_returns").on(table.projectNo).where(sql`${table.comesBack}`),
    pg.index("gate_calls_of_keys").on(table.projectNo, table.id).where(sql`${table.gate} NOT LIKE 'h%'`),
    pg.index("gate_calls_of_hosts").on(table.projectNo, table.id).where(sql`${table.gate} LIKE 'h%'`),
  ],
);
