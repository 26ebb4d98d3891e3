import { SQL } from "bun";

/** Has Postgres do what storing has left to it: it vacuums and analyzes the database, and writes everything to disk. */
export async function vacuumAndWrite(databaseUrl: string): Promise<void> {
  const sql = new SQL(databaseUrl, { max: 1 });
  for (const text of ["SET statement_timeout = 0", "VACUUM ANALYZE", "CHECKPOINT"]) await sql.unsafe(text);
  await sql.close();
}
