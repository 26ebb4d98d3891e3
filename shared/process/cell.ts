import type { Bus } from "../bus/bus.ts";
import type { Clock } from "../platform/clock.ts";
import type { ProcessLog } from "../platform/log.ts";
import type { Metrics } from "../platform/metrics/metrics.ts";
import type { Traces } from "../platform/traces/traces.ts";
import type { Database } from "../store/database/database.ts";

/**
 * A process's view of its cell: Postgres, NATS (the bus), the database's clock, and the log, metrics and traces.
 */
export interface Cell {
  db: Database;
  bus: Bus;
  clock: Clock;
  log: ProcessLog;
  metrics: Metrics;
  traces: Traces;
}
