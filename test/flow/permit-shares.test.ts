import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { type Cell, startCell } from "../support/cell.ts";
import { type OverlapArrival, startOverlapTarget } from "../support/overlap-target.ts";
import { until, untilAllEnded } from "./support.ts";

setDefaultTimeout(600_000);

const LIMIT = 10;
const JOBS = 300;
const ARRIVED_MS_MAX = 180_000;
/**
 * Each job's end is delivered to several endpoints, so that deliveries pile up although jobs and deliveries take the
 * same time.
 */
const ENDPOINTS = 2;

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery();
  await cell.startDelivery();
});
afterAll(() => cell.stop());

describe("jobs and webhooks of one project that both wait for permits", () => {
  test.each([40, 300])(
    "have about half of the permits each, at a target that answers after %p ms",
    async (answerAfterMs) => {
      const target = startOverlapTarget(answerAfterMs);
      const project = await cell.addProject({ concurrency: LIMIT });
      for (let count = 0; count < ENDPOINTS; count++) await cell.addEndpoint(project, { url: target.url });
      const jobCount = answerAfterMs > 100 ? JOBS / 2 : JOBS;
      const wish = { targetUrl: target.url };
      const ids = await cell.addJobs(project, Array(jobCount).fill(wish));
      await untilAllEnded(cell, project, ids);
      await until(() => target.arrivals.length === (1 + ENDPOINTS) * jobCount, ARRIVED_MS_MAX);
      // Each request is open for the same time, so a share of the arrivals is a share of the permits.
      const contested: OverlapArrival[] = [];
      let [jobs, webhooks] = [0, 0];
      for (const arrival of target.arrivals) {
        // An arrival counts while both kinds have more to send than there are permits.
        if (jobs < jobCount - 2 * LIMIT && jobs * ENDPOINTS - webhooks > 6 * LIMIT) contested.push(arrival);
        if (arrival.kind === "job") jobs++;
        else webhooks++;
      }
      expect(contested.length).toBeGreaterThan(10 * LIMIT);
      const share = contested.filter(({ kind }) => kind === "job").length / contested.length;
      expect(share).toBeGreaterThan(0.42);
      expect(share).toBeLessThan(0.58);
      expect(target.openMax).toBe(LIMIT);
      await target.stop();
    },
  );
});
