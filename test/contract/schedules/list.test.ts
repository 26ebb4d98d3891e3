import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Page, Schedule, ScheduleListQuery } from "../../../shared/client/index.ts";
import { PAYLOAD_BYTES_MAX } from "../../../shared/domain/job.ts";
import { clientOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { newSchedule } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const schedulesOf = (owner: TestProject) => clientOf(gateway, owner.production).schedules;
const list = (owner: TestProject, query?: ScheduleListQuery) => schedulesOf(owner).list(query);
const get = (query: string, key = project.production) =>
  gateway.call("GET", `/v2/schedules${query}`, { key });
const idsOf = ({ data }: Page<Schedule>) => data.map(({ id }) => id);

/** Creates schedules. Answers them in the order of their creation. */
async function addSchedules(owner: TestProject, count: number): Promise<Schedule[]> {
  const made: Schedule[] = [];
  for (let n = 0; n < count; n++) made.push(await schedulesOf(owner).create(newSchedule()));
  return made;
}

describe("GET /v2/schedules", () => {
  test("answers an empty list in an environment without schedules", async () => {
    expect(await list(project)).toEqual({ data: [], next_cursor: null });
  });

  test("answers whole schedules of the one environment, newest first", async () => {
    const own = await gateway.addProject();
    const made = await addSchedules(own, 3);
    await clientOf(gateway, own.development).schedules.create(newSchedule());
    expect(await list(own)).toEqual({ data: made.toReversed(), next_cursor: null });
  });

  test("shows the paused ones, the active ones, or all", async () => {
    const own = await gateway.addProject();
    const [first, second, third] = (await addSchedules(own, 3)).map(({ id }) => id) as [
      string,
      string,
      string,
    ];
    await schedulesOf(own).pause(second);
    expect(idsOf(await list(own))).toEqual([third, second, first]);
    expect(idsOf(await list(own, { paused: true }))).toEqual([second]);
    expect(idsOf(await list(own, { paused: false }))).toEqual([third, first]);
    await schedulesOf(own).delete(third);
    expect(idsOf(await list(own, { paused: false }))).toEqual([first]);
  });

  test("shows each schedule that stays exactly once over all pages while others are added, paused and deleted", async () => {
    const own = await gateway.addProject();
    const made = await addSchedules(own, 24);
    const gone = made.filter((_, index) => index % 4 === 0);
    const seen: string[] = [];
    for await (const page of list(own, { limit: 5 }).pages()) {
      expect(page.data.length).toBeLessThanOrEqual(5);
      seen.push(...idsOf(page));
      const [victim] = gone.splice(0, 1);
      if (victim !== undefined) await schedulesOf(own).delete(victim.id);
      await addSchedules(own, 1);
      await schedulesOf(own).pause(made[1]?.id ?? "");
    }
    expect(new Set(seen).size).toBe(seen.length);
    const stayed = made.filter((_, index) => index % 4 !== 0).map(({ id }) => id);
    expect(seen.filter((id) => stayed.includes(id))).toEqual(stayed.toReversed());
  });

  test("splits large schedules into several pages, whatever the limit", async () => {
    const own = await gateway.addProject();
    const payload = { x: "y".repeat(PAYLOAD_BYTES_MAX - 8) };
    for (let n = 0; n < 20; n++) await schedulesOf(own).create(newSchedule(n < 2 ? {} : { payload }));
    const sizes: number[] = [];
    const seen: string[] = [];
    for await (const page of list(own, { limit: 200 }).pages()) {
      sizes.push(page.data.length);
      seen.push(...idsOf(page));
      expect(JSON.stringify(page).length).toBeLessThan(4.5 * 1_048_576);
    }
    expect(sizes).toEqual([16, 4]);
    expect(seen).toEqual(seen.toSorted().toReversed());
    expect(new Set(seen).size).toBe(20);
  });

  test("answers no cursor when the last page is full, and the page size may change between pages", async () => {
    const own = await gateway.addProject();
    await addSchedules(own, 4);
    const first = await list(own, { limit: 1 });
    const second = await list(own, { limit: 3, cursor: first.next_cursor ?? "" });
    expect([second.data.length, second.next_cursor]).toEqual([3, null]);
  });

  test("has 50 schedules on a page by default", async () => {
    const own = await gateway.addProject();
    await Promise.all(Array.from({ length: 55 }, () => schedulesOf(own).create(newSchedule())));
    const first = await list(own);
    expect(first.data).toHaveLength(50);
    expect((await list(own, { limit: 200, cursor: first.next_cursor ?? "" })).data).toHaveLength(5);
  });

  test.each([
    ["limit=0", "limit"],
    ["limit=201", "limit"],
    ["limit=1e2", "limit"],
    ["paused=", "paused"],
    ["paused=1", "paused"],
    ["paused=True", "paused"],
    ["paused=true&paused=true", "paused"],
    ["status=paused", "status"],
    ["name=x", "name"],
    ["cursor=abc", "cursor"],
  ])("refuses ?%s", async (query, param) => {
    readRefusal(await get(`?${query}`), "invalid_request", param);
  });
});

describe("a cursor of GET /v2/schedules", () => {
  test("belongs to the one list with its filter", async () => {
    const made = await addSchedules(project, 4);
    const stranger = await gateway.addProject();
    const cursor = (await list(project, { limit: 1, paused: false })).next_cursor ?? "";
    const next = await list(project, { limit: 1, paused: false, cursor });
    expect(idsOf(next)).toEqual([made[2]?.id ?? ""]);
    const refused = [
      await get(`?cursor=${cursor}`),
      await get(`?paused=true&cursor=${cursor}`),
      await get(`?paused=false&cursor=${cursor}`, project.development),
      await get(`?paused=false&cursor=${cursor}`, stranger.production),
      await get(`?paused=false&cursor=${cursor.slice(0, -1)}`),
      await get(`/${made[0]?.id}/firings?cursor=${cursor}`),
      await gateway.call("GET", `/v2/jobs?cursor=${cursor}`, { key: project.production }),
    ];
    for (const answer of refused) readRefusal(answer, "invalid_request", "cursor");
  });
});
