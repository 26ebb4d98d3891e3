import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { type Cell, startCell } from "../support/cell.ts";
import { startOverlapTarget } from "../support/overlap-target.ts";
import { until, untilAllEnded } from "./support.ts";

setDefaultTimeout(120_000);

const LIMIT = 10;
const JOBS = 300;
/** What each job's end is told to, so that deliveries pile up although jobs and deliveries go at one pace. */
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
    "have about half of them each at the target, where an answer takes %p ms",
    async (answerAfterMs) => {
      const target = startOverlapTarget(answerAfterMs);
      const project = await cell.addProject({ concurrency: LIMIT });
      for (let count = 0; count < ENDPOINTS; count++) await cell.addEndpoint(project, { url: target.url });
      const jobCount = answerAfterMs > 100 ? JOBS / 3 : JOBS;
      const wish = { targetUrl: target.url };
      const ids = await cell.addJobs(project, Array(jobCount).fill(wish));
      const shares: number[] = [];
      const used: number[] = [];
      const countOf = (kind: "job" | "webhook") => target.open.filter((each) => each.kind === kind).length;
      const arrivedOf = (kind: "job" | "webhook") =>
        target.arrivals.filter((each) => each.kind === kind).length;
      await until(async () => {
        const [jobs, webhooks] = [arrivedOf("job"), arrivedOf("webhook")];
        // While both have more to send than there are permits.
        if (jobs < jobCount - 2 * LIMIT && jobs * ENDPOINTS - webhooks > 6 * LIMIT) {
          shares.push(countOf("job"));
          used.push(target.open.length);
        }
        return jobs === jobCount;
      }, 60_000);
      const mean = (counts: number[]) => counts.reduce((sum, count) => sum + count, 0) / counts.length;
      expect(shares.length).toBeGreaterThan(10);
      expect(mean(shares) / mean(used)).toBeGreaterThan(0.4);
      expect(mean(shares) / mean(used)).toBeLessThan(0.6);
      await untilAllEnded(cell, project, ids);
      await until(() => arrivedOf("webhook") === ENDPOINTS * jobCount, 60_000);
      expect(target.openMax).toBe(LIMIT);
      await target.stop();
    },
  );
});
