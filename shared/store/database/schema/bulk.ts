import { sql } from "drizzle-orm";
import * as pg from "drizzle-orm/pg-core";
import { instant, scope, wholeNumber } from "./columns.ts";

/** Actions on many jobs at once. */

/**
 * An action that a client asks for on many jobs at once (queue/bulk/). `matched` is null until all members are counted. The
 * counting goes on from `counted_to`, and `judged_to` is the position of the last member that was judged. `judged_at` and
 * `judged_counts` tell when members were judged in the last second, and how many. An aborted operation leaves members.
 */
export const bulkOperations = pg.pgTable(
  "bulk_operations",
  {
    startedAt: instant("started_at"),
    endedAt: instant("ended_at"),
    matched: wholeNumber("matched"),
    counted: wholeNumber("counted").notNull().default(0),
    done: wholeNumber("done").notNull().default(0),
    skipped: wholeNumber("skipped").notNull().default(0),
    failed: wholeNumber("failed").notNull().default(0),
    judgedTo: wholeNumber("judged_to").notNull().default(0),
    ...scope,
    shard: pg.smallint("shard").notNull(),
    action: pg.smallint("action").notNull(),
    status: pg.smallint("status").notNull(),
    perSecond: pg.smallint("per_second").notNull(),
    dryRun: pg.boolean("dry_run").notNull(),
    leavesMembers: pg.boolean("leaves_members").notNull().default(false),
    id: pg.uuid("id").notNull(),
    filter: pg.json("filter").notNull(),
    sample: pg.text("sample").array().notNull().default(sql`'{}'`),
    countedTo: pg.text("counted_to"),
    judgedAt: instant("judged_at").array().notNull().default(sql`'{}'`),
    judgedCounts: pg.smallint("judged_counts").array().notNull().default(sql`'{}'`),
  },
  (table) => [
    pg.primaryKey({ columns: [table.projectNo, table.environment, table.id] }),
    pg
      .index("bulk_operations_open")
      .on(table.projectNo, table.environment, table.id)
      .where(sql`${table.endedAt} IS NULL`),
    pg.index("bulk_operations_of_shard").on(table.shard, table.id).where(sql`${table.endedAt} IS NULL`),
    pg
      .uniqueIndex("bulk_operations_running")
      .on(table.projectNo, table.environment)
      .where(sql`${table.status} = 3`),
    pg.index("bulk_operations_ended").on(table.endedAt).where(sql`${table.endedAt} IS NOT NULL`),
    pg.index("bulk_operations_left").on(table.id).where(sql`${table.leavesMembers}`),
  ],
);

/** A member that is still to be judged: a job, or an instant of a schedule with its milliseconds since 1970 as `position`. */
export const bulkMembers = pg.pgTable(
  "bulk_members",
  {
    position: wholeNumber("position").notNull(),
    region: pg.smallint("region"),
    bulkId: pg.uuid("bulk_id").notNull(),
    jobId: pg.uuid("job_id"),
  },
  (table) => [pg.primaryKey({ columns: [table.bulkId, table.position] })],
);
