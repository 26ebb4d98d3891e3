import { sql } from "drizzle-orm";
import { bigint, boolean, integer, pgTable, smallint, text, unique, uniqueIndex } from "drizzle-orm/pg-core";
import { instant, wholeNumber } from "./columns.ts";

/** What a cell knows of itself. */

/** One row per process that ever joined: its id is its incarnation. A claim holds KEY SHARE on (id, dead). */
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
    beats: wholeNumber("beats").notNull().default(0),
  },
  (table) => [
    unique("nodes_id_dead_key").on(table.id, table.dead),
    uniqueIndex("nodes_living_name").on(table.kind, table.name).where(sql`NOT ${table.dead}`),
  ],
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

export const hostLimits = pgTable("host_limits", {
  limitedAt: instant("limited_at").notNull().defaultNow(),
  requests: integer("requests").notNull(),
  host: text("host").primaryKey(),
});

export const heldRegions = pgTable("held_regions", {
  heldAt: instant("held_at").notNull().defaultNow(),
  region: smallint("region").primaryKey(),
  restored: boolean("restored").notNull().default(false),
});

export const clockWatch = pgTable("clock_watch", {
  seenAt: instant("seen_at").notNull(),
  steadySince: instant("steady_since").notNull(),
  one: boolean("one").primaryKey().default(true),
});

export const cell = pgTable("cell", {
  systemIdentifier: bigint("system_identifier", { mode: "bigint" }).notNull(),
  timeline: integer("timeline").notNull(),
  one: boolean("one").primaryKey().default(true),
  databaseOid: wholeNumber("database_oid"),
});
