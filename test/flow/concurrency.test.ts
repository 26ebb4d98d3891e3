import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";
import { repeatedArrivals, untilAllEnded, untilEnded } from "./support.ts";

setDefaultTimeout(600_000);

const SLOW_MS = 60;
const PROBES = 7;
/** The bound is many times what a job takes, and far less than a stalled attempt takes. */
const TOOK_MS_MAX = 3_000;
const ATTEMPT_TIMEOUT_MS = 30_000;
const ARRIVED_MS_MAX = 180_000;

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  for (let node = 0; node < 2; node++) await cell.startDelivery({ attemptTimeoutMs: ATTEMPT_TIMEOUT_MS });
});
afterAll(() => cell.stop());

describe("a project's concurrency limit", () => {
  test("is kept over two delivery nodes and both environments, and everything is delivered", async () => {
    const target = startTarget(async () => {
      await Bun.sleep(SLOW_MS);
      return new Response("ok");
    });
    const project = await cell.addProject({ concurrency: 3 });
    const wishes = Array.from({ length: 30 }, () => ({ targetUrl: target.url }));
    const [production] = await Promise.all([
      cell.addJobs(project, wishes),
      cell.addJobs(
        project,
        wishes.slice(0, 10).map((wish) => ({ ...wish, environment: "development" as const })),
      ),
    ]);
    await target.until((arrivals) => arrivals.length === 40, ARRIVED_MS_MAX);
    const statuses = await untilAllEnded(cell, project, production);
    expect(new Set(statuses)).toEqual(new Set(["succeeded"]));
    expect(target.openMax).toBeLessThanOrEqual(3);
    expect(target.openMax).toBe(3);
    expect(repeatedArrivals(target.arrivals)).toEqual([]);
    await target.stop();
  });

  test("is kept over all regions", async () => {
    const target = startTarget(async () => {
      await Bun.sleep(SLOW_MS);
      return new Response("ok");
    });
    const project = await cell.addProject({ concurrency: 2 });
    const regions = ["us-east", "us-west", "eu-central", "ap-southeast"] as const;
    const wishes = Array.from({ length: 5 }, () =>
      regions.map((region) => ({ targetUrl: target.url, region })),
    ).flat();
    const ids = await cell.addJobs(project, wishes);
    expect(new Set(await untilAllEnded(cell, project, ids))).toEqual(new Set(["succeeded"]));
    expect(target.openMax).toBe(2);
    expect(repeatedArrivals(target.arrivals)).toEqual([]);
    await target.stop();
  });

  test("used up by stalling targets does not delay another project", async () => {
    const gate = Promise.withResolvers<void>();
    const stalling = startTarget(async () => {
      await gate.promise;
      return new Response("ok");
    });
    const prompt = startTarget();
    const blocked = await cell.addProject({ concurrency: 3 });
    const ids = await cell.addJobs(
      blocked,
      Array.from({ length: 500 }, () => ({ targetUrl: stalling.url })),
    );
    await stalling.until((arrivals) => arrivals.length === 3);
    const free = await cell.addProject();
    const tookMs: number[] = [];
    for (let count = 0; count < PROBES; count++) {
      const [id = ""] = await cell.addJobs(free, [{ targetUrl: prompt.url }]);
      const addedAt = performance.now();
      expect(await untilEnded(cell, free, id)).toMatchObject({ status: "succeeded" });
      tookMs.push(performance.now() - addedAt);
    }
    // A machine may stand still for a while, so the median counts.
    expect(tookMs.toSorted((a, b) => a - b)[PROBES >> 1]).toBeLessThan(TOOK_MS_MAX);
    expect(stalling.arrivals.length).toBe(3);
    gate.resolve();
    expect(new Set(await untilAllEnded(cell, blocked, ids))).toEqual(new Set(["succeeded"]));
    expect(stalling.openMax).toBe(3);
    expect(repeatedArrivals(stalling.arrivals)).toEqual([]);
    await Promise.all([stalling.stop(), prompt.stop()]);
  });

  test("has no permit in use once everything has ended", async () => {
    const target = startTarget(({ attempt }) => new Response("", { status: attempt === 1 ? 500 : 200 }));
    const project = await cell.addProject({ concurrency: 5 });
    const ids = await cell.addJobs(
      project,
      Array.from({ length: 50 }, () => ({ targetUrl: target.url })),
    );
    await untilAllEnded(cell, project, ids);
    const [flow] = await cell.db.run<Record<string, unknown>>(
      "flow_of_project",
      "SELECT development_jobs, production_jobs, returned::int AS returned, month_runs::int AS runs FROM flows WHERE project_no = $1",
      [project.no],
    );
    expect(flow).toEqual({ development_jobs: 0, production_jobs: 0, returned: 100, runs: 100 });
    await target.stop();
  });
});
