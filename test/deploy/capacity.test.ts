import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync } from "node:fs";
import { NODE_LIMITS } from "../../services/delivery/concurrency.ts";
import { checkPlan } from "../bench/capacity/check.ts";
import { RATES, REFERENCE } from "../bench/capacity/mix.ts";
import { planFor, SERVICES, type Service, USE_MAX, USE_WITHOUT_ZONE_MAX } from "../bench/capacity/model.ts";
import { PAGE, readMeasurements, renewPage } from "../bench/capacity/page.ts";
import { INSUFFICIENT } from "../bench/capacity/tables.ts";
import { findWorkloads, ofKind, renderCell } from "./manifests.ts";

/** The simulation of all plans computes for some seconds on an idle machine. */
setDefaultTimeout(300_000);

const measurements = readMeasurements();
/** The rate that overlays/production is made for, in jobs a second. */
const PRODUCTION_PER_S = 1_000;

describe("the capacity page", () => {
  test("follows from the measurements beside it, and its plans pass the simulation", () => {
    const page = readFileSync(PAGE, "utf8");
    const renewed = renewPage(page, measurements);
    expect(renewed).not.toContain(INSUFFICIENT);
    expect(page).toBe(renewed);
  });

  test("gives the largest rate the fewest pods that suffice", () => {
    const plan = planFor(measurements, REFERENCE, Math.max(...RATES));
    const [largest = "delivery"] = SERVICES.toSorted((a, b) => plan.cell.pods[b] - plan.cell.pods[a]);
    const { whole, withoutZone } = checkPlan(measurements, REFERENCE, plan, { [largest]: 1 });
    const isEnough = whole.use[largest] <= USE_MAX && withoutZone.use[largest] <= USE_WITHOUT_ZONE_MAX;
    expect(isEnough).toBe(false);
  });
});

describe("the pods of production", () => {
  const resources = renderCell("production");
  const plan = planFor(measurements, REFERENCE, PRODUCTION_PER_S);
  const amountsOf = (service: Service) => {
    const found = findWorkloads(resources).find(({ name }) => name === service)?.container.resources;
    return {
      cpu: coresOf(String(found?.requests?.cpu)),
      memory: bytesOf(String(found?.requests?.memory)),
      memoryMax: bytesOf(String(found?.limits?.memory)),
    };
  };

  test.each(SERVICES)("%s requests the CPU measured at 1,000 jobs/s, and not much more", (service) => {
    const use = plan.cell.use[service];
    expect(amountsOf(service).cpu).toBeGreaterThanOrEqual(use);
    expect(amountsOf(service).cpu).toBeLessThan(3 * use + 0.2);
    const peak = Math.max(...measurements.cases.map(({ peakBytes }) => peakBytes[service]));
    expect(amountsOf(service).memory).toBeGreaterThan(peak);
  });

  test("have memory for the most that each was made to hold, and a delivery node for the most that it may hold", () => {
    const { gateway, delivery } = measurements.fullest;
    const atMost = delivery.peakBytes * (NODE_LIMITS.attemptsMax / delivery.attempts);
    expect(amountsOf("gateway").memoryMax).toBeGreaterThan(1.2 * gateway.peakBytes);
    expect(amountsOf("delivery").memoryMax).toBeGreaterThan(1.2 * atMost);
  });

  test("have a Postgres with the cores that they use then", () => {
    const [cluster] = ofKind<Cluster>(resources, "Cluster");
    expect(coresOf(String(cluster?.spec.resources.requests.cpu))).toBeGreaterThan(plan.cell.postgres.cores);
  });

  test("are joined by another gateway when a thread is as busy as the page plans", () => {
    const [scaler] = ofKind<Autoscaler>(resources, "HorizontalPodAutoscaler");
    const target = scaler?.spec.metrics[0]?.resource.target.averageUtilization ?? 0;
    expect((target / 100) * amountsOf("gateway").cpu).toBeCloseTo(USE_MAX);
  });
});

interface Autoscaler {
  spec: { metrics: { resource: { target: { averageUtilization: number } } }[] };
}

interface Cluster {
  spec: { resources: { requests: { cpu: string } } };
}

function coresOf(text: string): number {
  return text.endsWith("m") ? Number(text.slice(0, -1)) / 1_000 : Number(text);
}

function bytesOf(text: string): number {
  const unit = { Mi: 2 ** 20, Gi: 2 ** 30 }[text.slice(-2)];
  if (unit === undefined) throw new Error(`${text} is in no unit that is known here`);
  return Number(text.slice(0, -2)) * unit;
}
