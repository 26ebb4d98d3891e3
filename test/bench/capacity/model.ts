import { NODE_LIMITS } from "../../../services/delivery/concurrency.ts";
import type { Figures, Measurements } from "../cost/measurements.ts";
import type { Part } from "../cost/readings.ts";
import type { Mix } from "./mix.ts";
import { extraOf, idleUsage, middleOf, type Pick, type Usage, usageOf } from "./usage.ts";

/** Computes the needs of a rate of jobs from the measurements. Everything above the measured rates is arithmetic. */

/** The share of its one thread that a process may use; the rest is for bursts, garbage collection and growth. */
export const USE_MAX = 0.6;
/** The same with all pods of the fullest zone gone. */
export const USE_WITHOUT_ZONE_MAX = 0.9;
export const ZONES = 3;
/** One in each zone. */
const PODS_MIN = ZONES;
const CONNECTIONS_PER_POD = 24;

/** The most that a plan expects of one primary. These bounds are assumptions: no measurement here reached them. */
export const PRIMARY = {
  cores: 16,
  /** Each standby replays the log with one process. */
  logBytesPerS: 64_000_000,
};

export const SERVICES = ["gateway", "worker", "delivery"] as const;
export type Service = (typeof SERVICES)[number];
export type Pods = Record<Service, number>;

/** The needs of a cell for its part of the jobs. */
export interface CellPlan {
  jobsPerS: number;
  /** Attempts and webhook deliveries. */
  requestsPerS: number;
  pods: Pods;
  /** The use of each pod's thread. */
  use: Record<Service, number>;
  inFlight: number;
  postgres: { cores: number; logBytesPerS: number; fsyncsPerS: number; connections: number };
  nats: { cores: number; bytesPerS: number };
  network: { inBytesPerS: number; outBytesPerS: number };
  /** `foreverPerDay`: the bytes a day that stay for ever. `levelled`: the bytes at which the others level off. */
  disk: { foreverPerDay: number; levelled: number };
}

export interface Plan {
  jobsPerS: number;
  cells: number;
  cell: CellPlan;
  /** The bound of a primary that is nearest, and the part of it that is used. */
  bound: { name: keyof typeof PRIMARY; part: number };
}

const cpu =
  (part: Part): Pick =>
  ({ cpuSeconds }) =>
    middleOf(cpuSeconds[part]);
const logBytes: Pick = ({ walBytes }) => middleOf(walBytes);
const fsyncs: Pick = ({ rows }) => rows.fsyncs;
const natsBytes: Pick = (figures) => middleOf(figures.natsBytes);

const SINGLE = "create";
const BATCHES = "create in batches";
const DELIVER = "deliver";
const BOTH = "create and deliver";

/** A plan with as few cells, and as few pods in each, as the bounds allow. */
export function planFor(measurements: Measurements, mix: Mix, jobsPerS: number): Plan {
  const model = createModel(measurements, mix);
  for (let cells = 1; ; cells++) {
    const cell = model.plan(jobsPerS / cells);
    const parts = {
      cores: cell.postgres.cores / (USE_MAX * PRIMARY.cores),
      logBytesPerS: cell.postgres.logBytesPerS / PRIMARY.logBytesPerS,
    };
    const name = parts.cores > parts.logBytesPerS ? "cores" : "logBytesPerS";
    if (parts[name] <= 1) return { jobsPerS, cells, cell, bound: { name, part: parts[name] } };
  }
}

/** Jobs a second that passed one process of each service, from creation to delivery. */
export const ratePerSSeen = ({ cases }: Measurements): number => reachedPerS(cases, BOTH);
/** Attempts a second of one project, through its one flow row, by one delivery node. */
export const projectPerSSeen = ({ cases }: Measurements): number => reachedPerS(cases, DELIVER);

const reachedPerS = (cases: readonly Figures[], name: string) =>
  Math.max(...cases.filter((each) => each.name === name).map((each) => middleOf(each.reachedPerS)));

export interface Model {
  plan(jobsPerS: number): CellPlan;
  /** The use of each pod's thread if there are so many pods. */
  useOf(service: Service, jobsPerS: number, pods: number): number;
  postgresCores(jobsPerS: number, pods: Pods): number;
}

export function createModel(measurements: Measurements, mix: Mix): Model {
  const usage = (name: string, pick: Pick) => usageOf(measurements, name, pick);
  const extra = (name: string, than: string, pick: Pick) => extraOf(measurements, name, than, pick);
  const requestsPerJob = 1 + mix.retries + mix.webhooks;
  const batchedOfCreated = mix.batched / (1 - mix.fired);
  /** The jobs that come through gateways, some one by one and some in batches. */
  const creation = (pick: Pick): Usage => {
    const [single, batched] = [usage(SINGLE, pick), usage(BATCHES, pick)];
    return (perS) => (1 - batchedOfCreated) * single(perS) + batchedOfCreated * batched(perS);
  };
  const gatewayUse = creation(cpu("gateway"));
  const workerUse = usage(DELIVER, cpu("worker"));
  const deliveryUse = usage(DELIVER, cpu("delivery"));
  const firingExtra = extra("fire and deliver", DELIVER, cpu("worker"));
  const connectionExtra = extra("deliver over new TLS connections", DELIVER, cpu("delivery"));

  function useOf(service: Service, jobsPerS: number, pods: number): number {
    const [jobs, requests] = [jobsPerS / pods, (jobsPerS * requestsPerJob) / pods];
    switch (service) {
      case "gateway":
        return gatewayUse(jobs * (1 - mix.fired));
      case "worker":
        return workerUse(requests) + firingExtra * mix.fired * jobs;
      case "delivery":
        return deliveryUse(requests) + connectionExtra * mix.newConnections * requests;
    }
  }

  /**
   * The use that pods together cause in Postgres or NATS. Each pod sends statements and messages of its own, which hold
   * more the more the pod has to do.
   */
  function sumOf(jobsPerS: number, pods: Pods, pick: Pick): number {
    const idle = idleUsage(measurements, pick);
    const beyondIdle = (use: Usage, perS: number, count: number) => count * (use(perS / count) - idle);
    return (
      idle +
      beyondIdle(creation(pick), jobsPerS * (1 - mix.fired), pods.gateway) +
      jobsPerS * mix.fired * extra("fire and deliver", DELIVER, pick) +
      beyondIdle(usage(DELIVER, pick), jobsPerS * requestsPerJob, pods.delivery)
    );
  }

  function podsFor(service: Service, jobsPerS: number, inFlight: number): number {
    for (let pods = PODS_MIN; ; pods++) {
      const left = pods - Math.ceil(pods / ZONES);
      const isRoom = service !== "delivery" || inFlight <= USE_MAX * pods * NODE_LIMITS.attemptsMax;
      if (
        isRoom &&
        useOf(service, jobsPerS, pods) <= USE_MAX &&
        useOf(service, jobsPerS, left) <= USE_WITHOUT_ZONE_MAX
      )
        return pods;
    }
  }

  return {
    useOf,
    postgresCores: (jobsPerS, pods) => sumOf(jobsPerS, pods, cpu("postgres")),
    plan(jobsPerS) {
      const requestsPerS = jobsPerS * requestsPerJob;
      const inFlight = (requestsPerS * mix.attemptMs) / 1_000;
      const pods = {
        gateway: podsFor("gateway", jobsPerS, inFlight),
        worker: podsFor("worker", jobsPerS, inFlight),
        delivery: podsFor("delivery", jobsPerS, inFlight),
      };
      const podCount = pods.gateway + pods.worker + pods.delivery;
      const { over, overWithWebhook } = measurements.disk;
      const deliveryDays = 31;
      const perDay = jobsPerS * 86_400;
      const deliveriesOfJob = mix.webhooks * overWithWebhook.deliveries;
      const both = measurements.cases.find(({ name, ratePerS }) => name === BOTH && ratePerS === 500);
      const bytesOf = (pick: (figures: Figures) => number) => (both === undefined ? 0 : pick(both) / 1_000);
      return {
        jobsPerS,
        requestsPerS,
        pods,
        use: {
          gateway: useOf("gateway", jobsPerS, pods.gateway),
          worker: useOf("worker", jobsPerS, pods.worker),
          delivery: useOf("delivery", jobsPerS, pods.delivery),
        },
        inFlight,
        postgres: {
          cores: sumOf(jobsPerS, pods, cpu("postgres")),
          logBytesPerS: sumOf(jobsPerS, pods, logBytes),
          fsyncsPerS: sumOf(jobsPerS, pods, fsyncs),
          connections: podCount * CONNECTIONS_PER_POD,
        },
        nats: { cores: sumOf(jobsPerS, pods, cpu("nats")), bytesPerS: sumOf(jobsPerS, pods, natsBytes) },
        network: {
          inBytesPerS: jobsPerS * (1 - mix.fired) * bytesOf(({ bytesIn }) => middleOf(bytesIn)),
          outBytesPerS: requestsPerS * bytesOf(({ bytesOut }) => middleOf(bytesOut)),
        },
        disk: {
          foreverPerDay: perDay * over.rest,
          levelled: perDay * ((1 + mix.retries) * over.runs * mix.runDays + deliveriesOfJob * deliveryDays),
        },
      };
    },
  };
}
