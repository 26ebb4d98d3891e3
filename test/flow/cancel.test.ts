import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { UNSENT_RUN_ERROR } from "../../shared/domain/run.ts";
import { cancelJob } from "../../shared/store/resources/jobs-by-hand.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { orRefused } from "../../shared/store/test-support.ts";
import { keyCause } from "../support/cause.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";
import { retried, until, untilEnded, untilJob } from "./support.ts";

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery();
});
afterAll(() => cell.stop());

const cancel = (project: ProjectRow, id: string) =>
  orRefused(cancelJob(cell.db, { projectNo: project.no, environment: "production" }, id, keyCause()));

/** Creates a job and waits until it is delivered and settled. The worker has looked at all earlier due jobs by then. */
async function overtake(project: ProjectRow, targetUrl: string): Promise<void> {
  const [id = ""] = await cell.addJobs(project, [{ targetUrl, runAt: cell.clock.now() + 200 }]);
  await untilEnded(cell, project, id);
}

describe("a cancel", () => {
  test("of a queued job prevents its attempt, although its timer is on the wheel", async () => {
    const target = startTarget();
    const project = await cell.addProject();
    let id = "";
    let aheadMs = 250;
    let canceled: Awaited<ReturnType<typeof cancel>>;
    do {
      // Each round looks further ahead: in the round before the machine was too slow and the job was already being sent.
      aheadMs *= 2;
      [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url, runAt: cell.clock.now() + aheadMs }]);
      canceled = await cancel(project, id);
    } while ((canceled.kind !== "canceled" || canceled.job.attempts > 0) && aheadMs < 10_000);
    expect(canceled).toMatchObject({ kind: "canceled", job: { attempts: 0 } });
    const [after = ""] = await cell.addJobs(project, [
      { targetUrl: target.url, runAt: cell.clock.now() + aheadMs + 200 },
    ]);
    await untilEnded(cell, project, after);
    expect(await cell.job(project, id)).toMatchObject({ status: "canceled", attempts: 0 });
    expect(await cell.runs(project, id)).toEqual([]);
    expect(target.arrivals.filter(({ jobId }) => jobId === id)).toEqual([]);
    expect((await cancel(project, id)).kind).toBe("refused");
    await target.stop();
  });

  test("of a job that waits for its retry clears the announced time and prevents the attempt", async () => {
    const target = startTarget(({ path }) => new Response("", { status: path === "/bad" ? 500 : 200 }));
    const project = await cell.addProject();
    const bad = `http://127.0.0.1:${target.port}/bad`;
    const [id = ""] = await cell.addJobs(project, [
      { targetUrl: bad, baseSeconds: 3_600, capSeconds: 3_600 },
    ]);
    await untilJob(cell, project, id, (job) => job.status === "queued" && job.attempts === 1);
    expect((await cancel(project, id)).kind).toBe("canceled");
    await overtake(project, target.url);
    expect(await cell.job(project, id)).toMatchObject({ status: "canceled", attempts: 1 });
    expect(await cell.runs(project, id)).toMatchObject([{ attempt: 1, status: "failed", nextRetryAt: null }]);
    await target.stop();
  });

  test.each([
    [200, "succeeded"],
    [500, "failed"],
  ] as const)(
    "of a running job lets it end, keeps its true result (%d) and is followed by nothing",
    async (status, result) => {
      const gate = Promise.withResolvers<Response>();
      const target = startTarget(({ path }) => (path === "/slow" ? gate.promise : new Response("ok")));
      const project = await cell.addProject();
      const [id = ""] = await cell.addJobs(project, [{ targetUrl: `http://127.0.0.1:${target.port}/slow` }]);
      await target.until((arrivals) => arrivals.length === 1);
      expect(await cancel(project, id)).toMatchObject({
        kind: "canceled",
        job: { status: "canceled", attempts: 1 },
      });
      expect(await cell.runs(project, id)).toMatchObject([{ status: "running" }]);
      gate.resolve(new Response("end", { status }));
      await until(async () => (await cell.runs(project, id))[0]?.status === result);
      await overtake(project, target.url);
      expect(await cell.job(project, id)).toMatchObject({ status: "canceled", attempts: 1 });
      expect(await cell.runs(project, id)).toMatchObject([{ attempt: 1, status: result, nextRetryAt: null }]);
      expect(target.arrivals.filter(({ jobId }) => jobId === id).length).toBe(1);
      await target.stop();
    },
  );

  test("of a running job leaves its permit in use until the attempt ends", async () => {
    const gate = Promise.withResolvers<Response>();
    const target = startTarget(({ path }) => (path === "/slow" ? gate.promise : new Response("ok")));
    const project = await cell.addProject({ concurrency: 1 });
    const other = await cell.addProject();
    const [slow = ""] = await cell.addJobs(project, [{ targetUrl: `http://127.0.0.1:${target.port}/slow` }]);
    await target.until((arrivals) => arrivals.length === 1);
    await cancel(project, slow);
    const [next = ""] = await cell.addJobs(project, [{ targetUrl: target.url }]);
    await overtake(other, target.url);
    expect(await cell.job(project, next)).toMatchObject({ status: "queued", attempts: 0 });
    gate.resolve(new Response("ok"));
    expect(await untilEnded(cell, project, next)).toMatchObject({ status: "succeeded" });
    expect(target.arrivals.length).toBe(3);
    await target.stop();
  });

  test("of a manual retry that waits for a permit prevents its attempt, and its run says so", async () => {
    const gate = Promise.withResolvers<Response>();
    const target = startTarget(({ path }) =>
      path === "/slow" ? gate.promise : new Response("no", { status: 500 }),
    );
    const project = await cell.addProject({ concurrency: 1 });
    const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url, maxAttempts: 1 }]);
    await untilEnded(cell, project, id);
    const [slow = ""] = await cell.addJobs(project, [{ targetUrl: `http://127.0.0.1:${target.port}/slow` }]);
    await target.until((arrivals) => arrivals.length === 2);
    const [first] = await cell.runs(project, id);
    const run = await retried(cell, project, first?.id ?? "");
    expect(await cancel(project, id)).toMatchObject({ kind: "canceled", job: { attempts: 2 } });
    gate.resolve(new Response("ok"));
    await untilEnded(cell, project, slow);
    const [last = ""] = await cell.addJobs(project, [{ targetUrl: target.url, maxAttempts: 1 }]);
    await untilEnded(cell, project, last);
    expect((await cell.runs(project, id))[1]).toMatchObject({
      id: run.id,
      status: "failed",
      responseStatus: null,
      error: UNSENT_RUN_ERROR,
      nextRetryAt: null,
    });
    expect(target.arrivals.filter(({ jobId }) => jobId === id).length).toBe(1);
    await target.stop();
  });
});
