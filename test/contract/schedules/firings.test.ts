import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import type {
  Firing,
  FiringListQuery,
  NewSchedule,
  Schedule,
  Schedules,
} from "../../../shared/client/index.ts";
import { idToUuid } from "../../../shared/domain/ids.ts";
import { PLAN_TERMS, PLANS } from "../../../shared/domain/plan.ts";
import { passNearEnd } from "../../support/boundary.ts";
import { clientOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { newSchedule, passInstant } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;
let schedules: Schedules;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject("enterprise");
  schedules = clientOf(gateway, project.production).schedules;
});
afterAll(() => gateway.stop());
// The hours of these expressions begin at half past in some zones.
beforeEach(() => passNearEnd(HOUR_MS / 2));

const HOUR_MS = 3_600_000;
const CLEAR_MS = 2_000;
const DAY_MS = 24 * HOUR_MS;
const ROUNDS_MAX = 10;

async function create(wish: Partial<NewSchedule> = {}, owner = schedules): Promise<string> {
  return (await owner.create(newSchedule({ cron: "0 * * * *", ...wish }))).id;
}

/** Moves the whole history of the schedule into the past by this time. */
async function age(id: string, ms: number): Promise<void> {
  const values = [idToUuid(id), ms];
  const earlier = "- $2::float8 * interval '1 ms'";
  await gateway.query(
    `UPDATE timetables SET since = since ${earlier}, superseded_at = superseded_at ${earlier} WHERE schedule_id = $1`,
    values,
  );
  await gateway.query(`UPDATE firings SET fired_for = fired_for ${earlier} WHERE schedule_id = $1`, values);
}

/** Fires the schedule as its shard's owner would: with a job, or without one where no quota was left. */
async function fire(id: string, at: number, jobId: string | null): Promise<void> {
  const values = [idToUuid(id), new Date(at), jobId === null ? null : idToUuid(jobId)];
  await gateway.query("INSERT INTO firings (schedule_id, fired_for, job_id) VALUES ($1, $2, $3)", values);
}

const setNext = (id: string, at: number) =>
  gateway.query("UPDATE schedules SET next_run_at = $2 WHERE id = $1", [idToUuid(id), new Date(at)]);

async function ledgerOf(id: string, query: FiringListQuery = {}, owner = schedules): Promise<Firing[]> {
  const ledger: Firing[] = [];
  for await (const firing of owner.firings(id, { limit: 200, ...query })) ledger.push(firing);
  return ledger;
}
const briefly = (ledger: Firing[]) => ledger.map(({ at, status }) => `${at} ${status}`);
const statusCounts = (ledger: Firing[]) =>
  Object.fromEntries(
    [...Map.groupBy(ledger, ({ status }) => status)].map(([name, { length }]) => [name, length]),
  );
const iso = (at: number) => new Date(at).toISOString();
/** The full hour this many hours ago; 0 is the hour that has begun last. */
const hoursAgo = (count: number) => Math.floor(Date.now() / HOUR_MS - count) * HOUR_MS;

describe("GET /v2/schedules/{id}/firings", () => {
  test("is empty for a new schedule", async () => {
    expect(await schedules.firings(await create())).toEqual({ data: [], next_cursor: null });
  });

  test("shows what became of every instant, newest first", async () => {
    const id = await create();
    await age(id, 4 * HOUR_MS);
    const { id: jobId } = await schedules.run(id);
    await fire(id, hoursAgo(0), jobId);
    await fire(id, hoursAgo(1), null);
    const facts = { job_id: null, moved_dst: false };
    const local = (at: number) => iso(at).replace(".000Z", "+00:00");
    expect((await schedules.firings(id)).data).toEqual([
      { ...facts, at: iso(hoursAgo(0)), local_time: local(hoursAgo(0)), status: "fired", job_id: jobId },
      { ...facts, at: iso(hoursAgo(1)), local_time: local(hoursAgo(1)), status: "skipped_quota" },
      { ...facts, at: iso(hoursAgo(2)), local_time: local(hoursAgo(2)), status: "missed_outage" },
      { ...facts, at: iso(hoursAgo(3)), local_time: local(hoursAgo(3)), status: "missed_outage" },
    ]);
  });

  test("shows what was skipped for an overlap, what was replaced, and when a spread job is due", async () => {
    const id = await create();
    await age(id, 4 * HOUR_MS);
    const jobId = "job_01arz3ndektsv4rrffq69g5fav";
    for (const hours of [0, 1, 2]) await fire(id, hoursAgo(hours), hours === 1 ? null : jobId);
    const set = (hours: number, values: string) =>
      gateway.query(`UPDATE firings SET ${values} WHERE schedule_id = $1 AND fired_for = $2`, [
        idToUuid(id),
        new Date(hoursAgo(hours)),
      ]);
    await set(0, "due_at = fired_for + interval '1234 ms'");
    await set(1, "skipped_for = 1");
    await set(2, "replaced = 7");
    const facts = { local_time: expect.any(String), moved_dst: false };
    const fired = { ...facts, status: "fired", job_id: jobId };
    expect((await schedules.firings(id)).data.slice(0, 3)).toEqual([
      { ...fired, at: iso(hoursAgo(0)), due_at: iso(hoursAgo(0) + 1_234) },
      { ...facts, at: iso(hoursAgo(1)), status: "skipped_overlap", job_id: null },
      { ...fired, at: iso(hoursAgo(2)), replaced: 7 },
    ] as Firing[]);
  });

  test("shows no instant that is due and not fired yet", async () => {
    const id = await create();
    await age(id, 5 * HOUR_MS);
    await setNext(id, hoursAgo(2));
    expect(briefly(await ledgerOf(id))).toEqual(
      [3, 4].map((hours) => `${iso(hoursAgo(hours))} missed_outage`),
    );
    await fire(id, hoursAgo(0), null);
    await setNext(id, hoursAgo(-1));
    expect(statusCounts(await ledgerOf(id))).toEqual({ skipped_quota: 1, missed_outage: 4 });
  });

  test("shows what was skipped while paused: from the pause to the resumption, or up to now", async () => {
    const id = await create();
    await age(id, 2 * HOUR_MS);
    await schedules.pause(id);
    await age(id, 3 * HOUR_MS);
    await schedules.resume(id);
    await age(id, 4 * HOUR_MS);
    await schedules.pause(id);
    await age(id, 5 * HOUR_MS);
    const spans = [
      ...Array(5).fill("skipped_paused"),
      ...Array(4).fill("missed_outage"),
      ...Array(3).fill("skipped_paused"),
      ...Array(2).fill("missed_outage"),
    ];
    expect(briefly(await ledgerOf(id))).toEqual(
      spans.map((status, hours) => `${iso(hoursAgo(hours))} ${status}`),
    );
  });

  test("shows an instant as skipped by the pause if the pause came before it was fired", async () => {
    const id = await create();
    await age(id, 4 * HOUR_MS);
    await setNext(id, hoursAgo(1));
    await schedules.pause(id);
    for (const limit of [200, 1]) {
      expect(statusCounts(await ledgerOf(id, { limit }))).toEqual({ skipped_paused: 2, missed_outage: 2 });
    }
  });

  test("keeps what fired under an earlier expression or zone", async () => {
    const id = await create({ cron: "0 12 * * *" });
    await age(id, 3 * DAY_MS);
    await schedules.update(id, { timezone: "Asia/Kolkata" });
    await age(id, 3 * DAY_MS);
    await schedules.update(id, { cron: "0 0 13 * * *" });
    await age(id, 3 * DAY_MS);
    await schedules.update(id, { payload: { of: "no interest" } });
    const ledger = await ledgerOf(id);
    expect(ledger.map(({ local_time }) => local_time.slice(11))).toEqual([
      ...Array(3).fill("13:00:00+05:30"),
      ...Array(3).fill("12:00:00+05:30"),
      ...Array(3).fill("12:00:00+00:00"),
    ]);
  });

  test("marks an instant that a clock change moved, with the local time at which it fired", async () => {
    const id = await create({ cron: "30 2 * * *", timezone: "Europe/Berlin" });
    await age(id, 364 * DAY_MS);
    const moved = (await ledgerOf(id)).filter(({ moved_dst }) => moved_dst);
    expect(moved.map(({ local_time }) => local_time.slice(5))).toEqual([
      expect.stringMatching(/^03-\d\dT03:30:00\+02:00$/),
    ]);
  });

  test("shows each instant once over all pages, whatever fires meanwhile", async () => {
    const id = await create();
    await age(id, 60 * HOUR_MS);
    await setNext(id, hoursAgo(20));
    const expected = briefly(await ledgerOf(id));
    expect(expected).toHaveLength(39);
    const walked: Firing[] = [];
    let left = 20;
    for await (const page of schedules.firings(id, { limit: 4 }).pages()) {
      expect(page.data.length).toBeLessThanOrEqual(4);
      walked.push(...page.data);
      await fire(id, hoursAgo(left), null);
      left--;
      await setNext(id, hoursAgo(left));
    }
    expect(briefly(walked)).toEqual(expected);
    const sizes = [];
    for await (const { data } of schedules.firings(id, { limit: 7 }).pages()) sizes.push(data.length);
    expect(sizes).toEqual([...Array(7).fill(7)]);
  });

  test.each(PLANS.map((plan) => [plan, PLAN_TERMS[plan].retentionDays] as const))(
    "of a %s project goes back %d days",
    async (plan, days) => {
      const own = await gateway.addProject(plan);
      const mine = clientOf(gateway, own.production).schedules;
      const id = await create({ cron: "@daily" }, mine);
      await age(id, 400 * DAY_MS);
      await fire(id, Math.floor(Date.now() / DAY_MS - 395) * DAY_MS, null);
      const ledger = await ledgerOf(id, {}, mine);
      expect(ledger).toHaveLength(days);
      expect(Date.parse(ledger.at(-1)?.at ?? "")).toBeGreaterThan(Date.now() - days * DAY_MS);
    },
  );

  test("applies the retention of the project's present plan", async () => {
    const own = await gateway.addProject("hobby");
    const id = await create({ cron: "@daily" }, clientOf(gateway, own.production).schedules);
    await age(id, 100 * DAY_MS);
    await gateway.query("UPDATE projects SET plan = 'pro' WHERE no = $1", [own.no]);
    const { key } = await gateway.addKey(own, {});
    expect(await ledgerOf(id, {}, clientOf(gateway, key).schedules)).toHaveLength(30);
  });

  test("walks over thousands of changes, also when pages of them hold no firing", async () => {
    const id = await create({ cron: "0 * * * *" });
    await age(id, 2 * DAY_MS);
    const insert = (every: string) =>
      gateway.query(
        `INSERT INTO timetables (since, schedule_id, paused, cron, timezone)
         SELECT now() - n * $2::interval, $1, n % 2 = 0, '*/30 * * * * *', 'UTC' FROM generate_series(1100, 1, -1) n`,
        [idToUuid(id), every],
      );
    await insert("30 s");
    const ledger = await ledgerOf(id);
    expect(statusCounts(ledger)).toMatchObject({ skipped_paused: 550 });
    // The other firings are those before the changes: the hours from 48 to 10 ago.
    expect(ledger.length - 1_100).toBeGreaterThanOrEqual(38);
    // These changes lie within about one second, into which no firing falls.
    await passNearEnd(30_000);
    const sinceFiringMs = Date.now() % 30_000;
    if (sinceFiringMs < CLEAR_MS) await Bun.sleep(CLEAR_MS - sinceFiringMs);
    await insert("1 ms");
    const pages = [];
    for await (const page of schedules.firings(id, { limit: 200 }).pages()) pages.push(page.data);
    expect(pages.slice(1, 11)).toEqual(Array(10).fill([]));
    const rewritten = pages.flat();
    expect(rewritten.map(({ at }) => at)).toEqual(
      rewritten
        .map(({ at }) => at)
        .toSorted()
        .toReversed(),
    );
    expect(rewritten.length).toBeGreaterThan(1_100);
  });

  test.each([
    ["limit=0", "limit"],
    ["limit=201", "limit"],
    ["status=fired", "status"],
    ["cursor=", "cursor"],
    ["cursor=abc", "cursor"],
  ])("refuses ?%s", async (query, param) => {
    const path = `/v2/schedules/${await create()}/firings?${query}`;
    readRefusal(await gateway.call("GET", path, { key: project.production }), "invalid_request", param);
  });

  test("accepts a cursor of this schedule only", async () => {
    const [one, other] = [await create(), await create()];
    for (const id of [one, other]) await age(id, 5 * HOUR_MS);
    const { data, next_cursor } = await schedules.firings(one, { limit: 1 });
    const get = (path: string) =>
      gateway.call("GET", `/v2/schedules${path}cursor=${next_cursor}`, { key: project.production });
    readRefusal(await get(`/${other}/firings?`), "invalid_request", "cursor");
    readRefusal(await get("?"), "invalid_request", "cursor");
    const next = await schedules.firings(one, { limit: 1, cursor: next_cursor ?? "" });
    expect(Date.parse(data[0]?.at ?? "") - Date.parse(next.data[0]?.at ?? "")).toBe(HOUR_MS);
  });
});

describe("the ledger of a schedule", () => {
  test("has the firing that came while the schedule was being created", async () => {
    // All connections wait for the project. Some statements begin after the instant, although decided before it.
    let instant = 0;
    let early: Schedule[] = [];
    // A machine that stands still may decide all of them after the instant.
    for (let round = 0; round < ROUNDS_MAX && early.length === 0; round++) {
      const [passed, made] = await passInstant(gateway, project, (cron) =>
        Promise.all(Array.from({ length: 12 }, () => schedules.create(newSchedule({ cron })))),
      );
      instant = passed;
      early = made.filter(({ next_run_at }) => next_run_at === iso(instant));
    }
    expect(early.length).toBeGreaterThan(0);
    for (const { id } of early) {
      await fire(id, instant, null);
      await setNext(id, instant + 60_000);
      expect(briefly(await ledgerOf(id))).toEqual([`${iso(instant)} skipped_quota`]);
    }
  });

  test("leaves out an instant for which a change came too late", async () => {
    const id = await create();
    const [instant, { next_run_at }] = await passInstant(gateway, project, (cron) =>
      schedules.update(id, { cron }),
    );
    expect(next_run_at).toBe(iso(instant + 60_000));
    expect(await ledgerOf(id)).toEqual([]);
  });
});
