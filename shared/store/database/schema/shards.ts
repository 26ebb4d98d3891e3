import { sql } from "drizzle-orm";
import * as pg from "drizzle-orm/pg-core";
import { instant, scope, wholeNumber } from "./columns.ts";

/** Shards with their owners, and the lanes of owed work that belong to them. */

/** A shard and its owner. A takeover increments `epoch`, which fences the writes of owners. */
export const shards = pg.pgTable(
  "shards",
  {
    region: pg.smallint("region").notNull(),
    shard: pg.smallint("shard").notNull(),
    epoch: wholeNumber("epoch").notNull().default(0),
    owner: pg.integer("owner"),
    leaseUntil: instant("lease_until").notNull().default(sql`'-infinity'`),
  },
  (table) => [
    pg.primaryKey({ columns: [table.region, table.shard] }),
    pg.unique("shards_region_shard_epoch_key").on(table.region, table.shard, table.epoch),
  ],
);

/** The projects that have jobs, by region and environment: the list that the sweep walks. */
export const lanes = pg.pgTable(
  "lanes",
  {
    ...scope,
    region: pg.smallint("region").notNull(),
    shard: pg.smallint("shard").notNull(),
    hasDeliveries: pg.boolean("has_deliveries").notNull().default(false),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.region, table.environment] }),
    pg.index("lanes_shard").on(table.region, table.shard),
    pg.index("lanes_with_deliveries").on(table.region, table.shard).where(sql`${table.hasDeliveries}`),
  ],
);
