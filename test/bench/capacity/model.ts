import { NODE_LIMITS } from "../../../services/delivery/concurrency.ts";
import type { Figures, Measurements } from "../cost/measurements.ts";
import type { Part } from "../cost/readings.ts";
import type { Mix } from "./mix.ts";
import { extraOf, idleUsage, middleOf, type Pick, type Usage, usageOf } from "./usage.ts";

/** From what was measured, what a rate of jobs needs. Everything above the rates that were run is arithmetic. */

/** Of its one thread, in which a process is to work; the rest is for bursts, for collecting garbage and for growth. */
export const USE_MAX = 0.6;
/** With all the pods of the fullest zone gone. */
export const USE_WITHOUT_ZONE_MAX = 0.9;
export const ZONES = 3;
/** One in each zone. */
const PODS_MIN = ZONES;
const CONNECTIONS_PER_POD = 12;

/** What one primary is planned for at most. None of these was reached here: they are what such a plan must assume. */
export const PRIMARY = {
  cores: 16,
  /** Each standby replays the log with one process. */
  logBytesPerS: 64_000_000,
};

export const SERVICES = ["gateway", "worker", "delivery"] as const;
export type Service = (typeof SERVICES)[number];
export type Pods = Record<Service, number>;

/** What a cell needs for its part of the jobs. */
export interface CellPlan {
  jobsPerS: number;
  /** Attempts and webhook deliveries. */
  requestsPerS: number;
  pods: Pods;
  /** Of each pod's thread. */
  use: Record<Service, number>;
  inFlight: number;
  postgres: { cores: number; logBytesPerS: number; fsyncsPerS: number; connections: number };
  nats: { cores: number; bytesPerS: number };
  network: { inBytesPerS: number; outBytesPerS: number };
  /** Bytes a day that stay for ever, and what the others come to in the end. */
  disk: { foreverPerDay: number; levelled: number };
}

export interface Plan {
  jobsPerS: number;
  cells: number;
  cell: CellPlan;
  /** What of one primary is nearest to its bound, and how near. */
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

/** With as few cells, and as few pods in each, as keep to the bounds. */
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

/** Jobs a second that went through one of each, from their creation to their delivery. */
export const ratePerSSeen = ({ cases }: Measurements): number => reachedPerS(cases, BOTH);
/** Attempts a second of one project, through its one flow row, by one delivery node. */
export const projectPerSSeen = ({ cases }: Measurements): number => reachedPerS(cases, DELIVER);

const reachedPerS = (cases: readonly Figures[], name: string) =>
  Math.max(...cases.filter((each) => each.name === name).map((each) => middleOf(each.reachedPerS)));

export interface Model {
  plan(jobsPerS: number): CellPlan;
  /** Of the thread of one pod of so many. */
  useOf(service: Service, jobsPerS: number, pods: number): number;
  postgresCores(jobsPerS: number, pods: Pods): number;
}

export function createModel(measurements: Measurements, mix: Mix): Model {
  const usage = (name: string, pick: Pick) => usageOf(measurements, name, pick);
  const extra = (name: string, than: string, pick: Pick) => extraOf(measurements, name, than, pick);
  const requestsPerJob = 1 + mix.retries + mix.webhooks;
  const batchedOfCreated = mix.batched / (1 - mix.fired);
  /** Of the jobs that come through gateways: some one by one, some in batches. */
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

  /** What they cause elsewhere together: each pod fills statements and messages of its own, the more it has to do. */
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
