import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { countMonthRuns } from "../../shared/store/projects.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";
import { repeatedArrivals } from "./support.ts";

setDefaultTimeout(60_000);

const INCLUDED = 10_000;
const LEFT = 25;
const JOBS = 15;
/** Long enough for retries to become due, and for two sweeps to look at what the quota holds back. */
const WITNESS_AFTER_MS = 2_500;

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery();
  await cell.startDelivery();
});
afterAll(() => cell.stop());

test("the 10,001st run of a hobby project does not start over two nodes and environments, first attempt or retry", async () => {
  const hobby = await cell.addProject({ plan: "hobby" });
  const witness = await cell.addProject();
  await cell.db.run("use_up", "UPDATE flows SET month_runs = $2 WHERE project_no = $1", [
    hobby.no,
    INCLUDED - LEFT,
  ]);
  const [failing, calm] = [startTarget(() => new Response("", { status: 500 })), startTarget()];
  const wish = { targetUrl: failing.url, baseSeconds: 1, capSeconds: 1 };
  await Promise.all(
    (["development", "production"] as const).map((environment) =>
      cell.addJobs(
        hobby,
        Array.from({ length: JOBS }, () => ({ ...wish, environment })),
      ),
    ),
  );
  await failing.until((arrivals) => arrivals.length === LEFT);
  const runAt = cell.clock.now() + WITNESS_AFTER_MS;
  await cell.addJobs(witness, [{ targetUrl: calm.url, runAt }]);
  await calm.until((arrivals) => arrivals.length === 1);
  expect(failing.arrivals).toHaveLength(LEFT);
  expect(repeatedArrivals(failing.arrivals)).toEqual([]);
  expect(await countMonthRuns(cell.db, hobby.no)).toBe(INCLUDED);
  const [started] = await cell.db.run(
    "count_runs",
    "SELECT count(*)::int AS runs FROM runs WHERE project_no = $1",
    [hobby.no],
  );
  expect(started).toEqual({ runs: LEFT });
  await Promise.all([failing.stop(), calm.stop()]);
});
