import * as pg from "drizzle-orm/pg-core";

/** Columns that several tables have. The README of the store says what each table is for; tests compare both with the database. */

export const bytea = pg.customType<{ data: Buffer }>({ dataType: () => "bytea" });
export const instant = (name: string) => pg.timestamp(name, { withTimezone: true });
export const wholeNumber = (name: string) => pg.bigint(name, { mode: "number" });

/** The project and the environment that a row belongs to. */
export const scope = {
  projectNo: pg.integer("project_no").notNull(),
  environment: pg.smallint("environment").notNull(),
};
