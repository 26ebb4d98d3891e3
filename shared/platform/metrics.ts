import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";

/** Something that only ever happens more often. */
export interface Count {
  inc(by?: number): void;
}

/** Something that goes up and down. */
export interface Level {
  set(value: number): void;
}

/** Something of which the distribution matters. */
export interface Spread {
  observe(value: number): void;
}

/** What one process tells of itself. A service leaves what it does not do at zero. */
export interface Metrics {
  jobsCreated: Count;
  attemptsSettled: Record<"succeeded" | "failed" | "timed_out", Count>;
  /** Attempts of deliveries to webhook endpoints. */
  deliveriesSettled: Record<"succeeded" | "failed" | "timed_out", Count>;
  /** From when an attempt was due until it was claimed. */
  latenessSeconds: Spread;
  /** Attempts asked for in one claim statement. */
  claimBatchSize: Spread;
  /** Attempts settled in one settle statement. */
  settleBatchSize: Spread;
  /** Due work that only the sweep found, so that a hint about it was lost or late. */
  sweepFound: Count;
  shardsOwned: Level;
  attemptsInFlight: Level;
  /** Shows the bus's counts, by kind, as they are at the moment of each reading. */
  showBus<Kind extends string>(readCounts: () => Readonly<Record<Kind, number>>): void;
  /** Everything in Prometheus' text format. */
  page(): Promise<{ text: string; contentType: string }>;
}

const PREFIX = "jobwheel_";
/** Fine about the goals of 3 and 10 ms, coarse up to what an outage makes of it. */
const LATENESS_BUCKETS_SECONDS = [
  0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900,
];
const BATCH_BUCKETS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000];

/** Of the usual metrics of a process, those to which Bun gives no meaning. */
const MEANINGLESS_ON_BUN = [
  "nodejs_active_resources",
  "nodejs_active_resources_total",
  "nodejs_active_handles",
  "nodejs_active_handles_total",
  "nodejs_active_requests",
  "nodejs_active_requests_total",
  "nodejs_heap_space_size_total_bytes",
  "nodejs_heap_space_size_used_bytes",
  "nodejs_heap_space_size_available_bytes",
  "nodejs_version_info",
  "nodejs_gc_duration_seconds",
  // Of virtual memory Bun reserves gigabytes that it never touches.
  "process_virtual_memory_bytes",
  "process_heap_bytes",
];

/** A registry of its own, so that a process can hold several, as tests do. */
export function createMetrics(): Metrics {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry });
  for (const name of MEANINGLESS_ON_BUN) registry.removeSingleMetric(name);

  const count = (name: string, help: string) => new Counter({ name: PREFIX + name, help, registers });
  const level = (name: string, help: string) => new Gauge({ name: PREFIX + name, help, registers });
  const spread = (name: string, help: string, buckets: number[]) =>
    new Histogram({ name: PREFIX + name, help, buckets, registers });

  // Looked up once, since to find a label's counter costs more than to count; and shown from the start, since a
  // rate over a series that appears with its first event misses that event.
  const outcomes = (name: string, help: string) => {
    const settled = new Counter({ name: PREFIX + name, help, labelNames: ["outcome"], registers });
    const outcome = (kind: string) => {
      const counter = settled.labels(kind);
      counter.inc(0);
      return counter;
    };
    return {
      succeeded: outcome("succeeded"),
      failed: outcome("failed"),
      timed_out: outcome("timed_out"),
    };
  };

  return {
    jobsCreated: count("jobs_created_total", "Jobs accepted over the API."),
    attemptsSettled: outcomes("attempts_settled_total", "Attempts of jobs that ended, by outcome."),
    deliveriesSettled: outcomes(
      "deliveries_settled_total",
      "Attempts of webhook deliveries that ended, by outcome.",
    ),
    latenessSeconds: spread(
      "lateness_seconds",
      "From when an attempt was due until it was claimed.",
      LATENESS_BUCKETS_SECONDS,
    ),
    claimBatchSize: spread("claim_batch_size", "Attempts asked for in one claim statement.", BATCH_BUCKETS),
    settleBatchSize: spread("settle_batch_size", "Attempts settled in one statement.", BATCH_BUCKETS),
    sweepFound: count("sweep_found_total", "Due work that only the sweep found, not a hint."),
    shardsOwned: level("shards_owned", "Shards whose lease this process holds."),
    attemptsInFlight: level("attempts_in_flight", "Attempts that are on the wire."),
    showBus(readCounts) {
      new Counter({
        name: `${PREFIX}bus_faults_total`,
        help: "What went wrong on the bus since it was opened, by kind.",
        labelNames: ["kind"],
        registers,
        collect() {
          this.reset();
          for (const [kind, value] of Object.entries<number>(readCounts())) this.inc({ kind }, value);
        },
      });
    },
    page: async () => ({ text: await registry.metrics(), contentType: registry.contentType }),
  };
}
