import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Schedules } from "../../../shared/client/index.ts";
import { clientOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { newSchedule } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;
let schedules: Schedules;
beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  schedules = clientOf(gateway, project.production).schedules;
});
afterAll(() => gateway.stop());

describe("tags of a schedule", () => {
  test("stand in every view of it, and go to its jobs as they are at that moment", async () => {
    const made = await schedules.create(newSchedule({ tags: ["b", "a"] }));
    expect(made.tags).toEqual(["b", "a"]);
    expect(await schedules.get(made.id)).toEqual(made);
    expect((await schedules.list({})).data.find(({ id }) => id === made.id)).toEqual(made);
    const first = await schedules.run(made.id);
    const updated = await schedules.update(made.id, { tags: ["c"] });
    expect(updated).toEqual({ ...made, tags: ["c"] });
    const second = await schedules.run(made.id);
    expect([first.tags, second.tags]).toEqual([["b", "a"], ["c"]]);
    // The job that was created before keeps its tags.
    expect((await clientOf(gateway, project.production).jobs.get(first.id)).tags).toEqual(["b", "a"]);
  });

  test("are taken away by an empty list, and are not shown any more", async () => {
    const { tags: _, ...made } = await schedules.create(newSchedule({ tags: ["a"] }));
    const cleared = await schedules.update(made.id, { tags: [] });
    expect(cleared).toEqual(made);
    expect(Object.keys(cleared)).not.toContain("tags");
    expect(Object.keys(await schedules.run(made.id))).not.toContain("tags");
  });

  test("stay when something else changes, and changing them leaves the next firing as it is", async () => {
    const made = await schedules.create(newSchedule({ tags: ["a"] }));
    expect((await schedules.update(made.id, { payload: { n: 1 } })).tags).toEqual(["a"]);
    await gateway.query("UPDATE schedules SET next_run_at = '2099-05-05T05:05:05Z' WHERE name = $1", [
      made.name,
    ]);
    expect(await schedules.update(made.id, { tags: ["b"] })).toMatchObject({
      tags: ["b"],
      next_run_at: "2099-05-05T05:05:05.000Z",
    });
  });

  test("are those of the first answer when it is created again under its key", async () => {
    const body = newSchedule({ tags: ["a"] });
    const create = () =>
      gateway.call("POST", "/v2/schedules", {
        key: project.production,
        body,
        headers: { "Idempotency-Key": "tagged schedule" },
      });
    const [first, second] = [await create(), await create()];
    expect([first.status, second.text]).toEqual([201, first.text]);
    expect(JSON.parse(second.text).tags).toEqual(["a"]);
  });

  test.each([
    ["POST", [], "tags"],
    ["POST", null, "tags"],
    ["POST", ["a", "a"], "tags[1]"],
    ["POST", ["a b"], "tags[0]"],
    ["PATCH", null, "tags"],
    ["PATCH", Array.from({ length: 11 }, (_, n) => `t${n}`), "tags"],
    ["PATCH", ["a", ""], "tags[1]"],
  ])("of a %s are refused as %j", async (method, tags, param) => {
    const made = await schedules.create(newSchedule({ tags: ["kept"] }));
    const path = method === "POST" ? "/v2/schedules" : `/v2/schedules/${made.id}`;
    const body = method === "POST" ? { ...newSchedule(), tags } : { tags };
    readRefusal(
      await gateway.call(method, path, { key: project.production, body }),
      "invalid_request",
      param,
    );
    expect((await schedules.get(made.id)).tags).toEqual(["kept"]);
  });
});
