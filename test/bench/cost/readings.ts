import { readFileSync, writeFileSync } from "node:fs";
import type { Database } from "../../../shared/store/database/database.ts";
import { childrenCpuUs, cpuUsOf } from "../harness/processes.ts";

/** Reads from the kernel, from Postgres and from NATS what the processes of a cell have used. */

export const PARTS = ["gateway", "worker", "delivery", "postgres", "nats"] as const;
export type Part = (typeof PARTS)[number];
export const PODS = ["gateway", "worker", "delivery", "nats"] as const;

export interface Reading {
  cpuUs: Record<Part, number>;
  /** A place in the write-ahead log. */
  wal: string;
  nats: { messages: number; bytes: number; streamBytes: number };
}

export interface Rows {
  inserted: number;
  updated: number;
  deleted: number;
  transactions: number;
  fsyncs: number;
}

export interface Watched {
  db: Database;
  pids: Record<(typeof PODS)[number], number>;
  postmaster: number;
  natsMonitor: string;
}

export async function read({ db, pids, postmaster, natsMonitor }: Watched): Promise<Reading> {
  const [{ wal } = { wal: "" }] = await db.run<{ wal: string }>(
    "lsn",
    "SELECT pg_current_wal_lsn() AS wal",
    [],
  );
  const [said, stored] = await Promise.all([
    askJson<Varz>(`${natsMonitor}/varz`),
    askJson<Jsz>(`${natsMonitor}/jsz`),
  ]);
  return {
    cpuUs: {
      gateway: cpuUsOf(pids.gateway),
      worker: cpuUsOf(pids.worker),
      delivery: cpuUsOf(pids.delivery),
      nats: cpuUsOf(pids.nats),
      // The processes that write the log, clean tables and make checkpoints are a part of the cost.
      postgres: cpuUsOf(postmaster, true) + childrenCpuUs(postmaster),
    },
    wal,
    nats: {
      messages: said.in_msgs + said.out_msgs,
      bytes: said.in_bytes + said.out_bytes,
      streamBytes: stored.bytes,
    },
  };
}

interface Varz {
  in_msgs: number;
  out_msgs: number;
  in_bytes: number;
  out_bytes: number;
}
interface Jsz {
  bytes: number;
}

const askJson = async <Answer>(url: string) => (await (await fetch(url)).json()) as Answer;

/** The bytes written between two places, by kind. Full page images are separate, since they depend on checkpoints. */
export async function readWal(
  db: Database,
  from: string,
  to: string,
): Promise<{ bytes: number; records: number; imageBytes: number }> {
  const rows = await db.run<{ records: number; bytes: number; images: number }>("wal_stats", WAL_STATS, [
    from,
    to,
  ]);
  const [{ records, bytes, images } = { records: 0, bytes: 0, images: 0 }] = rows;
  return { records, bytes, imageBytes: images };
}

const WAL_STATS = `
SELECT coalesce(sum(count), 0)::float8 AS records, coalesce(sum(record_size), 0)::float8 AS bytes,
       coalesce(sum(fpi_size), 0)::float8 AS images
  FROM pg_get_wal_stats($1::pg_lsn, $2::pg_lsn) WHERE $1::pg_lsn < $2::pg_lsn`;

/** Ends all connections except this one, which then flushes its own counters. */
export async function endOtherBackends(db: Database): Promise<void> {
  await db.run("end_backends", END_BACKENDS, []);
}

/** Each backend may take 1,000 ms to end, which flushes its counters. */
const END_BACKENDS = `
SELECT pg_terminate_backend(pid, 1000), pg_stat_force_next_flush() FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`;

export async function readRows(db: Database): Promise<Rows> {
  const [row] = await db.run<Rows & Record<string, unknown>>("rows", ROWS, []);
  if (row === undefined) throw new Error("Postgres does not say what it has counted");
  return row;
}

const ROWS = `
SELECT tup_inserted::float8 AS inserted, tup_updated::float8 AS updated, tup_deleted::float8 AS deleted,
       xact_commit::float8 AS transactions,
       (SELECT sum(fsyncs)::float8 FROM pg_stat_io WHERE object = 'wal') AS fsyncs
  FROM pg_stat_database WHERE datname = current_database()`;

/** Bytes on disk with indexes, by how long they stay. */
export interface Disk {
  /** Bytes that stay until the job or the delivery is over; the room is used again. */
  queues: number;
  /** Bytes that stay as long as the plan shows runs. */
  runs: number;
  /** Bytes of events and deliveries, which stay for 30 days and one. */
  deliveries: number;
  /** Bytes that stay for ever: nothing removes them. */
  rest: number;
}

export async function readDisk(db: Database): Promise<Disk> {
  await db.run("vacuum", "VACUUM", []);
  const [disk] = await db.run<Disk & Record<string, unknown>>("disk", DISK, []);
  if (disk === undefined) throw new Error("Postgres does not say how large its tables are");
  return disk;
}

const DISK = `
SELECT coalesce(sum(size) FILTER (WHERE kind = 'queues'), 0)::float8 AS queues,
       coalesce(sum(size) FILTER (WHERE kind = 'runs'), 0)::float8 AS runs,
       coalesce(sum(size) FILTER (WHERE kind = 'deliveries'), 0)::float8 AS deliveries,
       coalesce(sum(size) FILTER (WHERE kind = 'rest'), 0)::float8 AS rest
  FROM (SELECT pg_total_relation_size(c.oid) AS size,
               CASE WHEN c.relname LIKE 'open\\_%' THEN 'queues'
                    WHEN c.relname LIKE 'runs%' THEN 'runs'
                    WHEN c.relname IN ('events', 'ended_deliveries', 'delivery_attempts') THEN 'deliveries'
                    ELSE 'rest' END AS kind
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind = 'r' AND n.nspname = 'public') sizes`;

/** Resets each process's peak of resident memory to its present use (proc(5), `clear_refs`). */
export function forgetPeaks(pids: Watched["pids"]): void {
  for (const part of PODS) writeFileSync(`/proc/${pids[part]}/clear_refs`, "5");
}

/** The most resident memory since the reset, in bytes. */
export function readPeaks(pids: Watched["pids"]): Record<(typeof PODS)[number], number> {
  const peakOf = (pid: number) =>
    Number(/VmHWM:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]) * 1_024;
  const { gateway, worker, delivery, nats } = pids;
  return { gateway: peakOf(gateway), worker: peakOf(worker), delivery: peakOf(delivery), nats: peakOf(nats) };
}
