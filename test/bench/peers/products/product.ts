import type { Database } from "../../../../shared/store/database/database.ts";

/** What a measurement needs of a product beyond its defaults. */
export interface Wish {
  /** Jobs become due after they were created: a product that polls for them does so as often as it may. */
  isPunctual?: boolean;
  /** So many names of targets, instead of one address. */
  names?: number;
  /** Targets are reached over TLS. */
  isSecure?: boolean;
  /** graphile-worker and BullMQ only: so many deliveries at once. */
  concurrency?: number | undefined;
  /** Ours only: so many projects, each with a key. */
  projects?: number;
  /** Ours only: so many shards, all in one worker. */
  shards?: number;
}

/** Where a product runs. What is added to `stops` is called in reverse order when the measurement is over. */
export interface Site {
  wish: Wish;
  databaseUrl: string;
  /** The benchmark's own connection to that database. What it asks there is charged to nobody. */
  db: Database;
  folder: string;
  environment: Record<string, string>;
  /** The service whose CPU profile is wanted. */
  profiled: string | undefined;
  stops: (() => unknown)[];
}

/** A product whose schema is made and whose servers run, such as NATS and Redis. */
export interface Prepared {
  /** Starts its own processes one after another. Resolves once all are ready. */
  start(): Promise<void>;
  /** All that belongs to it by name, without Postgres. Its own processes are added as they are started. */
  pids: Map<string, number>;
  usesPostgres: boolean;
  /** Where jobs are created: `POST /v2/jobs` and `POST /v2/jobs/batch`. */
  port: number;
  keys: string[];
  /** The secrets with which it signs, in the order of the keys; none if it does not sign. */
  secrets: string[];
  /** Whether a job is due or under way. It is asked while CPU is measured, so it asks none of the product's processes. */
  isOwing(): Promise<boolean>;
  /** How many jobs are not done yet. It may take as long as there are jobs. */
  countStored(): Promise<number>;
}

/** What isOwing and countStored ask of Postgres. */
export interface StoredQueries {
  /** Looks at a few rows, however many are stored. Answers a row with `owing`. */
  owing: string;
  /** Answers a row with `count`. */
  count: string;
}

export function askPostgres(db: Database, queries: StoredQueries): Pick<Prepared, "isOwing" | "countStored"> {
  return {
    async isOwing() {
      const [row] = await db.run<{ owing: boolean }>("owing", queries.owing, []);
      return row?.owing ?? false;
    },
    async countStored() {
      const [row] = await db.run<{ count: number }>("count_stored", queries.count, []);
      return row?.count ?? 0;
    },
  };
}

export type PrepareProduct = (site: Site) => Promise<Prepared>;
