import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { sendProjectChange } from "../../shared/bus/hints.ts";
import type { BulkAction, BulkFilter } from "../../shared/domain/bulk.ts";
import { BULK_PREFIX, createIdSource, idToUuid, retypeId, SCHEDULE_PREFIX } from "../../shared/domain/ids.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { type BulkRow, createBulk, findBulk } from "../../shared/store/resources/bulk-operations.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { createSchedule } from "../../shared/store/resources/schedules.ts";
import { keyCause } from "../support/cause.ts";
import { type Cell, SHARDS_PER_REGION, startCell } from "../support/cell.ts";
import { startTarget, type Target } from "../support/target.ts";
import { repeatedArrivals, until, untilAllEnded } from "./support.ts";

/** Bulk operations through a whole cell: attempts that a worker makes owed are sent in the ordinary ways. */

const MINUTE_MS = 60_000;
const ids = createIdSource(randomBytes);

let cell: Cell;
let target: Target;
/** True while the target fails every request. */
let isBroken = false;
beforeAll(async () => {
  cell = await startCell();
  target = startTarget(() =>
    isBroken ? new Response("the backend is gone", { status: 503 }) : new Response("ok"),
  );
  await cell.startWorker();
  await cell.startDelivery();
});
afterAll(async () => {
  await cell.stop();
  await target.stop();
});

const scopeOf = ({ no }: ProjectRow) => ({ projectNo: no, environment: "production" as const });

/** Asks for an operation as the gateway does, and waits until it is over. */
async function carryOut(project: ProjectRow, action: BulkAction, filter: BulkFilter): Promise<BulkRow> {
  const cause = keyCause();
  const id = retypeId(cause.requestId, BULK_PREFIX);
  const shard = shardOf(project.no, SHARDS_PER_REGION);
  const bulk = { id, action, filter, perSecond: 1_000, dryRun: false, shard };
  expect(await createBulk(cell.db, scopeOf(project), bulk, cause, null)).toBe("created");
  sendProjectChange(cell.bus, project.no, shard);
  return until(async () => {
    const found = await findBulk(cell.db, scopeOf(project), id);
    return found?.endedAt != null && found;
  });
}

const arrivalsOf = (jobs: readonly string[], attempt: number) =>
  target.arrivals.filter((arrival) => jobs.includes(arrival.jobId) && arrival.attempt === attempt);

test("jobs that a broken target has failed are sent once more when it is well", async () => {
  const project = await cell.addProject();
  const wish = { targetUrl: target.url, maxAttempts: 1 };
  isBroken = true;
  const failed = await cell.addJobs(
    project,
    Array.from({ length: 40 }, () => wish),
  );
  expect(new Set(await untilAllEnded(cell, project, failed))).toEqual(new Set(["failed"]));
  isBroken = false;
  const good = await cell.addJobs(project, [wish]);
  expect(await untilAllEnded(cell, project, good)).toEqual(["succeeded"]);
  const bulk = await carryOut(project, "retry", { error_contains: "backend is gone", response_status: 503 });
  expect(bulk).toMatchObject({ status: "done", matched: 40, done: 40, skipped: 0, failed: 0 });
  expect(new Set(await untilAllEnded(cell, project, failed))).toEqual(new Set(["succeeded"]));
  expect(arrivalsOf(failed, 2).length).toBe(40);
  expect(arrivalsOf(good, 2)).toEqual([]);
  expect(repeatedArrivals(target.arrivals)).toEqual([]);
});

test("jobs of a tag that are canceled are never sent, and the others are", async () => {
  const project = await cell.addProject();
  const runAt = cell.clock.now() + 5_000;
  const wish = { targetUrl: target.url, runAt };
  const canceled = await cell.addJobs(
    project,
    Array.from({ length: 20 }, () => ({ ...wish, tags: ["old"] })),
  );
  const kept = await cell.addJobs(project, [wish, { ...wish, tags: ["new"] }]);
  const bulk = await carryOut(project, "cancel", { tag: "old" });
  expect(bulk.matched).toBe((bulk.done ?? 0) + bulk.skipped);
  const statuses = await untilAllEnded(cell, project, [...canceled, ...kept]);
  expect(statuses.slice(-2)).toEqual(["succeeded", "succeeded"]);
  expect(statuses.filter((status) => status === "canceled").length).toBe(bulk.done);
  // If the machine stood still for 5 s, some attempts had begun before the cancel. Their jobs count them.
  const neverBegun: string[] = [];
  for (const id of canceled) if ((await cell.job(project, id)).attempts === 0) neverBegun.push(id);
  expect(arrivalsOf(neverBegun, 1).map(({ jobId }) => jobId)).toEqual([]);
});

test("a backfilled job carries its instant, is sent at once, and is late by nothing but its sending", async () => {
  const project = await cell.addProject();
  const last = Math.floor(cell.clock.now() / MINUTE_MS) * MINUTE_MS;
  const id = ids.next(SCHEDULE_PREFIX, Date.now());
  const schedule = {
    ...{ id, ...scopeOf(project), name: id, cron: "* * * * *", timezone: "UTC", targetUrl: target.url },
    ...{ payload: '{"n":1.0}', retryPolicy: { maxAttempts: 1, baseSeconds: 1, capSeconds: 1 } },
    ...{ overlap: null, spreadSeconds: null, paused: true, nextRunAt: null, tags: ["a"], flow: null },
    ...{ shard: shardOf(project.no, SHARDS_PER_REGION), activeMax: 10 },
  };
  expect(await createSchedule(cell.db, schedule, keyCause(), null)).toBe("created");
  await cell.db.run("age_timetable", "UPDATE timetables SET since = $2 WHERE schedule_id = $1", [
    idToUuid(id),
    new Date(last - 10 * MINUTE_MS).toISOString(),
  ]);
  const iso = (at: number) => new Date(at).toISOString();
  const filter = { schedule_id: id, from: iso(last - 5 * MINUTE_MS), to: iso(last - 2 * MINUTE_MS) };
  expect(await carryOut(project, "backfill", filter)).toMatchObject({ matched: 3, done: 3 });
  const ofSchedule = () => target.arrivals.filter(({ headers }) => headers["service-schedule-id"] === id);
  await target.until(() => ofSchedule().length === 3);
  expect(
    ofSchedule()
      .map(({ headers }) => headers["service-scheduled-at"])
      .sort(),
  ).toEqual([5, 4, 3].map((minutes) => iso(last - minutes * MINUTE_MS)));
  expect(ofSchedule().map(({ body }) => body)).toEqual(Array(3).fill('{"n":1.0}'));
  const lateness = await until(async () => {
    const rows = await cell.db.run<{ late_ms: number }>(
      "late_of_schedule",
      "SELECT late_ms FROM runs WHERE schedule_id = $1",
      [idToUuid(id)],
    );
    return rows.length === 3 && rows;
  });
  for (const { late_ms: lateMs } of lateness) expect(lateMs).toBeLessThan(MINUTE_MS);
});
