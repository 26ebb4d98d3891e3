import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { makeGate, repeatedArrivals, until, untilAllEnded, untilEnded } from "../flow/support.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget, type Target } from "../support/target.ts";

let cell: Cell;
const targets: Target[] = [];
beforeEach(async () => {
  cell = await startCell();
  await cell.startWorker();
});
afterEach(async () => {
  await cell.stop();
  for (const target of targets.splice(0)) await target.stop();
});

function openTarget(...args: Parameters<typeof startTarget>): Target {
  const target = startTarget(...args);
  targets.push(target);
  return target;
}

/** The time-out of attempts that wait at a gate until the test opens it. */
const PATIENT = { attemptTimeoutMs: 30_000 };

const times = <T>(count: number, make: (index: number) => T): T[] =>
  Array.from({ length: count }, (_, index) => make(index));
/** Another name of the same machine, so that one listener counts as two hosts. */
const underOtherName = (url: string) => url.replace("127.0.0.1", "localhost");

describe("the limit of requests in flight to one host", () => {
  test("is kept over several projects, and everything is delivered in the end", async () => {
    await cell.startDelivery({ limits: { attemptsMax: 1_000, perHostMax: 4 } });
    const four = makeGate();
    const target: Target = openTarget(async () => {
      if (target.open === 4) four.open();
      await four.passed;
      await Bun.sleep(20);
      return new Response("ok");
    });
    const projects = await Promise.all(times(3, () => cell.addProject()));
    const ids = await Promise.all(
      projects.map((project) =>
        cell.addJobs(
          project,
          times(12, () => ({ targetUrl: target.url })),
        ),
      ),
    );
    for (const [index, project] of projects.entries()) {
      expect(new Set(await untilAllEnded(cell, project, ids[index] ?? []))).toEqual(new Set(["succeeded"]));
    }
    expect(target.openMax).toBe(4);
    expect(target.arrivals.length).toBe(36);
    expect(repeatedArrivals(target.arrivals)).toEqual([]);
  });

  test("when it is reached, delays no other host, takes no permit and starts no attempt", async () => {
    await cell.startDelivery({ ...PATIENT, limits: { attemptsMax: 1_000, perHostMax: 4 } });
    const gate = makeGate();
    const target = openTarget(async ({ path }) => {
      if (path === "/stall") await gate.passed;
      return new Response("ok");
    });
    const stalled = await cell.addProject();
    const url = target.url.replace("/hook", "/stall");
    const stalledIds = await cell.addJobs(
      stalled,
      times(20, () => ({ targetUrl: url, maxAttempts: 1 })),
    );
    await target.until((arrivals) => arrivals.length === 4);
    const other = await cell.addProject();
    const otherIds = await cell.addJobs(
      other,
      times(20, () => ({ targetUrl: underOtherName(target.url) })),
    );
    expect(new Set(await untilAllEnded(cell, other, otherIds))).toEqual(new Set(["succeeded"]));
    expect(target.openMax).toBeLessThanOrEqual(8);
    // Only the attempts on the wire have started.
    const jobs = await Promise.all(stalledIds.map((id) => cell.job(stalled, id)));
    expect(jobs.filter(({ status }) => status === "running").length).toBe(4);
    expect(jobs.filter(({ status, attempts }) => status === "queued" && attempts === 0).length).toBe(16);
    const [flow] = await cell.db.run<{ in_use: number }>(
      "flow_of_project",
      "SELECT production_jobs::int AS in_use FROM flows WHERE project_no = $1",
      [stalled.no],
    );
    expect(flow?.in_use).toBe(4);
    gate.open();
    expect(new Set(await untilAllEnded(cell, stalled, stalledIds))).toEqual(new Set(["succeeded"]));
  });
});

describe("a delivery node that is full of stalling attempts", () => {
  test("still delivers for every other project, and gives a project no more than its share", async () => {
    await cell.startDelivery({ ...PATIENT, limits: { attemptsMax: 50, perHostMax: 2_000 } });
    const gate = makeGate();
    const stalling = openTarget(async () => {
      await gate.passed;
      return new Response("ok");
    });
    const prompt = openTarget();
    const greedy = await Promise.all(times(2, () => cell.addProject()));
    const ids: string[][] = [];
    for (const project of greedy) {
      ids.push(
        await cell.addJobs(
          project,
          times(100, () => ({ targetUrl: stalling.url, maxAttempts: 1 })),
        ),
      );
      const before = stalling.arrivals.length;
      await stalling.until((arrivals) => arrivals.length >= (before === 0 ? 40 : before + 5));
    }
    expect(stalling.open).toBe(45);
    for (let count = 0; count < 5; count++) {
      const project = await cell.addProject();
      const [id = ""] = await cell.addJobs(project, [{ targetUrl: prompt.url }]);
      expect(await untilEnded(cell, project, id)).toMatchObject({ status: "succeeded", attempts: 1 });
    }
    expect(stalling.open).toBe(45);
    gate.open();
    for (const [index, project] of greedy.entries()) {
      expect(new Set(await untilAllEnded(cell, project, ids[index] ?? []))).toEqual(new Set(["succeeded"]));
    }
    expect(stalling.openMax).toBe(45);
    expect(repeatedArrivals(stalling.arrivals)).toEqual([]);
    await until(() => prompt.open === 0);
  });
});
