import { afterAll, beforeAll, beforeEach, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import type { Flow } from "../../shared/domain/flow-key.ts";
import { createIdSource, idToUuid, REQUEST_PREFIX, SCHEDULE_PREFIX } from "../../shared/domain/ids.ts";
import type { Overlap } from "../../shared/domain/schedule.ts";
import type { ProjectNo } from "../../shared/domain/scope.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { NO_TRACES } from "../../shared/platform/traces/traces.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { addEndpoint } from "../../shared/store/delivery-test-support.ts";
import { listFirings } from "../../shared/store/queue/firing-ledger.ts";
import { acquireShards, createShards, type HeldShard } from "../../shared/store/queue/shards.ts";
import { changeSchedule, createSchedule, findSchedule } from "../../shared/store/resources/schedules.ts";
import { inTime, startStore, type TestStore, until } from "../../shared/store/test-support.ts";
import { Firer } from "./firer.ts";

const SHARD = 3;
const SECOND_MS = 1_000;
const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
const LEASE_MS = 10 * MINUTE_MS;
const ids = createIdSource(randomBytes);
const cause = () => ({ requestId: ids.next(REQUEST_PREFIX, Date.now()), keyNo: 1 });

let store: TestStore;
let project: ProjectNo;
let held: HeldShard;
/** How far the worker's clock is ahead. */
let aheadMs = 0;
/** Whether the worker trusts its lease. */
let isTrusted = true;
let firer: Firer;
/** The schedules that each statement was to fire. */
let asked: string[][];

beforeAll(async () => {
  store = await startStore();
  await createShards(store.db, ["us-east"], SHARD + 1);
  const wanted = [{ region: "us-east", shard: SHARD }] as const;
  const [acquired] = await acquireShards(store.db, await store.addNode(), wanted, LEASE_MS);
  if (acquired === undefined) throw new Error("the shard was not to be had");
  held = acquired;
});
beforeEach(async () => {
  await store.query("DELETE FROM schedules");
  project = await store.addProject();
  aheadMs = 0;
  isTrusted = true;
  asked = [];
  const db: Database = {
    ...store.db,
    run(name, text, values) {
      if (name.startsWith("fire_")) asked.push(String(values[2]).slice(1, -1).split(","));
      return store.db.run(name, text, values);
    },
  };
  const cell = {
    db,
    bus: createInProcessBus(),
    clock: { now, stop: () => undefined },
    log: createLog({ name: "test", level: "silent" }),
    metrics: createMetrics(),
    traces: NO_TRACES,
  };
  firer = new Firer(cell, { heldOf: () => (isTrusted ? held : undefined), onChange: () => undefined });
});
afterAll(() => store.stop());

const now = () => Date.now() + aheadMs;
const scope = () => ({ projectNo: project, environment: "production" as const });
const wholeSecond = (at: number) => Math.floor(at / SECOND_MS) * SECOND_MS;

/** A schedule whose next firing is at that instant, whatever its timetable says. */
async function create(
  nextRunAt: number,
  wish: { cron?: string; payload?: string; overlap?: Overlap; flow?: Flow } = {},
): Promise<string> {
  const id = ids.next(SCHEDULE_PREFIX, Date.now());
  const schedule = {
    ...scope(),
    id,
    name: id,
    cron: "* * * * *",
    timezone: "UTC",
    targetUrl: "https://target.example/hook",
    payload: "{}",
    retryPolicy: { maxAttempts: 1, baseSeconds: 1, capSeconds: 1 },
    overlap: null,
    spreadSeconds: null,
    paused: false,
    tags: null,
    flow: null,
    nextRunAt: wholeSecond(nextRunAt),
    shard: SHARD,
    activeMax: 1_000,
    ...wish,
  };
  expect(await createSchedule(store.db, schedule, cause(), null)).toBe("created");
  return id;
}

const nextRunAt = async (id: string) => (await findSchedule(store.db, scope(), id))?.nextRunAt ?? 0;
const firedCount = async (id: string) =>
  (await listFirings(store.db, id, { fromAt: 0, toAt: now() + HOUR_MS })).length;

/** Turns the wheel until what was learned has fired. */
async function turnUntil(condition: () => Promise<boolean>): Promise<void> {
  await until(() => {
    firer.advance(now());
    return condition();
  });
}

/** Begins a look, and lets it end only after `act`. */
async function lookDuring(act: () => void): Promise<void> {
  const session = await store.session();
  await session.query("BEGIN");
  await session.query("LOCK TABLE schedules IN ACCESS EXCLUSIVE MODE");
  const look = firer.look([SHARD]);
  await store.untilBlocked();
  act();
  await session.query("COMMIT");
  await look;
}

test("a shard acquired while a look is under way: what came due before is found by the next look", async () => {
  await firer.look([SHARD]);
  await lookDuring(() => firer.lookAnew());
  const late = await create(Date.now() - 30 * SECOND_MS);
  await firer.look([SHARD]);
  await turnUntil(async () => (await firedCount(late)) === 1);
});

test("a shard acquired: what is remembered already fires without another look", async () => {
  const due = await create(Date.now() - SECOND_MS);
  await firer.look([SHARD]);
  firer.lookAnew();
  await turnUntil(async () => (await firedCount(due)) === 1);
});

test("what came due while the worker did not trust its lease fires once it does", async () => {
  const late = await create(Date.now() - 30 * SECOND_MS);
  isTrusted = false;
  await firer.look([SHARD]);
  firer.advance(now());
  await firer.drain();
  expect(await firedCount(late)).toBe(0);
  isTrusted = true;
  await firer.look([SHARD]);
  await turnUntil(async () => (await firedCount(late)) === 1);
});

test("what the store has refused to a worker whose clock is ahead fires once it is not", async () => {
  const due = await create(Date.now() - SECOND_MS, { cron: "* * * * * *" });
  aheadMs = 20 * SECOND_MS;
  await firer.look([SHARD]);
  firer.advance(now());
  await firer.drain();
  expect(await firedCount(due)).toBe(0);
  await firer.look([SHARD]);
  firer.advance(now());
  await firer.drain();
  await firer.look([SHARD]);
  aheadMs = 0;
  await until(() => {
    firer.advance(Date.now() + 20 * SECOND_MS);
    return firedCount(due).then((count) => count === 1);
  });
});

test("a clock that leaps ahead while a schedule fires: its next instant, behind the looks by then, fires too", async () => {
  const leapMs = 20 * SECOND_MS;
  aheadMs = -leapMs;
  firer.forget();
  const id = await create(now() - SECOND_MS, { cron: "*/2 * * * * *" });
  await firer.look([SHARD]);
  const session = await store.session();
  await session.query("BEGIN");
  await session.query("SELECT FROM schedules FOR UPDATE");
  firer.advance(now());
  await store.untilBlocked();
  aheadMs = 0;
  await firer.look([SHARD]);
  await session.query("COMMIT");
  await firer.drain();
  expect(await nextRunAt(id)).toBeLessThan(Date.now() - leapMs / 2);
  await firer.look([SHARD]);
  await turnUntil(async () => (await firedCount(id)) === 2);
});

test("the clock set back an hour while a look is under way: what comes due from then on fires in time", async () => {
  aheadMs = HOUR_MS;
  await firer.look([SHARD]);
  await lookDuring(() => {
    aheadMs = 0;
    firer.forget();
  });
  const first = await create(Date.now() - SECOND_MS);
  await firer.look([SHARD]);
  await turnUntil(async () => (await firedCount(first)) === 1);
  const second = await create(Date.now() - SECOND_MS);
  await firer.look([SHARD]);
  await turnUntil(async () => (await firedCount(second)) === 1);
});

test("the clock set back while a schedule is ready to fire: no statement has it twice", async () => {
  const keyed = (key: string) => create(Date.now() - SECOND_MS, { flow: { key } });
  const first = await keyed("first");
  await firer.look([SHARD]);
  const session = await store.session();
  await session.query("BEGIN");
  await session.query("SELECT FROM schedules FOR UPDATE");
  firer.advance(now());
  await store.untilBlocked();
  const second = await keyed("second");
  await firer.look([SHARD]);
  // It waits for the first one, whose statement has no end yet.
  firer.advance(now());
  firer.forget();
  await firer.look([SHARD]);
  firer.advance(now());
  await session.query("COMMIT");
  await turnUntil(async () => (await firedCount(first)) + (await firedCount(second)) === 2);
  for (const ids of asked) expect(ids).toEqual([...new Set(ids)]);
  expect(asked.flat()).toContain(idToUuid(second));
});

test("a timetable that is replaced by one with the same next instant no longer decides what follows", async () => {
  let id = "";
  // The schedule has to be remembered first, and then changed before it is due.
  await inTime(SECOND_MS, async () => {
    const due = wholeSecond(Date.now() + 2.5 * SECOND_MS);
    id = await create(due);
    await firer.look([SHARD]);
    const changed = await changeSchedule(
      store.db,
      scope(),
      id,
      (schedule) => ({ ...schedule, cron: "0 0 1 1 *", nextRunAt: due }),
      10,
      cause(),
    );
    expect(changed).toMatchObject({ cron: "0 0 1 1 *" });
  });
  await firer.look([SHARD]);
  await turnUntil(async () => (await firedCount(id)) === 1);
  const next = new Date(await nextRunAt(id)).toISOString();
  expect(next).toEndWith("-01-01T00:00:00.000Z");
});

test("schedules fire although one that is due with them cannot", async () => {
  const due = Date.now() - 2 * SECOND_MS;
  await store.query("ALTER TABLE jobs ADD CONSTRAINT poison CHECK (payload <> '\"poison\"')");
  const poisoned = await create(due, { payload: `"poison"` });
  const mates = await Promise.all(Array.from({ length: 20 }, () => create(due)));
  await firer.look([SHARD]);
  await turnUntil(async () => (await Promise.all(mates.map(firedCount))).every((count) => count === 1));
  expect(await firedCount(poisoned)).toBe(0);
  expect(await nextRunAt(poisoned)).toBe(wholeSecond(due));
  await store.query("ALTER TABLE jobs DROP CONSTRAINT poison");
});

test("a schedule that is too late to fire is found by the look back and goes on to its next instant", async () => {
  const late = await create(Date.now() - 15 * MINUTE_MS, { cron: "0 0 29 2 *" });
  await firer.look([SHARD]);
  firer.advance(now());
  await firer.drain();
  expect(await nextRunAt(late)).toBeLessThan(now());
  await firer.lookBack([SHARD]);
  await turnUntil(async () => (await nextRunAt(late)) > now());
  expect(await firedCount(late)).toBe(0);
});

test("what a worker finds to be missed is told to the endpoints that ask for it, once", async () => {
  await addEndpoint(store, project, { events: ["schedule.firing_missed"] });
  const lastMinute = Math.floor(Date.now() / MINUTE_MS) * MINUTE_MS;
  const late = await create(lastMinute - 3 * MINUTE_MS);
  await firer.look([SHARD]);
  await turnUntil(async () => (await firedCount(late)) === 1);
  await firer.drain();
  const told = await store.query<{ data: { name: string; missed: { fromAt: number; count: number } } }>(
    "SELECT data FROM events WHERE project_no = $1",
    [project],
  );
  expect(told.length).toBe(1);
  const [event] = told;
  expect([event?.data.name, event?.data.missed.fromAt]).toEqual([late, lastMinute - 3 * MINUTE_MS]);
  // Another minute may have begun.
  expect(event?.data.missed.count).toBeGreaterThanOrEqual(3);
});
