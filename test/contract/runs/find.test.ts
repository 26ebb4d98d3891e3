import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { RunListQuery } from "../../../shared/client/index.ts";
import { clientOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { newSchedule } from "../schedules/support.ts";

let gateway: TestGateway;
let project: TestProject;
beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const get = (query: string) => gateway.call("GET", `/v2/runs?${query}`, { key: project.production });

describe("GET /v2/runs", () => {
  test("filters by tag, schedule and start, each alone, two at a time, and with status and job", async () => {
    const { schedules, runs } = clientOf(gateway, project.production);
    const schedule = await schedules.create(newSchedule({ tags: ["a"] }));
    const plain = await gateway.createJob(project);
    const tagged = await gateway.createJob(project, { tags: ["a", "b"] });
    const fired = await schedules.run(schedule.id);
    const of = async (job: typeof plain, attempt: number, outcome: "failed" | "succeeded" | null) =>
      outcome === null
        ? (await gateway.claim(project, job, attempt)).runId
        : (
            await gateway.attempt(project, job, attempt, {
              status: outcome,
              leaves: outcome === "failed" ? "queued" : "succeeded",
            })
          ).runId;
    const first = await of(plain, 1, "failed");
    const second = await of(tagged, 1, "failed");
    const third = await of(fired, 1, "succeeded");
    const fourth = await of(tagged, 2, null);
    const found = async (query: RunListQuery) => (await runs.list(query)).data.map(({ id }) => id);

    expect(await found({ tag: "a" })).toEqual([fourth, third, second]);
    expect(await found({ tag: "b" })).toEqual([fourth, second]);
    expect(await found({ tag: "c" })).toEqual([]);
    expect(await found({ tag: "a", status: "running" })).toEqual([fourth]);
    expect(await found({ tag: "a", status: "succeeded" })).toEqual([third]);
    expect(await found({ tag: "a", job_id: tagged.id })).toEqual([fourth, second]);
    expect(await found({ tag: "a", job_id: plain.id })).toEqual([]);
    expect(await found({ schedule_id: schedule.id })).toEqual([third]);
    expect(await found({ schedule_id: schedule.id, status: "failed" })).toEqual([]);
    expect(await found({ schedule_id: schedule.id, tag: "a" })).toEqual([third]);
    expect(await found({ schedule_id: schedule.id, job_id: tagged.id })).toEqual([]);
    expect(await found({ schedule_id: "nonsense" })).toEqual([]);

    const all = await Promise.all([fourth, third, second, first].map((id) => runs.get(id)));
    const [from, until] = [all[3]?.started_at ?? "", all[0]?.started_at ?? ""];
    const between = all.filter((run) => run.started_at > from && run.started_at < until).map(({ id }) => id);
    expect(await found({ started_after: from, started_before: until })).toEqual(between);
    expect(await found({ started_after: from, started_before: until, tag: "b" })).toEqual(
      between.filter((id) => id === second),
    );
    expect(await found({ started_after: new Date(0) })).toEqual([fourth, third, second, first]);
    expect(await found({ started_after: until, started_before: from })).toEqual([]);
    // A run shows no tags.
    for (const run of all) expect(Object.keys(run)).not.toContain("tags");
  });

  test("goes on with a cursor under the same filters alone", async () => {
    const job = await gateway.createJob(project, { tags: ["paged"] });
    const runIds: string[] = [];
    for (let attempt = 1; attempt <= 3; attempt++)
      runIds.push(
        (await gateway.attempt(project, job, attempt, { status: "failed", leaves: "queued" })).runId,
      );
    const seen: string[] = [];
    const { runs } = clientOf(gateway, project.production);
    for await (const run of runs.list({ tag: "paged", started_after: new Date(0), limit: 1 }))
      seen.push(run.id);
    expect(seen).toEqual(runIds.toReversed());
    const { next_cursor: cursor } = await runs.list({ tag: "paged", limit: 1 });
    for (const query of [
      "",
      "tag=other&",
      "tag=paged&status=failed&",
      "tag=paged&started_after=2026-01-01T00:00:00Z&",
    ])
      readRefusal(await get(`${query}cursor=${cursor}`), "invalid_request", "cursor");
  });

  test.each([
    ["tag=", "tag"],
    ["tag=a+b", "tag"],
    ["started_after=", "started_after"],
    ["started_before=2026-11-21", "started_before"],
    ["created_after=2026-11-21T10:00:00Z", "created_after"],
    ["schedule_id=a&schedule_id=a", "schedule_id"],
  ])("refuses ?%s", async (query, param) => {
    readRefusal(await get(query), "invalid_request", param);
  });
});
