import type { Bus } from "../bus/bus.ts";
import type { Clock } from "../platform/clock.ts";
import type { ProcessLog } from "../platform/log.ts";
import type { Metrics } from "../platform/metrics/metrics.ts";
import type { Traces } from "../platform/traces/traces.ts";
import type { Database } from "../store/database/database.ts";

/**
 * What a process has of its cell: the ways to Postgres and NATS, the database's clock, and where it tells what happens.
 */
export interface Cell {
  db: Database;
  bus: Bus;
  clock: Clock;
  log: ProcessLog;
  metrics: Metrics;
  traces: Traces;
}
