import type { Measurements } from "../cost/measurements.ts";
import type { Mix } from "./mix.ts";
import {
  createModel,
  type Plan,
  type Pods,
  SERVICES,
  type Service,
  USE_MAX,
  USE_WITHOUT_ZONE_MAX,
  ZONES,
} from "./model.ts";
import { type Minute, simulateMinute } from "./simulation.ts";

/** Simulates a minute of a plan's cell, whole and without a third of the cell, and tells whether the plan suffices. */

/** The bounds of a cell of that size: lateness of first attempts in milliseconds after they were due. */
export const LATENESS_MS_MAX = {
  /** p99 of a minute with all firings of its full minute. */
  whole: 1_000,
  /** The same without the pods of the fullest zone. */
  withoutZone: 3_000,
  /** The worst lateness of the minute in which these pods die with their leases. */
  zoneDies: 30_000,
};
/** The use of a minute exceeds its average by more than this three times in a thousand, by chance alone. */
const byChance = (jobs: number) => 1 + 3 * Math.sqrt(2 / jobs);
const SEED = 20_261_122;

export interface Checked {
  whole: Minute;
  withoutZone: Minute;
  zoneDies: Minute;
  complaints: string[];
}

export function postgresCoresOf({ cell }: Plan): number {
  return Math.max(2, Math.ceil(cell.postgres.cores / USE_MAX));
}

/** `fewer` leaves out some of the plan's pods. */
export function checkPlan(
  measurements: Measurements,
  mix: Mix,
  plan: Plan,
  fewer: Partial<Pods> = {},
): Checked {
  const model = createModel(measurements, mix);
  const pods = mapServices((service) => plan.cell.pods[service] - (fewer[service] ?? 0));
  const left = mapServices((service) => pods[service] - Math.ceil(pods[service] / ZONES));
  const unloaded = measurements.cases.find(({ name, ratePerS }) => name === "deliver" && ratePerS === 50);
  const conditions = {
    seed: SEED,
    jobsPerS: plan.cell.jobsPerS,
    mix,
    model,
    pods,
    postgresCores: postgresCoresOf(plan),
    orphaned: 0,
    latenessMs: unloaded?.latenessMs ?? [],
  };
  const whole = simulateMinute(conditions);
  const withoutZone = simulateMinute({ ...conditions, pods: left });
  const zoneDies = simulateMinute({ ...conditions, pods: left, orphaned: 1 - left.worker / pods.worker });
  const complaints = [
    ...judge("with all pods", whole, USE_MAX, whole.p99, LATENESS_MS_MAX.whole),
    ...judge(
      "without a zone",
      withoutZone,
      USE_WITHOUT_ZONE_MAX,
      withoutZone.p99,
      LATENESS_MS_MAX.withoutZone,
    ),
    ...judge("when a zone dies", zoneDies, USE_WITHOUT_ZONE_MAX, zoneDies.worst, LATENESS_MS_MAX.zoneDies),
  ];
  return { whole, withoutZone, zoneDies, complaints };
}

function judge(when: string, { use, jobs }: Minute, useMax: number, late: number, lateMax: number): string[] {
  const busy = SERVICES.filter((service) => use[service] > useMax * byChance(jobs)).map(
    (service) => `${when}: ${service} is busy ${percent(use[service])} of the time`,
  );
  return late > lateMax ? [...busy, `${when}: ${Math.round(late)} ms late`] : busy;
}

const percent = (part: number) => `${Math.round(part * 100)} %`;

const mapServices = (figureOf: (service: Service) => number): Pods => ({
  gateway: figureOf("gateway"),
  worker: figureOf("worker"),
  delivery: figureOf("delivery"),
});
