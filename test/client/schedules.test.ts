import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { type ApiError, type Client, createClient } from "../../shared/client/index.ts";
import { idToUuid } from "../../shared/domain/ids.ts";
import { passNearEnd } from "../support/boundary.ts";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../support/gateway.ts";
import { type FaultyProxy, startFaultyProxy } from "./faulty-proxy.ts";

let gateway: TestGateway;
let proxy: FaultyProxy;
let project: TestProject;
let client: Client;

beforeAll(async () => {
  gateway = await startTestGateway();
});
afterAll(() => gateway.stop());
beforeEach(async () => {
  proxy = await startFaultyProxy(gateway);
  project = await gateway.addProject();
  client = createClient({ baseUrl: proxy.url, apiKey: project.production, sleep: async () => undefined });
  return () => proxy.stop();
});

const fields = { name: "nightly", cron: "@hourly", target_url: TARGET_URL };

describe("a schedule's request by the client, whose answers are lost several times,", () => {
  test("makes one schedule, and one job when it is run", async () => {
    proxy.faults.push("answer lost", "answer cut in half");
    const { result, answer } = await client.schedules.create(fields).withAnswer();
    expect([result.name, answer.isReplayed]).toEqual(["nightly", true]);
    expect((await client.schedules.list()).data).toEqual([result]);
    proxy.faults.push("answer lost", "answer lost");
    const job = await client.schedules.run(result.id);
    expect((await client.jobs.list()).data).toMatchObject([{ id: job.id }]);
  });

  test("changes the schedule as asked, and previews without a key", async () => {
    const { id } = await client.schedules.create(fields);
    proxy.faults.push("answer lost");
    expect(await client.schedules.pause(id)).toMatchObject({ paused: true });
    const before = await gateway.countRows();
    proxy.requests.length = 0;
    proxy.faults.push("answer lost");
    expect((await client.schedules.preview({ cron: "@daily" })).firings).toHaveLength(5);
    expect(proxy.valuesOf("idempotency-key")).toEqual(["", ""]);
    expect(await gateway.countRows()).toEqual(before);
  });

  test("deletes the schedule, and reports that it is gone", async () => {
    const { id } = await client.schedules.create(fields);
    proxy.faults.push("answer lost");
    const error = await client.schedules.delete(id).catch((thrown: unknown) => thrown);
    expect((error as ApiError).code).toBe("resource_not_found");
    expect((await client.schedules.list()).data).toEqual([]);
  });
});

test("the client's list of a schedule's firings walks over all pages, newest first", async () => {
  await passNearEnd(3_600_000);
  const { id } = await client.schedules.create(fields);
  await gateway.query("UPDATE timetables SET since = now() - interval '1 day' WHERE schedule_id = $1", [
    idToUuid(id),
  ]);
  proxy.requests.length = 0;
  const instants: number[] = [];
  for await (const { at, status } of client.schedules.firings(id, { limit: 10 })) {
    expect(status).toBe("missed_outage");
    instants.push(Date.parse(at));
  }
  expect(instants).toHaveLength(24);
  expect(instants).toEqual(instants.toSorted((a, b) => b - a));
  expect(proxy.requests).toHaveLength(3);
});
