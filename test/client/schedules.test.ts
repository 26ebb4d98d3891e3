import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { type ApiError, type Client, createClient } from "../../shared/client/index.ts";
import { idToUuid } from "../../shared/domain/ids.ts";
import { passNearEnd } from "../support/boundary.ts";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../support/gateway.ts";
import { type FaultyRoad, startFaultyRoad } from "./faulty-road.ts";

let gateway: TestGateway;
let road: FaultyRoad;
let project: TestProject;
let client: Client;

beforeAll(async () => {
  gateway = await startTestGateway();
});
afterAll(() => gateway.stop());
beforeEach(async () => {
  road = await startFaultyRoad(gateway);
  project = await gateway.addProject();
  client = createClient({ baseUrl: road.url, apiKey: project.production, sleep: async () => undefined });
  return () => road.stop();
});

const fields = { name: "nightly", cron: "@hourly", target_url: TARGET_URL };

describe("a request for a schedule whose answers are lost again and again", () => {
  test("makes one schedule, and one job of it", async () => {
    road.faults.push("answer lost", "answer cut in half");
    const { result, answer } = await client.schedules.create(fields).withAnswer();
    expect([result.name, answer.isReplayed]).toEqual(["nightly", true]);
    expect((await client.schedules.list()).data).toEqual([result]);
    road.faults.push("answer lost", "answer lost");
    const job = await client.schedules.run(result.id);
    expect((await client.jobs.list()).data).toMatchObject([{ id: job.id }]);
  });

  test("changes it to what was asked for, and previews without a key", async () => {
    const { id } = await client.schedules.create(fields);
    road.faults.push("answer lost");
    expect(await client.schedules.pause(id)).toMatchObject({ paused: true });
    const before = await gateway.countRows();
    road.requests.length = 0;
    road.faults.push("answer lost");
    expect((await client.schedules.preview({ cron: "@daily" })).firings).toHaveLength(5);
    expect(road.valuesOf("idempotency-key")).toEqual(["", ""]);
    expect(await gateway.countRows()).toEqual(before);
  });

  test("deletes it, and says that it is gone", async () => {
    const { id } = await client.schedules.create(fields);
    road.faults.push("answer lost");
    const error = await client.schedules.delete(id).catch((thrown: unknown) => thrown);
    expect((error as ApiError).code).toBe("resource_not_found");
    expect((await client.schedules.list()).data).toEqual([]);
  });
});

test("the firings of a schedule are walked over all pages, the newest first", async () => {
  await passNearEnd(3_600_000);
  const { id } = await client.schedules.create(fields);
  await gateway.query("UPDATE timetables SET since = now() - interval '1 day' WHERE schedule_id = $1", [
    idToUuid(id),
  ]);
  road.requests.length = 0;
  const instants: number[] = [];
  for await (const { at, status } of client.schedules.firings(id, { limit: 10 })) {
    expect(status).toBe("missed_outage");
    instants.push(Date.parse(at));
  }
  expect(instants).toHaveLength(24);
  expect(instants).toEqual(instants.toSorted((a, b) => b - a));
  expect(road.requests).toHaveLength(3);
});
