import { sql } from "drizzle-orm";
import * as pg from "drizzle-orm/pg-core";
import { instant, wholeNumber } from "./columns.ts";

/** The state of the cell itself: its nodes, keys, limits, holds, clock and Postgres. */

/** One row per process that ever joined: its id is its incarnation. A claim holds KEY SHARE on (id, dead). */
export const nodes = pg.pgTable(
  "nodes",
  {
    id: pg.integer("id").primaryKey().generatedAlwaysAsIdentity(),
    kind: pg.text("kind").notNull(),
    name: pg.text("name").notNull(),
    regions: pg.smallint("regions").array().notNull(),
    process: pg.text("process").notNull(),
    startedAt: instant("started_at").notNull().defaultNow(),
    seenAt: instant("seen_at").notNull().defaultNow(),
    dead: pg.boolean("dead").notNull().default(false),
    beats: wholeNumber("beats").notNull().default(0),
  },
  (table) => [
    pg.unique("nodes_id_dead_key").on(table.id, table.dead),
    pg.uniqueIndex("nodes_living_name").on(table.kind, table.name).where(sql`NOT ${table.dead}`),
  ],
);

export const secretsKeys = pg.pgTable(
  "secrets_keys",
  {
    firstUsedAt: instant("first_used_at").notNull().defaultNow(),
    retiredAt: instant("retired_at"),
    seals: pg.boolean("seals").notNull(),
    fingerprint: pg.text("fingerprint").primaryKey(),
  },
  (table) => [pg.uniqueIndex("secrets_keys_sealing").on(table.seals).where(sql`${table.seals}`)],
);

export const hostLimits = pg.pgTable("host_limits", {
  limitedAt: instant("limited_at").notNull().defaultNow(),
  requests: pg.integer("requests").notNull(),
  host: pg.text("host").primaryKey(),
});

export const heldRegions = pg.pgTable("held_regions", {
  heldAt: instant("held_at").notNull().defaultNow(),
  region: pg.smallint("region").primaryKey(),
  restored: pg.boolean("restored").notNull().default(false),
});

export const clockWatch = pg.pgTable("clock_watch", {
  seenAt: instant("seen_at").notNull(),
  steadySince: instant("steady_since").notNull(),
  one: pg.boolean("one").primaryKey().default(true),
});

export const cell = pg.pgTable("cell", {
  systemIdentifier: pg.bigint("system_identifier", { mode: "bigint" }).notNull(),
  timeline: pg.integer("timeline").notNull(),
  one: pg.boolean("one").primaryKey().default(true),
  databaseOid: wholeNumber("database_oid"),
});
