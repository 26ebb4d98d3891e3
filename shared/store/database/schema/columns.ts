import * as pg from "drizzle-orm/pg-core";

/** Columns that several tables have. The README of the store says what each table is for; a test holds it all to the database. */

export const bytea = pg.customType<{ data: Buffer }>({ dataType: () => "bytea" });
export const instant = (name: string) => pg.timestamp(name, { withTimezone: true });
export const wholeNumber = (name: string) => pg.bigint(name, { mode: "number" });

/** Whose a row is. */
export const scope = {
  projectNo: pg.integer("project_no").notNull(),
  environment: pg.smallint("environment").notNull(),
};
