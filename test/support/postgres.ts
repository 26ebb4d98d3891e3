import { randomBytes } from "node:crypto";
import { dirname, join } from "node:path";
import pg from "pg";
import {
  type EmbeddedPostgres,
  startEmbeddedPostgres,
} from "../../shared/platform/embedded-postgres/embedded-postgres.ts";
import { migrate, roleSettings } from "../../shared/store/cell/migrate.ts";

export interface TestDatabase {
  url: string;
  /** Removes the database, also while clients are connected to it. */
  drop(): Promise<void>;
}

const PREFIX = "test_";
/** The most test processes that may run side by side without TEST_DATABASE_URL, each with a server of its own. */
const OWN_SERVERS_MAX = 8;
/** Postgres silently shortens longer names, which could make two databases one. */
const NAME_CHARACTERS_MAX = 40;

/**
 * An empty database that no other test sees, on the server of TEST_DATABASE_URL. Without that variable, as when `bun
 * test` is called for one file, this process gets an embedded server, which ends with the process.
 */
export function createTestDatabase(name = "database"): Promise<TestDatabase> {
  return createDatabase(name, "template1", () => "");
}

/**
 * An empty database with the schema. In a run of many tests it is copied from TEST_TEMPLATE, a migrated database that
 * test/main.ts makes, since a copy takes a third of the time of the migrations. The settings of the role are not
 * copied.
 */
export async function createMigratedDatabase(name: string): Promise<TestDatabase> {
  const template = process.env.TEST_TEMPLATE;
  if (template !== undefined) return createDatabase(name, template, roleSettings);
  const database = await createTestDatabase(name);
  await migrate(database.url);
  return database;
}

async function createDatabase(
  name: string,
  template: string,
  settingsOf: (database: string) => string,
): Promise<TestDatabase> {
  const server = await findServer();
  const readable = name
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "_")
    .slice(0, NAME_CHARACTERS_MAX);
  const database = `${PREFIX}${readable}_${randomBytes(6).toString("hex")}`;
  await administer(server, async (client) => {
    await client.query(`CREATE DATABASE ${database} TEMPLATE ${template}`);
    await client.query(settingsOf(database));
  });
  const url = new URL(server);
  url.pathname = `/${database}`;
  return {
    url: url.href,
    drop: async () => {
      await administer(server, (client) => client.query(`DROP DATABASE IF EXISTS ${database} WITH (FORCE)`));
    },
  };
}

let ownServer: Promise<EmbeddedPostgres> | undefined;

async function findServer(): Promise<string> {
  const named = process.env.TEST_DATABASE_URL;
  if (named !== undefined) return named;
  ownServer ??= startOwnServer();
  return (await ownServer).url;
}

/** Whether the databases are on a server that this process started for itself. */
export const hasOwnServer = () => ownServer !== undefined;

/** Ends the server that this process started, if it did. A process does not end by itself while its server runs. */
export async function stopOwnServer(): Promise<void> {
  await (await ownServer)?.stop();
}

/** The data directories stay in the cache, since making one takes longer than most tests. */
async function startOwnServer(): Promise<EmbeddedPostgres> {
  const cache = join(dirname(dirname(import.meta.dir)), ".cache");
  for (let number = 0; number < OWN_SERVERS_MAX; number++) {
    try {
      const server = await startEmbeddedPostgres({ dataDir: join(cache, `test-postgres-${number}`) });
      await dropLeftovers(server.url);
      return server;
    } catch (error) {
      if (!(error instanceof Error && error.message.includes("is in use"))) throw error;
    }
  }
  throw new Error(`${OWN_SERVERS_MAX} test servers are in use: set TEST_DATABASE_URL`);
}

async function dropLeftovers(server: string): Promise<void> {
  await administer(server, async (client) => {
    const { rows } = await client.query<{ datname: string }>(
      "SELECT datname FROM pg_database WHERE starts_with(datname, $1)",
      [PREFIX],
    );
    for (const { datname } of rows) await client.query(`DROP DATABASE ${datname} WITH (FORCE)`);
  });
}

async function administer(server: string, act: (client: pg.Client) => Promise<unknown>): Promise<void> {
  const client = new pg.Client({ connectionString: server });
  await client.connect();
  try {
    await act(client);
  } finally {
    await client.end();
  }
}
