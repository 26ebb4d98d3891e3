import { join } from "node:path";
import { drizzle } from "drizzle-orm/node-postgres";
import { migrate as applyMigrations } from "drizzle-orm/node-postgres/migrator";
import pg from "pg";
import { SESSION_SETTINGS } from "./database.ts";
import { createRunPartitions } from "./retention.ts";
import * as schema from "./schema.ts";

/** Any number of processes may call this at once; they take turns under one advisory lock. */
const MIGRATION_LOCK = 0x6a6f6277;

/** A migration that cannot have its table lock soon gives way to the traffic and is tried again by its caller. */
const LOCK_TIMEOUT_MS = 5_000;

/**
 * Brings the schema up to date, and stores the settings that every session of this role must have with the role
 * itself: session-wide SET does not survive a transaction-mode pooler.
 */
export async function migrate(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 10_000 });
  await client.connect();
  try {
    await client.query("SET statement_timeout = 0");
    await client.query("SELECT pg_advisory_lock($1)", [MIGRATION_LOCK]);
    await client.query(`SET lock_timeout = ${LOCK_TIMEOUT_MS}`);
    await client.query("SET idle_in_transaction_session_timeout = 0");
    const db = drizzle(client, { schema });
    await applyMigrations(db, { migrationsFolder: join(import.meta.dir, "migrations") });
    const { rows: times } = await client.query<{ now: number }>(
      "SELECT (extract(epoch FROM now()) * 1000)::float8 AS now",
    );
    await createRunPartitions({ drizzle: db }, times[0]?.now ?? 0);
    const { rows } = await client.query<{ database: string }>(
      "SELECT quote_ident(current_database()) AS database",
    );
    for (const [name, value] of Object.entries(SESSION_SETTINGS)) {
      await client.query(`ALTER ROLE CURRENT_USER IN DATABASE ${rows[0]?.database} SET ${name} = '${value}'`);
    }
  } finally {
    await client.end();
  }
}
