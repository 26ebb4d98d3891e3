import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { readMigrationFiles } from "drizzle-orm/migrator";
import pg from "pg";
import { type Database, SESSION_SETTINGS, transactOn } from "../database/database.ts";
import { createRunPartitions } from "../retention/retention.ts";
import { buildRunIndexes } from "./run-indexes.ts";

/** Any number of processes may call this at once; an advisory lock lets one at a time through. */
const MIGRATION_LOCK = 0x6a6f6277;
/**
 * The lock is polled, because a statement that waits for it would hold a snapshot, and CREATE INDEX CONCURRENTLY waits
 * for the end of every snapshot.
 */
const MIGRATION_LOCK_POLL_MS = 200;

/** A migration that cannot lock its table in this time fails, so that traffic goes on; its caller tries again. */
const LOCK_TIMEOUT_MS = 5_000;

/**
 * Brings the schema up to date, and stores the settings of every session with this role: session-wide SET does not
 * survive a transaction-mode pooler.
 */
export async function migrate(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 10_000 });
  // A connection that is lost fails its statement too, and an error event without a listener would end the process.
  client.on("error", () => undefined);
  await client.connect();
  try {
    await client.query("SET statement_timeout = 0");
    await takeMigrationLock(client);
    await client.query(`SET lock_timeout = ${LOCK_TIMEOUT_MS}`);
    await client.query("SET idle_in_transaction_session_timeout = 0");
    await applyMigrations(client);
    await buildRunIndexes(client);
    const { rows: times } = await client.query<{ now: number }>(
      "SELECT (extract(epoch FROM now()) * 1000)::float8 AS now",
    );
    const transact: Database["transact"] = (act) =>
      transactOn(client, act).catch(async (error) => {
        await client.query("ROLLBACK");
        throw error;
      });
    await createRunPartitions({ transact }, times[0]?.now ?? 0);
    const { rows } = await client.query<{ database: string }>(
      "SELECT quote_ident(current_database()) AS database",
    );
    await client.query(roleSettings(rows[0]?.database ?? ""));
  } finally {
    await client.end();
  }
}

/** The statements that store the session's settings with the current role, for the database of this quoted name. */
export function roleSettings(database: string): string {
  return Object.entries(SESSION_SETTINGS)
    .map(([name, value]) => `ALTER ROLE CURRENT_USER IN DATABASE ${database} SET ${name} = '${value}';`)
    .join("");
}

async function takeMigrationLock(client: pg.Client): Promise<void> {
  for (;;) {
    const { rows } = await client.query<{ taken: boolean }>("SELECT pg_try_advisory_lock($1) AS taken", [
      MIGRATION_LOCK,
    ]);
    if (rows[0]?.taken) return;
    await setTimeout(MIGRATION_LOCK_POLL_MS);
  }
}

/**
 * Applies each migration in a transaction of its own: the locks of one, for which traffic waits, are released before
 * the next one builds an index over a table that has grown for years. A migration with a CONCURRENTLY statement runs
 * without a transaction and must be repeatable from its beginning. The applied migrations are noted in the query
 * builder's own table.
 */
async function applyMigrations(client: pg.Client): Promise<void> {
  await client.query("CREATE SCHEMA IF NOT EXISTS drizzle");
  await client.query(`
    CREATE TABLE IF NOT EXISTS drizzle.__drizzle_migrations (
      id SERIAL PRIMARY KEY,
      hash text NOT NULL,
      created_at bigint
    )`);
  const { rows } = await client.query<{ at: number }>(
    "SELECT coalesce(max(created_at), -1)::float8 AS at FROM drizzle.__drizzle_migrations",
  );
  const lastAt = rows[0]?.at ?? -1;
  for (const migration of readMigrationFiles({
    migrationsFolder: join(import.meta.dir, "../database/migrations"),
  })) {
    if (migration.folderMillis <= lastAt) continue;
    const isConcurrent = migration.sql.some((statement) => statement.includes(" CONCURRENTLY "));
    if (!isConcurrent) await client.query("BEGIN");
    for (const statement of migration.sql) await client.query(statement);
    await client.query("INSERT INTO drizzle.__drizzle_migrations (hash, created_at) VALUES ($1, $2)", [
      migration.hash,
      migration.folderMillis,
    ]);
    if (!isConcurrent) await client.query("COMMIT");
  }
}
