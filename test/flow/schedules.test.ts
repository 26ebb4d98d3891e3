import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createIdSource, REQUEST_PREFIX, SCHEDULE_PREFIX } from "../../shared/domain/ids.ts";
import { HOME_REGION } from "../../shared/domain/plan.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { listFirings } from "../../shared/store/firings.ts";
import type { ProjectRow } from "../../shared/store/projects.ts";
import {
  changeSchedule,
  createSchedule,
  deleteSchedule,
  findSchedule,
} from "../../shared/store/schedules.ts";
import { type Cell, SHARDS_PER_REGION, startCell } from "../support/cell.ts";
import { startTarget, type Target } from "../support/target.ts";
import { until } from "./support.ts";

setDefaultTimeout(60_000);

const SECOND_MS = 1_000;
const MINUTE_MS = 60_000;
/** Without being told. */
const LOOK_EVERY_MS = 1_000;
const ids = createIdSource(randomBytes);
const cause = () => ({ requestId: ids.next(REQUEST_PREFIX, Date.now()), keyNo: 1 });
const scopeOf = (project: ProjectRow) => ({ projectNo: project.no, environment: "production" as const });

let cell: Cell;
let target: Target;
beforeAll(async () => {
  cell = await startCell();
  target = startTarget();
  await cell.startDelivery();
});
afterAll(async () => {
  await cell.stop();
  await target.stop();
});

/** The next whole second that is at least so far away. */
const secondIn = (ms: number) => Math.ceil((cell.clock.now() + ms) / SECOND_MS) * SECOND_MS;

/** As the gateway does, but with any instant to be the next one. */
async function schedule(
  project: ProjectRow,
  nextRunAt: number,
  wish: { tell?: boolean } = {},
): Promise<string> {
  const id = ids.next(SCHEDULE_PREFIX, Date.now());
  const shard = shardOf(project.no, SHARDS_PER_REGION);
  const created = await createSchedule(
    cell.db,
    {
      id,
      ...scopeOf(project),
      name: id,
      cron: "*/5 * * * *",
      timezone: "UTC",
      targetUrl: target.url,
      payload: `{"schedule":"${id}"}`,
      retryPolicy: { maxAttempts: 1, baseSeconds: 1, capSeconds: 1 },
      nextRunAt,
      shard,
      activeMax: 1_000,
    },
    cause(),
    null,
  );
  expect(created).toBe("created");
  if (wish.tell) cell.bus.sendCommand({ region: HOME_REGION, shard, projectNo: project.no, owed: [] });
  return id;
}

const arrivalsOf = (id: string) =>
  target.arrivals.filter(({ headers }) => headers["service-schedule-id"] === id);
const nextRunOf = async (project: ProjectRow, id: string) =>
  (await findSchedule(cell.db, scopeOf(project), id))?.nextRunAt ?? null;

test("a schedule fires at its instant, never before, and its job says whose it is", async () => {
  const worker = await cell.startWorker();
  const project = await cell.addProject();
  const instants = [secondIn(1_500), secondIn(2_500)];
  const made = await Promise.all(instants.map((instant) => schedule(project, instant)));
  for (const [index, id] of made.entries()) {
    await target.until(() => arrivalsOf(id).length === 1);
    const [arrival] = arrivalsOf(id);
    const instant = instants[index] ?? 0;
    expect(arrival?.headers["service-scheduled-at"]).toBe(new Date(instant).toISOString());
    expect(arrival?.body).toBe(`{"schedule":"${id}"}`);
    expect(arrival?.at).toBeGreaterThanOrEqual(instant);
    const next = (await nextRunOf(project, id)) ?? 0;
    expect(next % (5 * MINUTE_MS)).toBe(0);
    expect(next).toBeGreaterThan(instant);
  }
  await worker.stop();
});

test("an owner that is told of a change looks at once, and not when its next look is due", async () => {
  let lookCount = 0;
  const run = cell.db.run;
  cell.db.run = (name, text, values) => {
    if (name === "list_due_schedules") lookCount++;
    return run(name, text, values);
  };
  const worker = await cell.startWorker();
  const project = await cell.addProject();
  const command = {
    region: HOME_REGION,
    shard: shardOf(project.no, SHARDS_PER_REGION),
    projectNo: project.no,
    owed: [],
  };
  await until(() => lookCount > 0);
  const startedAt = performance.now();
  for (let told = 0; told < 20; told++) {
    const before = lookCount;
    cell.bus.sendCommand(command);
    await until(() => lookCount > before);
  }
  expect(performance.now() - startedAt).toBeLessThan(10 * LOOK_EVERY_MS);
  cell.db.run = run;
  await worker.stop();
});

test("a paused, changed or deleted one does not fire, although its owner had it on the wheel", async () => {
  const worker = await cell.startWorker();
  const project = await cell.addProject();
  const instant = secondIn(2_000);
  const ids = await Promise.all(Array.from({ length: 4 }, () => schedule(project, instant, { tell: true })));
  const [paused = "", moved = "", deleted = "", kept = ""] = ids;
  const row = await findSchedule(cell.db, scopeOf(project), paused);
  if (row === null) throw new Error("the schedule is not there");
  const change = { ...row, activeMax: 1_000 };
  await changeSchedule(
    cell.db,
    scopeOf(project),
    paused,
    { ...change, paused: true, nextRunAt: null },
    cause(),
  );
  await changeSchedule(
    cell.db,
    scopeOf(project),
    moved,
    { ...change, nextRunAt: instant + MINUTE_MS },
    cause(),
  );
  await deleteSchedule(cell.db, scopeOf(project), deleted, cause());
  await target.until(() => arrivalsOf(kept).length === 1);
  const after = await schedule(project, secondIn(1_000), { tell: true });
  await target.until(() => arrivalsOf(after).length === 1);
  for (const id of [paused, moved, deleted]) expect(arrivalsOf(id)).toEqual([]);
  expect(await nextRunOf(project, moved)).toBe(instant + MINUTE_MS);
  await worker.stop();
});

test("after an outage the owner fires the latest missed instant alone, and only if it is at most 10 minutes late", async () => {
  const project = await cell.addProject();
  const now = Math.floor(cell.clock.now() / (5 * MINUTE_MS)) * 5 * MINUTE_MS;
  const late = await schedule(project, now - 60 * MINUTE_MS);
  const daily = await schedule(project, now - 60 * MINUTE_MS);
  await cell.db.run("make_daily", "UPDATE schedules SET cron = $1 WHERE name = $2", [
    // Once a day, an hour ago.
    `${new Date(now - 60 * MINUTE_MS).getUTCMinutes()} ${new Date(now - 60 * MINUTE_MS).getUTCHours()} * * *`,
    daily,
  ]);
  const worker = await cell.startWorker();
  await target.until(() => arrivalsOf(late).length === 1);
  await until(async () => ((await nextRunOf(project, daily)) ?? 0) > cell.clock.now());
  const fired = await listFirings(cell.db, late, { fromAt: 0, toAt: now + MINUTE_MS });
  expect(fired.map(({ firedFor }) => firedFor)).toHaveLength(1);
  expect(fired[0]?.firedFor).toBeGreaterThanOrEqual(now);
  expect(arrivalsOf(daily)).toEqual([]);
  expect(await listFirings(cell.db, daily, { fromAt: 0, toAt: now + MINUTE_MS })).toEqual([]);
  await worker.stop();
});

test("thousands of one instant all fire, each once, with two workers that take shards from each other", async () => {
  const [one] = await Promise.all([cell.startWorker(), cell.startWorker()]);
  const projects = await Promise.all(
    Array.from({ length: 4 }, () => cell.addProject({ concurrency: 1_000 })),
  );
  const instant = secondIn(4_000);
  const made: string[] = [];
  for (const project of projects) {
    for (let index = 0; index < 500; index++) made.push(await schedule(project, instant));
  }
  await until(() => cell.clock.now() > instant - 200);
  const stopping = one?.stop();
  await target.until((arrivals) => arrivals.filter(({ at }) => at >= instant).length >= made.length);
  await stopping;
  const counts = new Map<string, number>();
  for (const { headers } of target.arrivals) {
    const id = headers["service-schedule-id"] ?? "";
    counts.set(id, (counts.get(id) ?? 0) + 1);
  }
  expect(made.filter((id) => counts.get(id) !== 1)).toEqual([]);
});
