import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { RESCUE_GRACE_MS } from "../../services/worker/duties/rescue.ts";
import { type ManualClock, startManualClock } from "../simulation/manual-clock.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";
import { until, untilEnded } from "./support.ts";

setDefaultTimeout(600_000);

/** The leap is longer than an attempt's time and the grace in which its node may settle the attempt. */
const LEAP_MS = 3_600_000;
/** The number of times that the rescue looks for lost attempts after the leap. */
const LOOKS = 5;
const LOOK_EVERY_MS = 1_000;

let cell: Cell;
let clock: ManualClock;
beforeAll(async () => {
  cell = await startCell({
    async startClock(url) {
      clock = await startManualClock(url, { isReal: true });
      return clock;
    },
  });
});
afterAll(() => cell.stop());

test("an attempt on the wire is not rescued because the database's clock leaps", async () => {
  const release = Promise.withResolvers<void>();
  const target = startTarget(async () => {
    await release.promise;
    return new Response("ok");
  });
  const project = await cell.addProject();
  await cell.startWorker();
  await cell.startDelivery({ attemptTimeoutMs: LEAP_MS });
  const startedAt = performance.now();
  // The rescue considers no attempt overdue in its first RESCUE_GRACE_MS.
  await until(() => performance.now() > startedAt + RESCUE_GRACE_MS + LOOK_EVERY_MS, 2 * RESCUE_GRACE_MS);
  const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url, runAt: clock.now() }]);
  await target.until((arrivals) => arrivals.length === 1);
  await clock.leapTo(clock.now() + LEAP_MS);
  const leaptAt = performance.now();
  await until(() => performance.now() > leaptAt + LOOKS * LOOK_EVERY_MS);
  expect(await cell.runs(project, id)).toMatchObject([{ attempt: 1, status: "running" }]);
  release.resolve();
  await untilEnded(cell, project, id);
  expect(await cell.runs(project, id)).toMatchObject([{ attempt: 1, status: "succeeded" }]);
  expect(target.arrivals).toHaveLength(1);
  await target.stop();
});
