import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createIdSource, REQUEST_PREFIX, SCHEDULE_PREFIX } from "../../shared/domain/ids.ts";
import { HOME_REGION } from "../../shared/domain/plan.ts";
import { type DecidedChange, type Overlap, spreadMsOf } from "../../shared/domain/schedule.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { listFirings } from "../../shared/store/queue/firing-ledger.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import {
  changeSchedule,
  createSchedule,
  deleteSchedule,
  findSchedule,
} from "../../shared/store/resources/schedules.ts";
import { type Cell, SHARDS_PER_REGION, startCell } from "../support/cell.ts";
import { type Arrival, startTarget, type Target } from "../support/target.ts";
import { until } from "./support.ts";

const SECOND_MS = 1_000;
const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
/** The interval at which an owner looks for unannounced changes. */
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

/** The next whole second that is at least this far away. */
const secondIn = (ms: number) => Math.ceil((cell.clock.now() + ms) / SECOND_MS) * SECOND_MS;

/** A timetable of one instant a day, with a next instant that is beyond the test. */
function farAway(): { cron: string; nextAt: number } {
  const nextAt = Math.ceil(cell.clock.now() / HOUR_MS) * HOUR_MS + 12 * HOUR_MS;
  return { cron: `0 ${new Date(nextAt).getUTCHours()} * * *`, nextAt };
}

/** Writes a schedule as the gateway does, with any instant as its next one. */
async function schedule(
  project: ProjectRow,
  nextRunAt: number,
  wish: { tell?: boolean; cron?: string; overlap?: Overlap; spreadSeconds?: number } = {},
): Promise<string> {
  const id = ids.next(SCHEDULE_PREFIX, Date.now());
  const shard = shardOf(project.no, SHARDS_PER_REGION);
  const created = await createSchedule(
    cell.db,
    {
      id,
      ...scopeOf(project),
      name: id,
      cron: wish.cron ?? farAway().cron,
      timezone: "UTC",
      targetUrl: target.url,
      payload: `{"schedule":"${id}"}`,
      retryPolicy: { maxAttempts: 1, baseSeconds: 1, capSeconds: 1 },
      overlap: wish.overlap ?? null,
      spreadSeconds: wish.spreadSeconds ?? null,
      paused: false,
      tags: null,
      flow: null,
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

test("a schedule fires at its instant, never before, and its job names the schedule", async () => {
  const worker = await cell.startWorker();
  const project = await cell.addProject();
  const { cron, nextAt } = farAway();
  const instants = [secondIn(1_500), secondIn(2_500)];
  const made = await Promise.all(instants.map((instant) => schedule(project, instant, { cron })));
  for (const [index, id] of made.entries()) {
    await target.until(() => arrivalsOf(id).length === 1);
    const [arrival] = arrivalsOf(id);
    const instant = instants[index] ?? 0;
    expect(arrival?.headers["service-scheduled-at"]).toBe(new Date(instant).toISOString());
    expect(arrival?.body).toBe(`{"schedule":"${id}"}`);
    expect(arrival?.at).toBeGreaterThanOrEqual(instant);
    expect(await nextRunOf(project, id)).toBe(nextAt);
  }
  await worker.stop();
});

test("a schedule with a spread sends its job that much after its instant, and the job says so", async () => {
  const worker = await cell.startWorker();
  const project = await cell.addProject();
  const instant = secondIn(1_500);
  const { cron, nextAt } = farAway();
  const id = await schedule(project, instant, { cron, spreadSeconds: 3 });
  const dueAt = instant + (spreadMsOf(id, 3) ?? 0);
  await target.until(() => arrivalsOf(id).length === 1);
  const [arrival] = arrivalsOf(id);
  expect(arrival?.headers["service-scheduled-at"]).toBe(new Date(dueAt).toISOString());
  expect(arrival?.at).toBeGreaterThanOrEqual(dueAt);
  expect(await nextRunOf(project, id)).toBe(nextAt);
  const [fired] = await listFirings(cell.db, id, { fromAt: 0, toAt: nextAt });
  expect(fired).toMatchObject({ firedFor: instant, dueAt });
  await worker.stop();
});

test("firings that overlap skip or replace what is not over, by the worker that owns their shard", async () => {
  const worker = await cell.startWorker();
  // The limit of 0 keeps every job of this project from starting.
  const project = await cell.addProject({ concurrency: 0 });
  const made = await Promise.all(
    (["skip", "replace"] as const).map((overlap) =>
      schedule(project, secondIn(1_000), { cron: "*/2 * * * * *", overlap, tell: true }),
    ),
  );
  const [skipping = "", replacing = ""] = made;
  const ledger = (id: string) =>
    listFirings(cell.db, id, { fromAt: 0, toAt: cell.clock.now() + HOUR_MS }).then((rows) =>
      rows.sort((one, other) => one.firedFor - other.firedFor),
    );
  await until(async () => (await ledger(skipping)).length > 2 && (await ledger(replacing)).length > 2);
  const [first, ...later] = await ledger(skipping);
  expect(first).toMatchObject({ skippedFor: null });
  expect(new Set(later.map(({ skippedFor }) => skippedFor))).toEqual(new Set(["overlap"]));
  const replaced = (await ledger(replacing)).map((firing) => firing.replaced);
  expect(replaced).toEqual(replaced.map((_, index) => (index === 0 ? 0 : 1)));
  for (const id of made) await deleteSchedule(cell.db, scopeOf(project), id, cause());
  await worker.stop();
});

test("an owner that is told of a changed schedule looks at once, and not at its next look", async () => {
  let lookCount = 0;
  const run = cell.serviceDb.run;
  cell.serviceDb.run = (name, text, values) => {
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
  cell.serviceDb.run = run;
  await worker.stop();
});

test("a schedule that is paused, changed or deleted does not fire, although its owner has it on the wheel", async () => {
  const worker = await cell.startWorker();
  const project = await cell.addProject();
  let aheadMs = 1_000;
  let instant: number;
  let ids: string[];
  do {
    // Each round looks further ahead: in the round before the machine was too slow to change the schedules in time.
    aheadMs *= 2;
    instant = secondIn(aheadMs);
    ids = [];
    for (let count = 0; count < 4; count++) ids.push(await schedule(project, instant, { tell: true }));
    const [paused = "", moved = "", deleted = ""] = ids;
    const change = (id: string, wish: Partial<DecidedChange>) =>
      changeSchedule(cell.db, scopeOf(project), id, (row) => ({ ...row, ...wish }), 1_000, cause());
    await change(paused, { paused: true, nextRunAt: null });
    await change(moved, { nextRunAt: instant + HOUR_MS });
    await deleteSchedule(cell.db, scopeOf(project), deleted, cause());
  } while (cell.clock.now() > instant - 100 && aheadMs < 20_000);
  const [paused = "", moved = "", deleted = "", kept = ""] = ids;
  await target.until(() => arrivalsOf(kept).length === 1);
  const after = await schedule(project, secondIn(1_000), { tell: true });
  await target.until(() => arrivalsOf(after).length === 1);
  for (const id of [paused, moved, deleted]) expect(arrivalsOf(id)).toEqual([]);
  expect(await nextRunOf(project, moved)).toBe(instant + HOUR_MS);
  await worker.stop();
});

test("after an outage the owner fires only the latest missed instant, and only if it is at most 10 minutes late", async () => {
  const project = await cell.addProject();
  // The instants are far from their next one, at any minute of the hour.
  const latest = Math.floor(cell.clock.now() / MINUTE_MS) * MINUTE_MS - 5 * MINUTE_MS;
  const anHourAgo = new Date(latest - HOUR_MS);
  const late = await schedule(project, latest - 3 * HOUR_MS, {
    cron: `${anHourAgo.getUTCMinutes()} * * * *`,
  });
  const daily = await schedule(project, latest - HOUR_MS, {
    cron: `${anHourAgo.getUTCMinutes()} ${anHourAgo.getUTCHours()} * * *`,
  });
  const worker = await cell.startWorker();
  await target.until(() => arrivalsOf(late).length === 1);
  await until(async () => ((await nextRunOf(project, daily)) ?? 0) > cell.clock.now());
  const aDay = { fromAt: 0, toAt: latest + 24 * HOUR_MS };
  const fired = await listFirings(cell.db, late, aDay);
  expect(fired.map(({ firedFor }) => firedFor)).toEqual([latest]);
  expect(arrivalsOf(daily)).toEqual([]);
  expect(await listFirings(cell.db, daily, aDay)).toEqual([]);
  await worker.stop();
});

test("thousands of schedules with one instant fire once each, with two workers that take shards from each other", async () => {
  const [one] = await Promise.all([cell.startWorker(), cell.startWorker()]);
  const projects = await Promise.all(
    Array.from({ length: 4 }, () => cell.addProject({ concurrency: 1_000 })),
  );
  const { cron, nextAt } = farAway();
  const made: string[] = [];
  const add = async (project: ProjectRow) => {
    for (let index = 0; index < 500; index++) made.push(await schedule(project, nextAt, { cron }));
  };
  await Promise.all(projects.map(add));
  const instant = secondIn(3_000);
  await cell.db.run("bring_forward", "UPDATE schedules SET next_run_at = $1 WHERE name = ANY ($2)", [
    new Date(instant),
    made,
  ]);
  await until(() => cell.clock.now() > instant - 200);
  const stopping = one?.stop();
  const isMade = new Set(made);
  const isOfThese = ({ headers }: Arrival) => isMade.has(headers["service-schedule-id"] ?? "");
  await target.until((arrivals) => arrivals.filter(isOfThese).length >= made.length, 150_000);
  await stopping;
  // When this later schedule fires, the others would have fired again.
  const [project] = projects;
  if (project === undefined) throw new Error("there is no project");
  const after = await schedule(project, secondIn(1_500), { tell: true });
  await target.until(() => arrivalsOf(after).length === 1);
  const counts = new Map<string, number>();
  for (const { headers } of target.arrivals) {
    const id = headers["service-schedule-id"] ?? "";
    counts.set(id, (counts.get(id) ?? 0) + 1);
  }
  expect(made.filter((id) => counts.get(id) !== 1)).toEqual([]);
}, 300_000);
