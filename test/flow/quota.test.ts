import { afterAll, beforeAll, expect, test } from "bun:test";
import { idToUuid } from "../../shared/domain/ids.ts";
import { changeProject, countMonthRuns, type ProjectRow } from "../../shared/store/resources/projects.ts";
import { testCause } from "../support/cause.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";
import { repeatedArrivals, until, untilAllEnded } from "./support.ts";

const INCLUDED = 10_000;
const LEFT = 25;
const JOBS = 15;
/** The wait lets retries become due, and two sweeps look at the jobs that the quota holds. */
const WITNESS_AFTER_MS = 2_500;

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery();
  await cell.startDelivery();
});
afterAll(() => cell.stop());

test("the 10,001st run of a hobby project does not start, as a first attempt or a retry, over two nodes and environments", async () => {
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
  // The last run may not be settled yet.
  const countRuns = "SELECT count(*)::int AS runs FROM runs WHERE project_no = $1";
  const startedCount = async () =>
    (await cell.db.run<{ runs: number }>("count_runs", countRuns, [hobby.no]))[0]?.runs;
  await until(async () => (await startedCount()) === LEFT);
  await Promise.all([failing.stop(), calm.stop()]);
});

const hold = (project: ProjectRow, held: boolean) =>
  cell.db.run("hold", "UPDATE flows SET held = $2 WHERE project_no = $1", [project.no, held]);

test.concurrent.each([
  {
    when: "the plan is upgraded",
    release: ({ id }: ProjectRow) => changeProject(cell.db, id, { plan: "pro" }, testCause()),
    counted: INCLUDED + JOBS,
  },
  {
    when: "the month ends",
    release: ({ no }: ProjectRow) =>
      cell.db.run("end_month", "UPDATE flows SET month = month - 1 WHERE project_no = $1", [no]),
    counted: JOBS,
  },
])("jobs over the quota stay queued, and go out oldest first when $when", async ({ release, counted }) => {
  const hobby = await cell.addProject({ plan: "hobby" });
  const witness = await cell.addProject();
  // Jobs run one at a time, so that their order shows.
  await changeProject(cell.db, hobby.id, { concurrencyOverride: 1 }, testCause());
  const [target, calm] = [startTarget(), startTarget()];
  await hold(hobby, true);
  const lastDueAt = Math.floor(cell.clock.now()) + 1_000;
  const ids = await cell.addJobs(
    hobby,
    Array.from({ length: JOBS }, (_, n) => ({ targetUrl: target.url, runAt: lastDueAt - n })),
  );
  await cell.db.run("use_up", "UPDATE flows SET month_runs = $2 WHERE project_no = $1", [hobby.no, INCLUDED]);
  await hold(hobby, false);
  await cell.addJobs(witness, [{ targetUrl: calm.url, runAt: lastDueAt + WITNESS_AFTER_MS }]);
  await calm.until((arrivals) => arrivals.length === 1);
  expect(target.arrivals).toEqual([]);
  for (const id of ids) expect(await cell.job(hobby, id)).toMatchObject({ status: "queued", attempts: 0 });

  const owed = await cell.db.run<{ id: string; due: number }>(
    "owed",
    "SELECT job_id::text AS id, extract(epoch FROM due_at)::float8 AS due FROM open_jobs WHERE project_no = $1",
    [hobby.no],
  );
  const dueOf = new Map(owed.map(({ id, due }) => [id, due]));
  await release(hobby);
  expect(await untilAllEnded(cell, hobby, ids)).toEqual(Array(JOBS).fill("succeeded"));
  const sent = target.arrivals.map(({ jobId }) => dueOf.get(idToUuid(jobId)) ?? Number.NaN);
  expect(sent).toEqual(sent.toSorted((one, other) => one - other));
  expect(await countMonthRuns(cell.db, hobby.no)).toBe(counted);
  await Promise.all([target.stop(), calm.stop()]);
});
