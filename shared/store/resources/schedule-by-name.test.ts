import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { type Changeable, decideScheduleChange } from "../../domain/schedule.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { type Database, StoreUnavailable } from "../database/database.ts";
import { keyCause, scheduleOf } from "../schedule-test-support.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { putSchedule } from "./schedule-by-name.ts";
import { changeSchedule, createSchedule, deleteSchedule, findScheduleByName } from "./schedules.ts";

let store: TestStore;
let project: ProjectNo;
beforeAll(async () => {
  store = await startStore();
});
beforeEach(async () => {
  project = await store.addProject();
});
afterAll(() => store.stop());

const NAME = "nightly";
const ACTIVE_MAX = 3;
const scope = () => ({ projectNo: project, environment: "production" as const });
const newSchedule = (wish: Partial<Changeable> = {}) => {
  const nextRunAt = wish.paused ? null : Date.UTC(2099, 0, 1);
  return scheduleOf(scope(), 0, { name: NAME, nextRunAt, activeMax: ACTIVE_MAX, ...wish });
};

/** Puts the schedule of this name with these fields, over the store's way to the database or another one. */
function put(wish: Partial<Changeable>, db: Database = store.db) {
  const asked = newSchedule(wish);
  const { cron, timezone, targetUrl, payload, retryPolicy, overlap, spreadSeconds, tags } = asked;
  const fields = {
    name: NAME,
    cron,
    timezone,
    targetUrl,
    payload,
    retryPolicy,
    overlap,
    spreadSeconds,
    tags,
  };
  const change = wish.paused === undefined ? fields : { ...fields, paused: wish.paused };
  const decide = (schedule: Parameters<typeof decideScheduleChange>[0]) =>
    decideScheduleChange(schedule, change, { now: Date.now(), activeMax: ACTIVE_MAX });
  return putSchedule(db, scope(), NAME, { create: () => asked, decide }, ACTIVE_MAX, keyCause());
}

const find = () => findScheduleByName(store.db, scope(), NAME);
const countRows = async () => {
  const [row] = await store.query(
    `SELECT (SELECT count(*) FROM schedules WHERE project_no = $1)::int AS schedules,
            (SELECT count(*) FROM audit_entries WHERE project_no = $1 AND action LIKE 'schedule.%')::int AS audited,
            (SELECT active_schedules FROM projects WHERE no = $1) AS active,
            (SELECT count(*) FROM timetables t JOIN schedules s ON s.id = t.schedule_id WHERE s.project_no = $1)::int AS timetables`,
    [project],
  );
  return row;
};

/** A way to the database that does something else at the n-th statement, counted from 0. */
function interrupted(n: number, act: (run: () => Promise<unknown[]>) => Promise<unknown[]>): Database {
  let count = 0;
  return {
    ...store.db,
    run: (name, text, values) => {
      const run = () => store.db.run(name, text, values);
      return (count++ === n ? act(run) : run()) as ReturnType<typeof run> as never;
    },
  };
}

describe("a PUT of a name", () => {
  test("creates what is missing, changes what differs, and writes nothing where all is so already", async () => {
    const created = await put({ payload: "1" });
    expect(created).toMatchObject({ kind: "created", schedule: { name: NAME, payload: "1" } });
    const before = await countRows();
    const schedule = await find();
    expect(await put({ payload: "1" })).toEqual({ kind: "found", schedule } as never);
    expect(await countRows()).toEqual(before);
    expect(await put({ payload: "2", overlap: "allow", spreadSeconds: 0 })).toMatchObject({
      kind: "found",
      schedule: { id: schedule?.id, payload: "2", overlap: "allow", spreadSeconds: 0, revision: 1 },
    });
    expect(await put({ payload: "2" })).toMatchObject({ schedule: { overlap: null, spreadSeconds: null } });
    expect(await put({ payload: "2", tags: ["a"] })).toMatchObject({ schedule: { tags: ["a"] } });
    expect(await put({ payload: "2", tags: ["a"] })).toMatchObject({ schedule: { revision: 3 } });
    expect(await put({ payload: "2" })).toMatchObject({ schedule: { tags: null } });
    expect(await countRows()).toEqual({ ...before, audited: 5 });
  });

  test.each<Partial<Changeable>>([
    { cron: "0 0 1 1 *" },
    { timezone: "Asia/Tokyo" },
    { targetUrl: "https://target.example/other" },
    { payload: "2" },
    { retryPolicy: { maxAttempts: 2, baseSeconds: 3, capSeconds: 5 } },
    { overlap: "allow" },
    { spreadSeconds: 0 },
    { paused: true },
  ])("changes what differs in one field alone: %p", async (wish) => {
    await put({});
    expect(await put(wish)).toMatchObject({ kind: "found", schedule: { ...wish, revision: 1 } });
    expect(await find()).toMatchObject(wish);
  });

  test("keeps a pause that it does not speak of, and may create one that is paused and counts for no limit", async () => {
    for (let count = 0; count < ACTIVE_MAX; count++) {
      const other = scheduleOf(scope(), 0, { activeMax: ACTIVE_MAX });
      expect(await createSchedule(store.db, other, keyCause(), null)).toBe("created");
    }
    expect(await put({})).toEqual({ kind: "limit_exceeded" });
    expect(await put({ paused: true })).toMatchObject({
      kind: "created",
      schedule: { paused: true, nextRunAt: null },
    });
    expect(await put({ payload: "2" })).toMatchObject({ kind: "found", schedule: { paused: true } });
    expect(await countRows()).toMatchObject({ active: ACTIVE_MAX, schedules: ACTIVE_MAX + 1 });
    expect(await put({ paused: false }).catch(({ code }) => code)).toBe("plan_limit_exceeded");
  });

  test("20 at once that are the same: one creates, and the others find it", async () => {
    const answers = await Promise.all(Array.from({ length: 20 }, () => put({ payload: "1" })));
    expect(answers.map(({ kind }) => kind).sort()).toEqual(["created", ...Array(19).fill("found")]);
    expect(await countRows()).toEqual({ schedules: 1, audited: 1, active: 1, timetables: 1 });
  });

  test("20 at once that differ: one schedule, which is as one of them has said", async () => {
    const answers = await Promise.all(Array.from({ length: 20 }, (_, n) => put({ payload: String(n) })));
    expect(answers.filter(({ kind }) => kind === "created")).toHaveLength(1);
    expect(await countRows()).toMatchObject({ schedules: 1, audited: 20, active: 1 });
    expect(answers).toContainEqual(expect.objectContaining({ schedule: await find() }));
  });
});

describe("a PUT that is interrupted between its steps", () => {
  const lost = () => Promise.reject(new StoreUnavailable("killed"));

  /** The moments of death: before or after each statement of a PUT that creates, and of one that changes. */
  const deaths = ["create", "change"].flatMap((what) =>
    [0, 1].flatMap((statement) => ["before", "after"].map((side) => [what, statement, side] as const)),
  );
  test.each(deaths)(
    "killed while it is to %s, at statement %p, %s it: the next one makes it so",
    async (what, statement, side) => {
      if (what === "change") await put({ payload: "0" });
      const before = await countRows();
      const killed = interrupted(statement, async (run) => {
        if (side === "after") await run();
        return lost();
      });
      expect(await put({ payload: "1" }, killed).catch((error) => error)).toBeInstanceOf(StoreUnavailable);
      const isDone = statement === 1 && side === "after";
      if (!isDone) expect(await countRows()).toEqual(before);
      const again = await put({ payload: "1" });
      expect(again.kind).toBe(what === "create" && !isDone ? "created" : "found");
      expect(await find()).toMatchObject({ payload: "1" });
      const audited = what === "create" ? 1 : 2;
      expect(await countRows()).toEqual({ schedules: 1, audited, active: 1, timetables: 1 });
    },
  );

  const interruptions: [string, () => Promise<unknown>, object][] = [
    ["created by another one", () => put({ payload: "0" }), { schedules: 1 }],
    [
      "renamed",
      async () => {
        await put({ payload: "0" });
        const id = (await find())?.id ?? "";
        const rename = { name: "other", nextRunAt: undefined };
        await changeSchedule(store.db, scope(), id, (found) => ({ ...found, ...rename }), 3, keyCause());
      },
      { schedules: 2 },
    ],
    [
      "created and deleted",
      async () => {
        await put({ payload: "0" });
        await deleteSchedule(store.db, scope(), (await find())?.id ?? "", keyCause());
      },
      { schedules: 1 },
    ],
  ];
  test.each(interruptions)(
    "after it has looked, the schedule is %s: it looks again",
    async (_, act, counts) => {
      const slow = interrupted(1, async (run) => {
        await act();
        return run();
      });
      expect(await put({ payload: "1" }, slow)).toMatchObject({ schedule: { payload: "1" } });
      expect(await find()).toMatchObject({ payload: "1" });
      expect(await countRows()).toMatchObject(counts);
    },
  );

  test("after it has looked, the schedule is paused: it stays so", async () => {
    await put({ payload: "0" });
    const id = (await find())?.id ?? "";
    const slow = interrupted(1, async (run) => {
      const pause = { paused: true, nextRunAt: null };
      await changeSchedule(store.db, scope(), id, (found) => ({ ...found, ...pause }), 3, keyCause());
      return run();
    });
    expect(await put({ payload: "1" }, slow)).toMatchObject({ schedule: { payload: "1", paused: true } });
    expect(await find()).toMatchObject({ payload: "1", paused: true, nextRunAt: null });
  });

  test("after it has looked, the schedule is deleted: it is created anew", async () => {
    await put({ payload: "0" });
    const first = await find();
    const slow = interrupted(1, async (run) => {
      await deleteSchedule(store.db, scope(), first?.id ?? "", keyCause());
      return run();
    });
    const answer = await put({ payload: "1" }, slow);
    expect(answer.kind).toBe("created");
    expect(await find()).not.toMatchObject({ id: first?.id });
  });
});
