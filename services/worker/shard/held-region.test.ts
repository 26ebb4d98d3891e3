import { test } from "bun:test";
import { createInProcessBus } from "../../../shared/bus/in-process.ts";
import { createLog } from "../../../shared/platform/log.ts";
import { setRegionsHeld } from "../../../shared/store/cell/holds.ts";
import { until } from "../../../test/flow/support.ts";
import { testCause } from "../../../test/support/cause.ts";
import { startCell } from "../../../test/support/cell.ts";
import { startTarget } from "../../../test/support/target.ts";

const JOBS = 40;
/** Longer than a lane waits after a claim that was refused for a hold, and for the sweep that makes it ask again. */
const WATCHED_MS = 5_000;

test("what a held region owes is not asked for again and again, and all of it is sent once it is resumed", async () => {
  const bus = createInProcessBus(createLog({ name: "test", level: "error" }));
  let sentCount = 0;
  const cell = await startCell({
    bus: {
      ...bus,
      sendDue(nodeId, due) {
        if (due.region === "eu-central") sentCount += due.items.length;
        bus.sendDue(nodeId, due);
      },
    },
  });
  const target = startTarget();
  try {
    await setRegionsHeld(cell.db, ["eu-central"], true, testCause());
    await cell.startWorker();
    await cell.startDelivery();
    const project = await cell.addProject();
    const wish = { targetUrl: target.url, region: "eu-central" } as const;
    await cell.addJobs(
      project,
      Array.from({ length: JOBS }, () => wish),
    );
    // Until the next sweep, attempts of a lane that the worker did not know are sent, and the claim refuses them.
    await cell.addJobs(project, [{ targetUrl: target.url }]);
    await target.until((arrivals) => arrivals.length === 1);
    let last = { sentCount, at: performance.now() };
    await until(() => {
      if (sentCount !== last.sentCount) last = { sentCount, at: performance.now() };
      return performance.now() > last.at + WATCHED_MS;
    });
    await setRegionsHeld(cell.db, ["eu-central"], false, testCause());
    await target.until((arrivals) => arrivals.length === JOBS + 1);
  } finally {
    await cell.stop();
    await target.stop();
  }
});
