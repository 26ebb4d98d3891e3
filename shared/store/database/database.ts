import { DrizzleQueryError } from "drizzle-orm";
import { drizzle, type NodePgDatabase } from "drizzle-orm/node-postgres";
import pg from "pg";
import type { Log } from "../../platform/log.ts";
import { Client } from "./client.ts";
import journal from "./migrations/meta/_journal.json" with { type: "json" };

/**
 * One cell's Postgres. `drizzle` serves statements that run rarely. Statements that run for every job go through `run`
 * as named prepared statements, because building and planning them each time costs more than executing them.
 */
export interface Database {
  drizzle: Omit<NodePgDatabase, "transaction">;
  /**
   * Runs one self-committing statement. `name` must belong to `text` alone. Throws StoreUnavailable when the outcome is
   * unknown or the server cannot be asked; passes on other errors.
   */
  run<Row>(name: string, text: string, values: unknown[]): Promise<Row[]>;
  /** Runs several statements, all or nothing: an error that `act` throws rolls them back. */
  transact<Result>(act: (tx: Transaction) => Promise<Result>): Promise<Result>;
  close(): Promise<void>;
}

/** Runs the statements of one transaction. */
export type Transaction = Pick<Database, "drizzle" | "run">;

/** A database with a pool of this process's own, and the figures that operators see of it. */
export interface PooledDatabase extends Database {
  connections(): Record<"busy" | "idle" | "waiting", number>;
  /** Ends an idle connection, so that the next one begins with the present settings of its role. */
  renewConnection(): Promise<void>;
  /**
   * Counts statements without an answer (`unavailable`), statements that Postgres refused for their content (`refused`), and
   * statements that ran again since Postgres had rolled them back because of others (`repeated`).
   */
  errors: Readonly<Record<"unavailable" | "refused" | "repeated", number>>;
}

const UNIQUE_VIOLATION = "23505";

/** How often a statement is tried if Postgres rolls it back because of other statements. */
const TRIES_MAX = 5;

/** Postgres could not be asked, or its answer did not arrive: the statement may have taken effect. */
export class StoreUnavailable extends Error {}

/** How long opening a connection may take: the API promises 503 within 2 s. */
const CONNECT_TIMEOUT_MS = 1_500;

/**
 * The client gives up a statement whose answer does not arrive in this time, since a dead network reports nothing. It
 * is longer than the server's statement_timeout, so that normally the server decides.
 */
const ANSWER_TIMEOUT_MS = 8_000;

/**
 * How long a statement may run on the server. A row is owed from the moment its statement begins, and may appear this
 * much later. The sweep's low-water marks allow for the delay (sweep.ts).
 */
export const STATEMENT_TIMEOUT_MS = 5_000;

/** The settings of every session of the service's role. `migrate` stores them and `openDatabase` checks them. */
export const SESSION_SETTINGS: Record<string, string> = {
  statement_timeout: `${STATEMENT_TIMEOUT_MS}ms`,
  idle_in_transaction_session_timeout: "5s",
  // Plans are made while the queue is empty and kept while it grows, so they must always use an index.
  enable_seqscan: "off",
  enable_hashjoin: "off",
  enable_mergejoin: "off",
  jit: "off",
  // A plan for the actual parameters could leave out tables of runs, but making it costs more than it saves.
  plan_cache_mode: "force_generic_plan",
  timezone: "UTC",
};

export function openDatabase(
  url: string,
  options: { connections: number; log: Log; answerTimeoutMs?: number; connectTimeoutMs?: number },
): PooledDatabase {
  const pool = new pg.Pool({
    Client,
    connectionString: url,
    max: options.connections,
    connectionTimeoutMillis: options.connectTimeoutMs ?? CONNECT_TIMEOUT_MS,
    query_timeout: options.answerTimeoutMs ?? ANSWER_TIMEOUT_MS,
    idleTimeoutMillis: 0,
    keepAlive: true,
  });
  pool.on("error", (error) => options.log.warn({ error: error.message }, "postgres.connection_lost"));
  // The pool listens to idle connections only. A connection that is lost within a transaction fails its statement too, and
  // an error event without a listener would end the process.
  pool.on("connect", (client) => client.on("error", () => undefined));
  const errors = { unavailable: 0, refused: 0, repeated: 0 };
  const countError = (error: unknown) => {
    if (isDatabaseFault(error)) errors.unavailable++;
    // A unique key's refusal is an answer, such as a taken name.
    else if (driverErrorOf(error) instanceof pg.DatabaseError && !isTakenKey(error)) errors.refused++;
  };
  return {
    errors,
    connections: () => ({
      busy: pool.totalCount - pool.idleCount,
      idle: pool.idleCount,
      waiting: pool.waitingCount,
    }),
    async renewConnection() {
      const client = await pool.connect();
      client.release(true);
    },
    drizzle: drizzle(pool),
    async run(name, text, values) {
      for (let attempt = 1; ; attempt++) {
        try {
          return (await pool.query({ name, text, values })).rows;
        } catch (error) {
          if (isRolledBack(error) && attempt < TRIES_MAX) {
            errors.repeated++;
            continue;
          }
          countError(error);
          throw isDatabaseFault(error) ? new StoreUnavailable(describe(error), { cause: error }) : error;
        }
      }
    },
    async transact(act) {
      const client = await pool.connect().catch((error) => {
        countError(error);
        throw error;
      });
      try {
        const result = await transactOn(client, act);
        client.release();
        return result;
      } catch (error) {
        countError(error);
        const isClean = await client.query("ROLLBACK").then(
          () => true,
          () => false,
        );
        client.release(!isClean);
        throw error;
      }
    },
    close: () => pool.end(),
  };
}

/**
 * Runs a transaction on a connection of the caller's. If it throws, the caller rolls back. The query builder's own
 * `transaction` keeps its connection for good if BEGIN fails, so the type `Database` leaves that method out.
 */
export async function transactOn<Result>(
  client: pg.Client | pg.PoolClient,
  act: (tx: Transaction) => Promise<Result>,
): Promise<Result> {
  await client.query("BEGIN");
  const result = await act({
    drizzle: drizzle(client),
    run: async (name, text, values) => (await client.query({ name, text, values })).rows,
  });
  await client.query("COMMIT");
  return result;
}

/** The driver's error if the query builder has wrapped it. A wrapper's message has the statement and its parameters. */
function driverErrorOf(error: unknown): unknown {
  return error instanceof DrizzleQueryError ? error.cause : error;
}

/**
 * True if an error concerns the server or the way to it, rather than the statement's data. Classes of SQLSTATE: 08
 * connection, 25 transaction state (a standby that is read-only), 28 password, 3D database name, 40 rollback, 53
 * resources, 55 lock, 57 operator, 58 system, XX internal. An error without a SQLSTATE comes from the socket or the
 * pool.
 */
export function isDatabaseFault(thrown: unknown): boolean {
  const error = driverErrorOf(thrown);
  if (error instanceof StoreUnavailable) return true;
  if (!(error instanceof Error)) return false;
  const code = (error as { code?: unknown }).code;
  if (error instanceof pg.DatabaseError) return /^(08|25|28|3D|40|53|55|57|58|XX)/.test(error.code ?? "");
  return (
    (typeof code === "string" && SYSTEM_ERROR.test(code)) ||
    /timeout|terminated|Connection|closed/i.test(error.message)
  );
}

/**
 * True if the statement did nothing and may succeed when it runs again. Serialization failure: a row that it was to change
 * has just moved to another partition (run-moves.ts). Deadlock: two creations each hold a flow key that is new to the other.
 */
function isRolledBack(error: unknown): boolean {
  return error instanceof pg.DatabaseError && (error.code === "40001" || error.code === "40P01");
}

/** True if a row's unique key was taken already. */
export function isTakenKey(thrown: unknown): boolean {
  const error = driverErrorOf(thrown);
  return error instanceof pg.DatabaseError && error.code === UNIQUE_VIOLATION;
}

/** True if a statement did not get a lock: it gave up after lock_timeout, or Postgres ended it to end a deadlock. */
export function isLockedOut(thrown: unknown): boolean {
  const error = driverErrorOf(thrown);
  return error instanceof pg.DatabaseError && (error.code === "55P03" || error.code === "40P01");
}

/**
 * Matches ECONNRESET, EAI_AGAIN and their like. ERR_INVALID_ARG_TYPE does not match: it is a fault in the service's own
 * code.
 */
const SYSTEM_ERROR = /^E(?!RR_)[A-Z_]+$/;

/** Milliseconds since 1970 by the database's clock. */
export async function askTime(db: Database): Promise<number> {
  const text = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now";
  const [row] = await db.run<{ now: number }>("ask_time", text, []);
  if (row === undefined) throw new StoreUnavailable("no answer to the question for the time");
  return row.now;
}

/** Thrown if `migrate` has not run yet, or only the `migrate` of an earlier release has. */
export class NotPrepared extends Error {}

/** The time of this release's newest migration, as `migrate` notes it. Later migrations take nothing away. */
const NEWEST_MIGRATION = Math.max(...journal.entries.map(({ when }) => when));

/**
 * Throws NotPrepared unless `migrate` has brought this database up to this release and stored the settings of this
 * role: a session without its timeouts could hang.
 */
export async function checkPrepared(db: Database): Promise<void> {
  const [row] = await db.run<{ statement_timeout: string }>(
    "check_prepared",
    "SELECT setting || unit AS statement_timeout FROM pg_settings WHERE name = 'statement_timeout'",
    [],
  );
  if (row?.statement_timeout !== SESSION_SETTINGS.statement_timeout) {
    throw new NotPrepared(
      "The database is not prepared: run `npm run migrate` as the role that the services use.",
    );
  }
  const [last] = await db.run<{ at: number }>(
    "check_migrated",
    "SELECT max(created_at)::float8 AS at FROM drizzle.__drizzle_migrations",
    [],
  );
  if ((last?.at ?? 0) < NEWEST_MIGRATION) {
    throw new NotPrepared(
      "The database has the schema of a release before this one: run `npm run migrate` of this one.",
    );
  }
}

/**
 * The time of leases and heartbeats, in SQL. It equals `now()`, except under a test clock, which replaces `now()` and leaves
 * this function alone (cell/test-clock.ts).
 */
export const REAL_NOW = "transaction_timestamp()";

/** An array parameter as Postgres reads it, for numbers, uuids and the texts of `instant`: none needs escaping. */
export function column(values: readonly (number | string | null)[]): string {
  let text = "{";
  for (let index = 0; index < values.length; index++) {
    if (index > 0) text += ",";
    text += values[index] ?? "NULL";
  }
  return `${text}}`;
}

/** An instant in milliseconds since 1970 as Postgres reads it inside an array parameter. */
export function instant(ms: number): string {
  return `"${new Date(ms).toISOString()}"`;
}

/**
 * An instant of Postgres as milliseconds since 1970, in SQL. `extract` computes in numeric, which takes much longer.
 * Whole microseconds are exact in a float8, so a thousandth of them is the same number as with `extract`.
 */
export const epochMs = (instant: string): string => `(round(date_part('epoch', ${instant}) * 1e6) / 1e3)`;

function describe(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
