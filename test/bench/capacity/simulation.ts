import { QUANTILES } from "../harness/quantiles.ts";
import { FIRED_AT_FULL_MINUTE, type Mix } from "./mix.ts";
import type { Model, Pods, Service } from "./model.ts";
import { createRandom, drawExponential, drawFrom } from "./random.ts";
import { Station } from "./station.ts";

/**
 * Simulates a minute of one cell, job by job. Random arrivals sometimes coincide, and schedules fire at the full
 * minute. A pod does one thing after the other in the order of arrival; Postgres does as many at once as it has cores.
 * It is a network of queues without loops, so each station is passed once, in time order.
 *
 * It is worse than reality in three ways: durations that vary little are exponential here, all projects wait in one
 * line, and each job of a crowd costs what it costs alone. It is better than reality in one way: its only pauses for
 * garbage, checkpoints and locks are those within the measured lateness without load.
 */
export interface Conditions {
  seed: number;
  jobsPerS: number;
  mix: Mix;
  model: Model;
  /** The pods that exist. */
  pods: Pods;
  postgresCores: number;
  /** The part of the shards whose owners die at the full minute; these shards stand still until the leases end. */
  orphaned: number;
  /** The lateness without load, at QUANTILES. */
  latenessMs: readonly number[];
}

export interface Minute {
  jobs: number;
  /** The lateness of first attempts, in milliseconds after they were due. */
  p50: number;
  p99: number;
  worst: number;
  /** The part of the time that each service's threads and the cores of Postgres are busy. */
  use: Record<Service | "postgres", number>;
}

const MINUTE_MS = 60_000;
const FULL_MINUTE_AT_MS = 20_000;
/** LEASE_TTL_MS plus the 3 s within which a shard's due work starts after its lease has ended. */
const ORPHANED_MS = 13_000;

export function simulateMinute(conditions: Conditions): Minute {
  const { jobsPerS, mix, model, pods, orphaned, latenessMs } = conditions;
  const random = createRandom(conditions.seed);
  const createdPerS = jobsPerS * (1 - mix.fired);
  const requestsPerS = jobsPerS * (1 + mix.retries + mix.webhooks);
  const pod = (service: Service, perS: number) => {
    const meanMs = (model.useOf(service, jobsPerS, pods[service]) * pods[service] * 1_000) / perS;
    return new Station(random, { servers: pods[service], meanMs, isShared: false });
  };
  const cores = model.postgresCores(jobsPerS, pods);
  // Each of the two groups of statements meets a server that is busy with both groups.
  const postgres = (perS: number) =>
    new Station(random, {
      servers: conditions.postgresCores,
      meanMs: (cores * 1_000) / perS,
      isShared: true,
    });

  const gateway = pod("gateway", createdPerS);
  const created = drawArrivals(random, createdPerS);
  gateway.pass(created);
  const fired = drawFirings(random, jobsPerS * mix.fired);
  const dueAt = join(created, fired);
  const jobsAt = dueAt.slice();
  postgres(jobsPerS).pass(jobsAt);
  // A created job is due at its commit, and a fired one at its instant.
  dueAt.set(jobsAt.subarray(0, created.length));

  const told = jobsAt.filter(() => random() < mix.webhooks).map((at) => at + mix.attemptMs);
  const requests = join(jobsAt, told, drawArrivals(random, jobsPerS * mix.retries));
  const heirsAt = FULL_MINUTE_AT_MS + ORPHANED_MS;
  for (let place = 0; place < requests.length; place++) {
    const at = requests[place] ?? 0;
    if (at >= FULL_MINUTE_AT_MS && at < heirsAt && random() < orphaned) requests[place] = heirsAt;
  }
  const [worker, delivery, settling] = [
    pod("worker", requestsPerS),
    pod("delivery", requestsPerS),
    postgres(requestsPerS),
  ];
  for (const station of [worker, delivery, settling]) station.pass(requests);

  const late = dueAt
    .map((at, place) => (requests[place] ?? 0) - at + drawFrom(random, QUANTILES, latenessMs))
    .sort();
  const quantile = (part: number) => late[Math.min(late.length - 1, Math.floor(part * late.length))] ?? 0;
  return {
    jobs: late.length,
    p50: quantile(0.5),
    p99: quantile(0.99),
    worst: quantile(1),
    use: {
      gateway: gateway.use(MINUTE_MS),
      worker: worker.use(MINUTE_MS),
      delivery: delivery.use(MINUTE_MS),
      postgres: settling.use(MINUTE_MS),
    },
  };
}

/** Random arrivals at this rate a second (Poisson). */
function drawArrivals(random: () => number, perS: number): Float64Array {
  const arrivals: number[] = [];
  if (perS > 0)
    for (
      let at = drawExponential(random, 1_000 / perS);
      at < MINUTE_MS;
      at += drawExponential(random, 1_000 / perS)
    )
      arrivals.push(at);
  return Float64Array.from(arrivals);
}

/** Some firings at the full minute, the others at random. */
function drawFirings(random: () => number, perS: number): Float64Array {
  const atFullMinute = Math.round(((perS * MINUTE_MS) / 1_000) * FIRED_AT_FULL_MINUTE);
  const others = drawArrivals(random, perS * (1 - FIRED_AT_FULL_MINUTE));
  return join(others, new Float64Array(atFullMinute).fill(FULL_MINUTE_AT_MS));
}

function join(...parts: Float64Array[]): Float64Array {
  const all = new Float64Array(parts.reduce((sum, { length }) => sum + length, 0));
  let place = 0;
  for (const part of parts) {
    all.set(part, place);
    place += part.length;
  }
  return all;
}
