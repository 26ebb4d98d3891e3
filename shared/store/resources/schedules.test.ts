import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { createHash, randomBytes } from "node:crypto";
import { idToUuid } from "../../domain/ids.ts";
import { type DecidedChange, tooManyActive } from "../../domain/schedule.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { listFirings, listTimetables } from "../queue/firing-ledger.ts";
import { type Fired, type Firing, fireSchedules, listDueSchedules } from "../queue/firings.ts";
import { createShards, type HeldShard } from "../queue/shards.ts";
import {
  firingOf as firingOfHeld,
  keyCause,
  lastMinute,
  MINUTE_MS,
  scheduleOf,
  takeShard,
} from "../schedule-test-support.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { findFirstAnswer } from "./idempotency.ts";
import { listJobs } from "./job-list.ts";
import { listSchedules } from "./schedule-list.ts";
import {
  changeSchedule,
  createSchedule,
  deleteSchedule,
  findSchedule,
  type ScheduleToCreate,
} from "./schedules.ts";

const SHARD = 3;
const cause = keyCause;

let store: TestStore;
let project: ProjectNo;
let held: HeldShard;
beforeAll(async () => {
  store = await startStore();
  await createShards(store.db, ["us-east", "us-west"], SHARD + 1);
});
beforeEach(async () => {
  project = await store.addProject();
  held = await take();
});
afterAll(() => store.stop());

const take = () => takeShard(store, SHARD);

const scope = () => ({ projectNo: project, environment: "production" as const });

const newSchedule = (wish: Partial<ScheduleToCreate> = {}) => scheduleOf(scope(), SHARD, wish);

async function create(wish: Partial<ScheduleToCreate> = {}): Promise<ScheduleToCreate> {
  const schedule = newSchedule(wish);
  expect(await createSchedule(store.db, schedule, cause(), null)).toBe("created");
  return schedule;
}

const firingOf = (schedule: ScheduleToCreate, wish: Partial<Firing> = {}) =>
  firingOfHeld(schedule, held, wish);
const fire = async (...firings: Firing[]) => (await fireSchedules(store.db, firings)).map(({ kind }) => kind);
/** Changes these fields and leaves the next firing as it is, unless told otherwise. */
const change = (schedule: ScheduleToCreate, wish: Partial<DecidedChange>, activeMax = 100) =>
  changeSchedule(
    store.db,
    scope(),
    schedule.id,
    (found) => {
      if (found.paused && found.activeCount >= activeMax) throw tooManyActive(activeMax);
      return { ...found, paused: false, nextRunAt: undefined, ...wish };
    },
    activeMax,
    cause(),
  );
const activeCount = async () =>
  (await store.query<{ n: number }>("SELECT active_schedules AS n FROM projects WHERE no = $1", [project]))[0]
    ?.n;
const jobsOf = (scheduleId: string) =>
  store.query(
    `SELECT j.region, j.target_url, j.payload, j.max_attempts, j.base_seconds, j.cap_seconds, j.key_no,
            (extract(epoch FROM j.run_at) * 1000)::float8 AS run_at, o.attempts_allowed
       FROM jobs j JOIN open_jobs o ON o.job_id = j.id WHERE j.project_no = $1 AND j.schedule_id = $2`,
    [project, idToUuid(scheduleId)],
  );
describe("a schedule", () => {
  test("comes back as it was created, and only to its own environment", async () => {
    const schedule = await create();
    const { shard: _, activeMax: __, ...facts } = schedule;
    expect(await findSchedule(store.db, scope(), schedule.id)).toEqual({
      ...facts,
      paused: false,
      revision: 0,
    });
    expect(await findSchedule(store.db, { ...scope(), environment: "development" }, schedule.id)).toBeNull();
    expect(
      await listTimetables(store.db, schedule.id, { untilAt: Date.now(), untilNo: null, limit: 10 }),
    ).toMatchObject([{ cron: "* * * * *", timezone: "UTC", paused: false, supersededAt: null }]);
  });

  test("is listed newest first, all or only the paused or the active ones, a page at a time", async () => {
    const made = [await create(), await create(), await create(), await create()];
    await change(made[1] as ScheduleToCreate, { paused: true, nextRunAt: null });
    await create({ environment: "development" });
    const list = async (paused: boolean | null, limit = 10, beforeId: string | null = null) =>
      (await listSchedules(store.db, { ...scope(), paused, beforeId, limit })).rows.map(({ id }) =>
        made.findIndex((schedule) => schedule.id === id),
      );
    expect(await list(null)).toEqual([3, 2, 1, 0]);
    expect(await list(true)).toEqual([1]);
    expect(await list(false)).toEqual([3, 2, 0]);
    expect(await list(null, 2)).toEqual([3, 2]);
    expect(await list(null, 2, made[2]?.id)).toEqual([1, 0]);
  });

  test("needs a name of its own in its environment, and frees it when it is deleted", async () => {
    const first = await create({ name: "nightly" });
    const again = newSchedule({ name: "nightly" });
    expect(await createSchedule(store.db, again, cause(), null)).toBe("name_taken");
    await create({ name: "nightly", environment: "development" });
    expect(await deleteSchedule(store.db, scope(), first.id, cause())).toBe(true);
    expect(await deleteSchedule(store.db, scope(), first.id, cause())).toBe(false);
    expect(await createSchedule(store.db, again, cause(), null)).toBe("created");
    expect(await activeCount()).toBe(2);
  });

  test("of one name created many times at once: exactly one is made, and it is counted once", async () => {
    const outcomes = await Promise.all(
      Array.from({ length: 20 }, () => createSchedule(store.db, newSchedule({ name: "one" }), cause(), null)),
    );
    expect(outcomes.filter((outcome) => outcome === "created")).toHaveLength(1);
    expect(outcomes.filter((outcome) => outcome === "name_taken")).toHaveLength(19);
    expect(await activeCount()).toBe(1);
  });

  test("beyond the plan's limit is refused, however many come at once and by whichever way they become active", async () => {
    const outcomes = await Promise.all(
      Array.from({ length: 12 }, () =>
        createSchedule(store.db, newSchedule({ activeMax: 5 }), cause(), null),
      ),
    );
    expect(outcomes.filter((outcome) => outcome === "created")).toHaveLength(5);
    expect(outcomes.filter((outcome) => outcome === "limit_exceeded")).toHaveLength(7);
    const { rows } = await listSchedules(store.db, { ...scope(), paused: null, beforeId: null, limit: 1 });
    const one = newSchedule({ id: rows[0]?.id ?? "", activeMax: 5 });
    expect(await change(one, { paused: true, nextRunAt: null })).toMatchObject({ paused: true });
    expect(await activeCount()).toBe(4);
    await create();
    const nextRunAt = Date.now() + 60 * MINUTE_MS;
    await expect(change(one, { nextRunAt }, 5)).rejects.toThrow("limit of 5 active schedules");
    expect(await activeCount()).toBe(5);
  });

  test("many that are resumed at once take the places that are left, and no more", async () => {
    const made = await Promise.all(Array.from({ length: 8 }, () => create()));
    for (const one of made) await change(one, { paused: true, nextRunAt: null });
    const nextRunAt = Date.now() + 60 * MINUTE_MS;
    const resumed = await Promise.allSettled(made.map((one) => change(one, { nextRunAt }, 3)));
    expect(resumed.filter(({ status }) => status === "fulfilled")).toHaveLength(3);
    expect(await activeCount()).toBe(3);
  });

  test("with an Idempotency-Key is made once, and its first answer is kept with it", async () => {
    const key = () => ({
      digest: createHash("sha256").update(project.toString()).digest(),
      requestHash: Buffer.from("body"),
      answer: Buffer.from(`{"made":${randomBytes(2).readUInt16BE()}}`),
    });
    const keys = Array.from({ length: 10 }, key);
    const outcomes = await Promise.all(
      keys.map((key) => createSchedule(store.db, newSchedule(), cause(), key)),
    );
    expect(outcomes.filter((outcome) => outcome === "created")).toHaveLength(1);
    expect(outcomes.filter((outcome) => outcome === "key_taken")).toHaveLength(9);
    const first = await findFirstAnswer(store.db, scope(), keys[0]?.digest ?? Buffer.alloc(0));
    expect(first?.answer).toEqual(keys[outcomes.indexOf("created")]?.answer as Buffer);
    expect(await activeCount()).toBe(1);
  });

  test("is changed as it was decided on, and decided on again where another change was faster", async () => {
    const schedule = await create();
    const changed = await change(schedule, {
      cron: "5 * * * *",
      payload: "[]",
      nextRunAt: 1_900_000_000_000,
    });
    expect(changed).toMatchObject({
      cron: "5 * * * *",
      payload: "[]",
      nextRunAt: 1_900_000_000_000,
      revision: 1,
    });
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("UPDATE schedules SET payload = '[1]', revision = 2 WHERE name = $1", [
      schedule.name,
    ]);
    const seen: string[] = [];
    const deciding = changeSchedule(
      store.db,
      scope(),
      schedule.id,
      (found) => {
        seen.push(found.payload);
        return { ...found, payload: "[2]", nextRunAt: undefined };
      },
      100,
      cause(),
    );
    await store.untilBlocked();
    await session.query("COMMIT");
    expect(await deciding).toMatchObject({ payload: "[2]", revision: 3 });
    expect(seen).toEqual(["[]", "[1]"]);
    await deleteSchedule(store.db, scope(), schedule.id, cause());
    expect(await change(schedule, { payload: "{}" })).toBe("not_found");
    const entries = await store.query("SELECT action FROM audit_entries WHERE subject = $1 ORDER BY id", [
      schedule.id,
    ]);
    expect(entries.map(({ action }) => action)).toEqual([
      "schedule.create",
      "schedule.update",
      "schedule.update",
      "schedule.delete",
    ]);
  });
});

describe("a firing", () => {
  test("makes the job with everything of the schedule, records itself, and moves the schedule on", async () => {
    const schedule = await create();
    expect(
      await listDueSchedules(store.db, [SHARD], { sinceAt: 0, aheadMs: 0, limit: 1_000 }),
    ).toContainEqual({
      ...scope(),
      scheduleId: schedule.id,
      shard: SHARD,
      cron: "* * * * *",
      timezone: "UTC",
      nextRunAt: schedule.nextRunAt ?? 0,
      isBound: false,
    });
    const firing = firingOf(schedule);
    const [fired] = (await fireSchedules(store.db, [firing])) as [Extract<Fired, { kind: "fired" }>];
    const owed = { region: "us-east", shard: SHARD, id: firing.jobId, attempt: 1 };
    expect(fired).toMatchObject({ kind: "fired", region: "us-east", owed: [owed] });
    expect(Math.abs((fired.owed[0]?.dueAt ?? 0) - Date.now())).toBeLessThan(10_000);
    expect(await jobsOf(schedule.id)).toEqual([
      {
        region: 0,
        target_url: schedule.targetUrl,
        payload: `{"n":1.0}`,
        max_attempts: 2,
        base_seconds: 3,
        cap_seconds: 4,
        key_no: null,
        run_at: schedule.nextRunAt,
        attempts_allowed: 2,
      },
    ]);
    const window = { fromAt: 0, toAt: Date.now() };
    expect(await listFirings(store.db, schedule.id, window)).toEqual([
      {
        firedFor: schedule.nextRunAt ?? 0,
        jobId: firing.jobId,
        skippedFor: null,
        isBackfilled: false,
        dueAt: null,
        replaced: null,
      },
    ]);
    expect((await findSchedule(store.db, scope(), schedule.id))?.nextRunAt).toBe(firing.thenAt);
    // The same firing again, by workers that take it for still due.
    expect(await fire(firing, firingOf(schedule))).toEqual(["gone", "gone"]);
    expect(await jobsOf(schedule.id)).toHaveLength(1);
  });

  test("gives its job the tags that the schedule has at that moment, in every table where lists look for them", async () => {
    const schedule = await create({ tags: ["first", "NULL"], nextRunAt: lastMinute() - MINUTE_MS });
    const firing = firingOf(schedule);
    expect(await fire(firing)).toEqual(["fired"]);
    expect(await change(schedule, { tags: ["second"] })).toMatchObject({ tags: ["second"] });
    const next = firingOf({ ...schedule, nextRunAt: firing.thenAt });
    expect(await fire(next)).toEqual(["fired"]);
    const list = { ...scope(), status: null, region: null, beforeId: null, limit: 10 };
    const found = async (filters: { tag?: string; scheduleId?: string; status?: "queued" }) =>
      (await listJobs(store.db, { ...list, ...filters })).rows.map(({ id, tags }) => [id, tags]);
    const first = [firing.jobId, ["first", "NULL"]];
    const second = [next.jobId, ["second"]];
    expect(await found({ scheduleId: schedule.id })).toEqual([second, first]);
    expect(await found({ scheduleId: schedule.id, status: "queued" })).toEqual([second, first]);
    expect(await found({ scheduleId: schedule.id, tag: "NULL" })).toEqual([first]);
    expect(await found({ tag: "NULL", status: "queued" })).toEqual([first]);
    expect(await found({ tag: "second" })).toEqual([second]);
  });

  test("goes to the project's default region of that moment, as far as its plan allows it", async () => {
    const schedule = await create({ nextRunAt: lastMinute() - MINUTE_MS });
    await store.query("UPDATE projects SET default_region = 1 WHERE no = $1", [project]);
    expect(await fireSchedules(store.db, [firingOf(schedule)])).toMatchObject([{ region: "us-west" }]);
    const [lane] = await store.query("SELECT shard FROM lanes WHERE project_no = $1 AND region = 1", [
      project,
    ]);
    expect(lane).toEqual({ shard: SHARD });
    await store.query("UPDATE projects SET plan = 'hobby' WHERE no = $1", [project]);
    const nextRunAt = (schedule.nextRunAt ?? 0) + MINUTE_MS;
    const later = firingOf(schedule, { nextRunAt, firedFor: nextRunAt });
    expect(await fireSchedules(store.db, [later])).toMatchObject([{ region: "us-east" }]);
  });

  test("without quota makes no job, says so in the ledger, and the schedule goes on", async () => {
    project = await store.addProject({ plan: "hobby" });
    const schedule = await create();
    await store.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [project]);
    expect(await fire(firingOf(schedule))).toEqual(["skipped"]);
    expect(await jobsOf(schedule.id)).toEqual([]);
    expect(await listFirings(store.db, schedule.id, { fromAt: 0, toAt: Date.now() })).toEqual([
      {
        firedFor: schedule.nextRunAt ?? 0,
        jobId: null,
        skippedFor: "quota",
        isBackfilled: false,
        dueAt: null,
        replaced: null,
      },
    ]);
    const nextRunAt = (schedule.nextRunAt ?? 0) + MINUTE_MS;
    expect((await findSchedule(store.db, scope(), schedule.id))?.nextRunAt).toBe(nextRunAt);
  });

  test("that is not due yet by the database's clock, or not too late, is left alone", async () => {
    const future = lastMinute() + 5 * MINUTE_MS;
    const early = await create({ nextRunAt: future });
    expect(await fire(firingOf(early))).toEqual(["gone"]);
    const due = await create();
    expect(await fire(firingOf(due, { firedFor: future }), firingOf(due, { firedFor: null }))).toEqual([
      "gone",
      "gone",
    ]);
    expect(await fire(firingOf(due))).toEqual(["fired"]);
  });

  test("that comes too late is not fired and not recorded", async () => {
    const schedule = await create({ nextRunAt: lastMinute() - 10 * MINUTE_MS });
    expect(await fire(firingOf(schedule, { firedFor: null }))).toEqual(["skipped"]);
    expect(await listFirings(store.db, schedule.id, { fromAt: 0, toAt: Date.now() })).toEqual([]);
  });

  test("of many schedules at once, whatever became of some of them", async () => {
    const made = await Promise.all(Array.from({ length: 50 }, () => create()));
    await change(made[3] as ScheduleToCreate, { paused: true, nextRunAt: null });
    await deleteSchedule(store.db, scope(), made[7]?.id ?? "", cause());
    const kinds = await fire(...made.map((schedule) => firingOf(schedule)));
    expect(
      kinds.map((kind, index) => (kind === "gone" ? index : null)).filter((index) => index !== null),
    ).toEqual([3, 7]);
    expect(kinds.filter((kind) => kind === "fired")).toHaveLength(48);
  });

  test("by an owner whose shard another has taken does nothing", async () => {
    const schedule = await create();
    const stale = firingOf(schedule);
    const newer = await take();
    expect(await fire(stale)).toEqual(["gone"]);
    expect(await fire({ ...stale, held: newer })).toEqual(["fired"]);
  });

  test("that waits for a pause to commit finds nothing; a pause that waits for a firing finds it done", async () => {
    const schedule = await create();
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("UPDATE schedules SET paused = true, next_run_at = NULL WHERE name = $1", [
      schedule.name,
    ]);
    const firing = fire(firingOf(schedule));
    await store.untilBlocked();
    await session.query("COMMIT");
    expect(await firing).toEqual(["gone"]);
    expect(await jobsOf(schedule.id)).toEqual([]);

    const other = await create();
    await session.query("BEGIN");
    await session.query("SELECT FROM flows FOR UPDATE");
    await session.query("SELECT FROM schedules WHERE name = $1 FOR UPDATE", [other.name]);
    const both = [fire(firingOf(other)), change(other, { paused: true, nextRunAt: null })] as const;
    await store.untilBlocked(2);
    await session.query("COMMIT");
    const [fired, paused] = await Promise.all(both);
    expect(paused).toMatchObject({ paused: true });
    expect((await findSchedule(store.db, scope(), other.id))?.nextRunAt).toBeNull();
    expect(await jobsOf(other.id)).toHaveLength(fired[0] === "fired" ? 1 : 0);
  });

  test("decided on a timetable that was replaced since does nothing, though the new one has the same instant", async () => {
    const schedule = await create({ cron: "* * * * *" });
    const stale = firingOf(schedule);
    await change(schedule, { cron: "0 12 * * *" });
    expect(await fire(stale)).toEqual(["gone"]);
    await change(schedule, { cron: "0 12 * * *", timezone: "Europe/Berlin" });
    expect(await fire({ ...stale, cron: "0 12 * * *" })).toEqual(["gone"]);
    expect(await fire({ ...stale, cron: "0 12 * * *", timezone: "Europe/Berlin" })).toEqual(["fired"]);
  });

  test("of one instant has one job even if the schedule were set back", async () => {
    const schedule = await create();
    expect(await fire(firingOf(schedule))).toEqual(["fired"]);
    await store.query("UPDATE schedules SET next_run_at = $2 WHERE name = $1", [
      schedule.name,
      new Date(schedule.nextRunAt ?? 0),
    ]);
    expect(await fire(firingOf(schedule))).toEqual(["skipped"]);
    expect(await jobsOf(schedule.id)).toHaveLength(1);
  });
});
