import type { Database } from "../../../../shared/store/database/database.ts";

/** A measurement's needs of a product beyond its defaults. */
export interface Wish {
  /** Jobs become due after they were created: a product that polls for them polls as often as it may. */
  isPunctual?: boolean;
  /** The number of names of targets, instead of one address. */
  names?: number;
  /** Targets are reached over TLS. */
  isSecure?: boolean;
  /** graphile-worker and BullMQ only: the number of deliveries at once. */
  concurrency?: number | undefined;
  /** Jobwheel only: the number of projects, each with a key. */
  projects?: number;
  /** Jobwheel only: the number of shards, all in one worker. */
  shards?: number;
}

/** The place where a product runs. Functions in `stops` are called in reverse order when the measurement is over. */
export interface Site {
  wish: Wish;
  databaseUrl: string;
  /** The benchmark's own connection to that database. The CPU of its statements is charged to no product. */
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
  /** The product's processes by name, without Postgres. Each of its own is added when it starts. */
  pids: Map<string, number>;
  usesPostgres: boolean;
  /** The port at which jobs are created: `POST /v2/jobs` and `POST /v2/jobs/batch`. */
  port: number;
  keys: string[];
  /** The secrets with which the product signs, in the order of the keys; empty if it does not sign. */
  secrets: string[];
  /** Whether a job is due or under way. The call comes while CPU is measured, so it spares the product's processes. */
  isOwing(): Promise<boolean>;
  /** The number of jobs that are not done yet. Counting may take time in proportion to the jobs. */
  countStored(): Promise<number>;
}

/** The statements behind isOwing and countStored. */
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
