import { bigint, customType, integer, smallint, timestamp } from "drizzle-orm/pg-core";

/** Columns that several tables have. The README of the store says what each table is for; a test holds it all to the database. */

export const bytea = customType<{ data: Buffer }>({ dataType: () => "bytea" });
export const instant = (name: string) => timestamp(name, { withTimezone: true });
export const wholeNumber = (name: string) => bigint(name, { mode: "number" });

/** Whose a row is. */
export const scope = {
  projectNo: integer("project_no").notNull(),
  environment: smallint("environment").notNull(),
};
