import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";

const BACKLOG = 2_000;
const LIMIT = 5;
const SLOW_MS = 50;
const PROBES = 21;
/** The bound is far less than the backlog takes, and more than most machines add. */
const LATE_MS_MAX = 500;
/** On a very busy machine the bound is so many times the lateness of the same jobs without the backlog. */
const BUSY_FACTOR = 5;

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery();
});
afterAll(() => cell.stop());

describe("a project at its concurrency limit", () => {
  test("with 2,000 due jobs, announced and found by sweeps, does not delay another project's jobs", async () => {
    const slow = startTarget(async () => {
      await Bun.sleep(SLOW_MS);
      return new Response("ok");
    });
    const prompt = startTarget();
    const other = await cell.addProject();
    const medianLateMs = async () => {
      const lateMs: number[] = [];
      for (let count = 1; count <= PROBES; count++) {
        const arrived = prompt.arrivals.length;
        const addedAt = Date.now();
        await cell.addJobs(other, [{ targetUrl: prompt.url }]);
        await prompt.until((arrivals) => arrivals.length > arrived);
        lateMs.push((prompt.arrivals.at(-1)?.at ?? Number.NaN) - addedAt);
      }
      return lateMs.toSorted((a, b) => a - b)[PROBES >> 1] ?? Number.NaN;
    };
    const beforeMs = await medianLateMs();
    const loaded = await cell.addProject({ concurrency: LIMIT });
    const wishes = Array(BACKLOG / 2).fill({ targetUrl: slow.url });
    await cell.addJobs(loaded, wishes, { tell: false });
    await cell.addJobs(loaded, wishes);
    await slow.until((arrivals) => arrivals.length > 2 * LIMIT);
    const besideMs = await medianLateMs();
    // The backlog was there all the while, and is still being worked off.
    const arrivedCount = slow.arrivals.length;
    expect(arrivedCount).toBeLessThan(BACKLOG / 2);
    await slow.until((arrivals) => arrivals.length > arrivedCount + 2 * LIMIT);
    expect(slow.openMax).toBe(LIMIT);
    await cell.db.run("hold", "UPDATE flows SET held = true WHERE project_no = $1", [loaded.no]);
    await cell.db.run("drop", "DELETE FROM open_jobs WHERE project_no = $1 AND node_id IS NULL", [loaded.no]);
    const aloneMs = Math.max(beforeMs, await medianLateMs());
    expect(besideMs).toBeLessThan(Math.max(LATE_MS_MAX, BUSY_FACTOR * aloneMs));
    await Promise.all([slow.stop(), prompt.stop()]);
  });
});
