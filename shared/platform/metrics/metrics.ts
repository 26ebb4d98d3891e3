import { collectDefaultMetrics, Registry } from "prom-client";
import type { FlowKind } from "../../domain/flow-class.ts";
import { REGIONS, type Region } from "../../domain/scope.ts";
import { type Count, Families, type Followed, type Members, type Spread } from "./families.ts";

/** The statements on the way of a job. */
export type Statement =
  | "create_jobs"
  | "claim_jobs"
  | "claim_webhooks"
  | "settle_jobs"
  | "settle_webhooks"
  | "fire_schedules"
  | "count_bulk"
  | "judge_bulk"
  | "sweep";

/** The metrics of one process; deploy/METRICS.md lists them. Unused ones stay at zero or have no values. */
export interface Metrics {
  requests: Members<"operation" | "status", Count>;
  requestSeconds: Members<"operation", Spread>;
  refusals: Members<"code", Count>;
  jobsCreated: Members<"origin", Count>;
  /** Members of bulk operations that were judged. */
  bulkMembers: Members<"action" | "outcome", Count>;
  /** Returns the function that records the lateness of an attempt of this kind, in milliseconds. */
  lateness(kind: FlowKind): (region: Region, ms: number) => void;
  /** Returns the function that records how late an attempt of this kind and region was claimed, and if it was held back. */
  granted(kind: FlowKind, region: Region): (lateMs: number, isHeldBack: boolean) => void;
  attemptsSettled: Record<"succeeded" | "failed" | "timed_out", Count>;
  /** Attempts of deliveries to webhook endpoints. */
  deliveriesSettled: Record<"succeeded" | "failed" | "timed_out", Count>;
  attemptsRescued: Record<FlowKind, Count>;
  webhooksDisabled: Count;
  attemptsInFlight: Followed<never>;
  /** Returns the function that runs a statement and records its rows and time, failed or not. Shows the metric at once. */
  statement(name: Statement): <Result>(rowCount: number, run: () => Promise<Result>) => Promise<Result>;
  sweepFound: Count;
  leaseChanges: Record<"acquired" | "lost" | "resigned", Count>;
  shardsOwned: Followed<never>;
  shardReady: Followed<"region" | "shard">;
  shardOldestDueSeconds: Followed<"region" | "shard">;
  permitsInUse: Followed<"kind" | "environment">;
  permitsMiscounted: Count;
  jobsDue: Followed<never>;
  webhookDeliveriesDue: Followed<never>;
  attemptsParked: Followed<"kind">;
  shardsUnowned: Followed<"region">;
  holds: Followed<"kind">;
  runTablesReadySeconds: Followed<never>;
  deletionsWaitSeconds: Followed<never>;
  requestsWaiting: Followed<never>;
  firingsOverdueSeconds: Followed<never>;
  insightsLatenessSeconds: Followed<"runs" | "quantile">;
  insightsDurationSeconds: Followed<"quantile">;
  insightsWaited: Members<"reason", Count>;
  insightsBehindSeconds: Followed<never>;
  secretsKeyAgeSeconds: Followed<never>;
  nodes: Followed<"kind" | "state">;
  postgresConnections: Followed<"state">;
  statementErrors: Followed<"kind">;
  busFaults: Followed<"kind">;
  /** All metrics in Prometheus' text format. */
  page(): Promise<{ text: string; contentType: string }>;
}

/** An attempt claimed within this time of being due is on time, in the sense of the service's objective. */
const ON_TIME_WITHIN_MS = 1_000;
/** Fine around the goals of 3 and 10 ms, coarse up to the lateness after an outage. */
const LATENESS_BOUNDS_SECONDS = [
  0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900,
];
/** Up past the 2 s within which an outage is answered, and past the 38 s that a body of 1 MiB may take. */
const REQUEST_BOUNDS_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 40];
/** Up past the timeout of a statement. */
const STATEMENT_BOUNDS_SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 10];
const ROWS_BOUNDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000];

/** The default metrics of prom-client that mean nothing on Bun, or not always. */
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
  // Before anything is recorded these are not a number, or 292 years.
  "nodejs_eventloop_lag_min_seconds",
  "nodejs_eventloop_lag_mean_seconds",
  "nodejs_eventloop_lag_stddev_seconds",
  // Bun reserves gigabytes of virtual memory that it never uses.
  "process_virtual_memory_bytes",
  "process_heap_bytes",
];

/** Each result has a registry of its own, so that a process can hold several, as tests do. */
export function createMetrics(): Metrics {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  for (const name of MEANINGLESS_ON_BUN) registry.removeSingleMetric(name);

  const families = new Families("jobwheel_", registry);
  const count = (name: string, help: string) => families.counts(name, help).of({});
  const outcomes = (name: string, help: string) => {
    const settled = families.counts(name, help, ["outcome"]);
    return {
      succeeded: settled.of({ outcome: "succeeded" }),
      failed: settled.of({ outcome: "failed" }),
      timed_out: settled.of({ outcome: "timed_out" }),
    };
  };
  const rescued = families.counts(
    "attempts_rescued_total",
    "Attempts that their node did not settle, because it is dead or they had outlived their deadline.",
    ["kind"],
  );
  const leases = families.counts(
    "lease_changes_total",
    "Shards whose lease this worker acquired, lost against its will, or resigned.",
    ["change"],
  );
  const granted = families.counts(
    "attempts_granted_total",
    "Attempts that a delivery node claimed: within a second of when they were due, late, or late since a limit, a quota or a hold kept them waiting.",
    ["kind", "region", "start"],
  );
  const latenessSeconds = families.spreads(
    "lateness_seconds",
    "From when an attempt was due until its request was handed to the HTTP client.",
    ["kind", "region"],
    LATENESS_BOUNDS_SECONDS,
  );
  const statementSeconds = families.spreads(
    "statement_seconds",
    "From sending a statement on the way of a job until its answer, failures included.",
    ["statement"],
    STATEMENT_BOUNDS_SECONDS,
  );
  const statementRows = families.spreads(
    "statement_rows",
    "What one such statement is about: jobs, attempts, deliveries, schedules, shards. Jobs are first claimed and settled by a shorter statement; what it leaves is counted again by the longer one.",
    ["statement"],
    ROWS_BOUNDS,
  );

  return {
    requests: families.counts("requests_total", "Requests to the API that were answered.", [
      "operation",
      "status",
    ]),
    requestSeconds: families.spreads(
      "request_seconds",
      "From a request's head until its answer, the receipt of its body included.",
      ["operation"],
      REQUEST_BOUNDS_SECONDS,
    ),
    refusals: families.counts("refusals_total", "Requests to the API that were refused, by error code.", [
      "code",
    ]),
    jobsCreated: families.counts(
      "jobs_created_total",
      "Jobs committed, one by one and in batches over the API, by schedules, and by bulk operations.",
      ["origin"],
    ),
    bulkMembers: families.counts(
      "bulk_members_total",
      "Members of bulk operations that were judged, by what became of them.",
      ["action", "outcome"],
    ),
    lateness(kind) {
      const members = new Map(REGIONS.map((region) => [region, latenessSeconds.of({ kind, region })]));
      // Nodes follow the database's clock with small errors, so a lateness can come out negative.
      return (region, ms) => members.get(region)?.observe(Math.max(0, ms) / 1_000);
    },
    granted(kind, region) {
      const [onTime, late, heldBack] = ["on_time", "late", "held_back"].map((start) =>
        granted.of({ kind, region, start }),
      );
      return (lateMs, isHeldBack) =>
        (lateMs <= ON_TIME_WITHIN_MS ? onTime : isHeldBack ? heldBack : late)?.inc();
    },
    attemptsSettled: outcomes("attempts_settled_total", "Attempts of jobs that ended, by outcome."),
    deliveriesSettled: outcomes(
      "deliveries_settled_total",
      "Attempts of webhook deliveries that ended, by outcome.",
    ),
    attemptsRescued: { jobs: rescued.of({ kind: "jobs" }), webhooks: rescued.of({ kind: "webhooks" }) },
    webhooksDisabled: count("webhooks_disabled_total", "Endpoints disabled since everything to them failed."),
    attemptsInFlight: families.levels(
      "attempts_in_flight",
      "Attempts of jobs and deliveries in hand, from before their claim until they are settled.",
    ),
    statement(name) {
      const [seconds, rows] = [
        statementSeconds.of({ statement: name }),
        statementRows.of({ statement: name }),
      ];
      return async (rowCount, run) => {
        rows.observe(rowCount);
        const sentAt = performance.now();
        try {
          return await run();
        } finally {
          seconds.observe((performance.now() - sentAt) / 1_000);
        }
      };
    },
    sweepFound: count(
      "sweep_found_total",
      "Owed attempts that only a sweep found: scheduled beyond the horizon, told of by a lost or late message, or told to a delivery node by a gateway and not claimed yet.",
    ),
    leaseChanges: {
      acquired: leases.of({ change: "acquired" }),
      lost: leases.of({ change: "lost" }),
      resigned: leases.of({ change: "resigned" }),
    },
    shardsOwned: families.levels(
      "shards_owned",
      "Shards that this worker acts for; while one moves, two may.",
    ),
    shardReady: families.levels(
      "shard_ready_attempts",
      "Due attempts that a shard remembers and has not handed to delivery.",
      ["region", "shard"],
    ),
    shardOldestDueSeconds: families.levels(
      "shard_oldest_due_seconds",
      "For how long the oldest attempt of a shard has been due that nothing of its project's holds back; 0 if there is none.",
      ["region", "shard"],
    ),
    permitsInUse: families.levels("permits_in_use", "Permits in use over all projects of the cell.", [
      "kind",
      "environment",
    ]),
    permitsMiscounted: count(
      "permits_miscounted_total",
      "Projects that an audit found with more or fewer permits in use than attempts on the wire; each is a bug.",
    ),
    jobsDue: families.levels(
      "jobs_due",
      "Attempts of jobs of the cell that are due and not on the wire, up to 1,000 of each lane.",
    ),
    webhookDeliveriesDue: families.levels(
      "webhook_deliveries_due",
      "Webhook deliveries of the cell that are due and not on the wire, up to 1,000 of each lane.",
    ),
    attemptsParked: families.levels(
      "attempts_parked",
      "Attempts of the cell that wait for their host, which is held or full, up to 10,000 of each kind.",
      ["kind"],
    ),
    shardsUnowned: families.levels(
      "shards_unowned",
      "Shards of the cell that no worker owns: their leases have been over for 5 s.",
      ["region"],
    ),
    holds: families.levels("holds", "What operators or a restored database hold back in the cell.", ["kind"]),
    runTablesReadySeconds: families.levels(
      "run_tables_ready_seconds",
      "For how long yet the tables suffice that are ready for the runs of every plan.",
    ),
    deletionsWaitSeconds: families.levels(
      "deletions_wait_seconds",
      "For how long yet nothing is deleted by time, as the database's clock has leapt or was not watched; 0 while it is trusted.",
    ),
    firingsOverdueSeconds: families.levels(
      "firings_overdue_seconds",
      "For how long the oldest firing of a schedule has been due that is not made; 0 if there is none.",
    ),
    insightsLatenessSeconds: families.levels(
      "insights_lateness_seconds",
      "How late attempts of jobs of the cell started that ended within the last minutes, by quantile: those that waited for nothing of the customer's own, and all.",
      ["runs", "quantile"],
    ),
    insightsDurationSeconds: families.levels(
      "insights_duration_seconds",
      "How long attempts of jobs of the cell took that ended within the last minutes, by quantile.",
      ["quantile"],
    ),
    insightsWaited: families.counts(
      "insights_waited_total",
      "Ended attempts of jobs that started late since something of the customer's own kept them waiting.",
      ["reason"],
    ),
    insightsBehindSeconds: families.levels(
      "insights_behind_seconds",
      "How long ago all runs and jobs of the cell were last counted for insights.",
    ),
    secretsKeyAgeSeconds: families.levels(
      "secrets_key_age_seconds",
      "For how long the key has been in use that seals the secrets of the cell at present.",
    ),
    nodes: families.levels("nodes", "Nodes of the cell that are not dead: alive, or silent for 5 s.", [
      "kind",
      "state",
    ]),
    postgresConnections: families.levels("postgres_connections", "Connections of this process's pool.", [
      "state",
    ]),
    requestsWaiting: families.levels(
      "requests_waiting",
      "Requests that wait for a turn at Postgres while all turns are taken.",
    ),
    statementErrors: families.followedCounts(
      "statement_errors_total",
      "Statements without an answer, Postgres being out of reach or unable, statements that it refused, and statements that ran again because others had made it roll them back.",
      ["kind"],
    ),
    busFaults: families.followedCounts(
      "bus_faults_total",
      "What went wrong on the bus since it was opened, by kind.",
      ["kind"],
    ),
    page: async () => ({
      text: await registry.metrics(),
      contentType: registry.contentType,
    }),
  };
}

/** The values of a metric with one label, from an object whose names are the label's. */
export function* byLabel<Name extends string>(label: Name, values: Readonly<Record<string, number>>) {
  for (const [name, value] of Object.entries(values)) {
    yield { labels: { [label]: name } as Record<Name, string>, value };
  }
}

/** The value of a metric without labels. */
export const single = (value: number) => [{ labels: {}, value }];
