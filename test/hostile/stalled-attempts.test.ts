import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { repeatedArrivals, until, untilAllEnded } from "../flow/support.ts";
import { startRawServer } from "../runtime-contract/raw-server.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";
import { startBlackhole } from "../support/target-hostile.ts";

const STALLED_EACH = 100;
/** In the first round. Each later round has half as many, since a slow machine does not deliver so many before ATTEMPT_TIMEOUT_MS. */
const GOOD_JOBS = 200;
/** The time-out is longer than the neighbours can take, and short enough to see the stalled attempts end. */
const ATTEMPT_TIMEOUT_MS = 15_000;
/**
 * A slow machine may take longer than the 10 s after which a connection that is not made fails. Such a round is no proof
 * of harm: harmful attempts hold up the neighbours in every round.
 */
const ROUNDS_MAX = 6;
const ROUND_MS_MAX = 400_000;
const ARRIVED_MS_MAX = 180_000;

setDefaultTimeout(ROUNDS_MAX * ROUND_MS_MAX);

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery({ attemptTimeoutMs: ATTEMPT_TIMEOUT_MS });
});
afterAll(() => cell.stop());

describe("300 attempts that stall in three ways", () => {
  test("hold up no attempt at other targets, and are ended and released at their deadline", async () => {
    let isInTime = false;
    for (let round = 0; round < ROUNDS_MAX && !isInTime; round++)
      isInTime = await playRound(Math.ceil(GOOD_JOBS / 2 ** round));
    expect(isInTime).toBe(true);
  });

  /** Whether all neighbours succeeded before any stalled attempt had ended. */
  async function playRound(goodCount: number): Promise<boolean> {
    const silent = await startRawServer(() => {});
    const blackhole = await startBlackhole();
    const good = startTarget();
    const urls = [silent.url, silent.url.replace("http:", "https:"), blackhole.url];
    const stalled = await cell.addProject();
    const stalledIds = await cell.addJobs(
      stalled,
      Array.from({ length: STALLED_EACH * urls.length }, (_, index) => ({
        targetUrl: urls[index % urls.length] ?? "",
        maxAttempts: 1,
      })),
    );
    const areInFlight = async () => (await countRunning(stalled.no)) === stalledIds.length;
    const allBegan = await until(async () => silent.openCount === 2 * STALLED_EACH && areInFlight()).catch(
      () => false,
    );

    const neighbour = await cell.addProject();
    const goodIds = await cell.addJobs(
      neighbour,
      Array.from({ length: goodCount }, () => ({ targetUrl: good.url, maxAttempts: 1 })),
    );
    await good.until((arrivals) => arrivals.length === goodCount, ARRIVED_MS_MAX);
    const isInTime = allBegan && (await areInFlight());
    expect(new Set(await untilAllEnded(cell, neighbour, goodIds))).toEqual(new Set(["succeeded"]));
    expect(repeatedArrivals(good.arrivals)).toEqual([]);

    expect(new Set(await untilAllEnded(cell, stalled, stalledIds))).toEqual(new Set(["failed"]));
    await until(() => silent.openCount === 0);
    expect(await countPermits(stalled.no)).toEqual({ in_use: 0, returned: stalledIds.length });
    await Promise.all([silent.stop(), blackhole.stop(), good.stop()]);
    return isInTime;
  }
});

async function countRunning(projectNo: number): Promise<number> {
  const [row] = await cell.db.run<{ count: number }>(
    "running_of_project",
    "SELECT count(*)::int AS count FROM open_jobs WHERE project_no = $1 AND node_id IS NOT NULL",
    [projectNo],
  );
  return row?.count ?? 0;
}

async function countPermits(projectNo: number): Promise<{ in_use: number; returned: number } | undefined> {
  const [row] = await cell.db.run<{ in_use: number; returned: number }>(
    "permits_of_project",
    "SELECT development_jobs + production_jobs AS in_use, returned::int AS returned FROM flows WHERE project_no = $1",
    [projectNo],
  );
  return row;
}
