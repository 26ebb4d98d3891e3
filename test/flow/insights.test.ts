import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { createInsights } from "../../services/worker/duties/insights.ts";
import { Sketch } from "../../shared/domain/insights/sketch.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { findInsights } from "../../shared/store/insights/insights.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";
import { findUndisturbed, until, untilEnded } from "./support.ts";

setDefaultTimeout(300_000);

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery();
});
afterAll(() => cell.stop());

const insightsOf = (project: ProjectRow) =>
  findInsights(cell.db, { projectNo: project.no, environment: "production" }, { period: "1h", region: null });
const runsOf = async (project: ProjectRow) => {
  const { totals } = await insightsOf(project);
  return totals.succeeded + totals.failed + totals.timedOut;
};

test("a worker counts what was done, and no run is told to have started later than its target heard of it", async () => {
  const project = await cell.addProject();
  const target = startTarget(({ path }) => new Response("x", { status: path === "/bad" ? 503 : 200 }));
  const dueAt = Date.now() + 500;
  const wishes = Array.from({ length: 100 }, (_, n) => ({
    targetUrl: n % 10 === 0 ? new URL("/bad", target.url).href : target.url,
    runAt: dueAt + n * 10,
    maxAttempts: 1,
  }));
  const ids = await cell.addJobs(project, wishes, { tell: true });
  for (const id of ids) await untilEnded(cell, project, id);
  const { totals, hosts } = await until(async () => (await runsOf(project)) === 100 && insightsOf(project));
  expect(totals).toMatchObject({ succeeded: 90, failed: 10, timedOut: 0 });
  expect(hosts.shown()).toMatchObject([
    { host: "127.0.0.1", runs: 100, failed: 10, commonestError: "status_503" },
  ]);
  await until(async () => (await insightsOf(project)).totals.created === 100);

  const heard = new Sketch();
  for (const [n, id] of ids.entries()) {
    const arrival = target.arrivals.find(({ jobId }) => jobId === id);
    heard.add(Math.max(0, Math.ceil((arrival?.at ?? 0) - (dueAt + n * 10))));
  }
  const [told, seen] = [totals.late.percentiles(), heard.percentiles()];
  expect(totals.late.count).toBe(100);
  // The bound allows for the errors of two clocks and of two roundings.
  for (const name of ["p50", "p90", "p99", "max"] as const)
    expect(told[name] ?? -1).toBeLessThanOrEqual((seen[name] ?? 0) * 1.02 + 50);
  await target.stop();
});

test("a run that waited for its project's limit counts as late by the customer's own choice", async () => {
  const { totals, heldMs } = await findUndisturbed(cell, async (trialNumber) => {
    // A slow machine may start the first run late by itself.
    const heldMs = 1_500 * trialNumber;
    const project = await cell.addProject({ concurrency: 1 });
    const answered = Promise.withResolvers<void>();
    const target = startTarget(async () => {
      await answered.promise;
      return new Response("ok");
    });
    const ids = await cell.addJobs(project, [{ targetUrl: target.url }, { targetUrl: target.url }], {
      tell: true,
    });
    await target.until((arrivals) => arrivals.length === 1);
    await Bun.sleep(heldMs);
    answered.resolve();
    for (const id of ids) await untilEnded(cell, project, id);
    const found = await until(async () => (await runsOf(project)) === 2 && insightsOf(project));
    await target.stop();
    return { ...found, heldMs };
  });
  expect(Object.fromEntries(totals.waitedFor)).toEqual({ concurrency: 1 });
  expect(totals.late.count).toBe(1);
  expect(totals.late.percentiles().max).toBeLessThan(heldMs);
  expect(totals.lateAll().percentiles().max).toBeGreaterThanOrEqual(heldMs - 100);
});

test("the worker on duty shows what it has counted over all projects", async () => {
  const quiet = await startCell();
  try {
    const metrics = createMetrics();
    const tick = createInsights();
    const page = async () => (await metrics.page()).text;
    await tick({ db: quiet.db, metrics });
    expect(await page()).toMatch(/\njobwheel_insights_behind_seconds [0-9.]+\n/);
    expect(await page()).not.toContain("jobwheel_insights_lateness_seconds{");
    // A transaction of another database puts the roll-up off, so runs are added until a tick has counted some.
    await until(async () => {
      await quiet.db.run(
        "run",
        `WITH job AS (
           INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds)
           SELECT gen_random_uuid(), 1, 1, 0, 'https://a.example/', '{}', now(), 1, 1, 1 FROM generate_series(1, 2) RETURNING id)
         INSERT INTO runs (id, job_id, project_no, environment, attempt, status, started_at, duration_ms, late_ms, held_for)
         SELECT id, id, 1, 1, 1, 1, now(), 30, 5 + 3000 * row_number() OVER (), CASE row_number() OVER () WHEN 2 THEN 0 END FROM job`,
        [],
      );
      await tick({ db: quiet.db, metrics });
      return (await page()).includes("jobwheel_insights_lateness_seconds{");
    });
    const text = await page();
    expect(text).toContain('jobwheel_insights_duration_seconds{quantile="0.99"} 0.03\n');
    expect(text).toMatch(/jobwheel_insights_lateness_seconds\{runs="own",quantile="1"\} 3.005\n/);
    expect(text).toMatch(/jobwheel_insights_lateness_seconds\{runs="all",quantile="1"\} 6.005\n/);
    expect(text).toMatch(/jobwheel_insights_waited_total\{reason="concurrency"\} [1-9]/);
    expect(text).toContain('jobwheel_insights_waited_total{reason="hold"} 0\n');
  } finally {
    await quiet.stop();
  }
});
