import { SQL } from "bun";

/** Has Postgres do what storing has left to it: it vacuums and analyzes the database, and writes everything to disk. */
export const vacuumAndWrite = (databaseUrl: string) => runLong(databaseUrl, ["VACUUM ANALYZE", "CHECKPOINT"]);

/** Has Postgres learn what stands in the tables. */
export const analyze = (databaseUrl: string) => runLong(databaseUrl, ["ANALYZE"]);

/** These may take longer than a statement of the service. */
async function runLong(databaseUrl: string, texts: readonly string[]): Promise<void> {
  const sql = new SQL(databaseUrl, { max: 1 });
  for (const text of ["SET statement_timeout = 0", ...texts]) await sql.unsafe(text);
  await sql.close();
}
