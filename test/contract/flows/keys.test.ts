import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import type { Client } from "../../../shared/client/index.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import {
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { fillFlows } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;
let client: Client;
beforeAll(async () => {
  gateway = await startTestGateway();
});
beforeEach(async () => {
  project = await gateway.addProject();
  client = clientOf(gateway, project.production);
});
afterAll(() => gateway.stop());

const call = (method: string, path: string, body?: object | string, key = project.production) =>
  gateway.call(method, path, { key, ...(body === undefined ? {} : { body }) });
const UNLIMITED = {
  ...{ concurrency: null, rate: null, paused: false, pinned: false },
  ...{ in_use: 0, waiting: 0, next_start_at: null },
};

describe("PATCH /v2/flows/{key}", () => {
  test("makes a key that is not known, changes what is given, and takes limits away by null", async () => {
    const { flows } = client;
    await refusalOf(flows.get("a"), "resource_not_found");
    expect(await flows.update("a", {})).toEqual({ key: "a", ...UNLIMITED });
    const rate = { count: 50, per_seconds: 60 };
    const limited = { key: "a", ...UNLIMITED, concurrency: 2, rate, pinned: true };
    expect(await flows.update("a", { concurrency: 2, rate, pinned: true })).toEqual(limited);
    expect(await flows.get("a")).toEqual(limited);
    expect(await flows.update("a", {})).toEqual(limited);
    expect(await flows.pause("a")).toEqual({ ...limited, paused: true });
    const other = { ...rate, count: 1 };
    expect(await flows.update("a", { rate: other })).toEqual({ ...limited, rate: other, paused: true });
    expect(await flows.update("a", { rate: null, paused: false })).toEqual({ ...limited, rate: null });
    expect(await flows.update("a", { concurrency: null, pinned: false })).toEqual({ key: "a", ...UNLIMITED });
  });

  test.each<[object | string, string | undefined]>([
    ["[]", undefined],
    [{ key: "b" }, "key"],
    [{ hold: "job" }, "hold"],
    [{ concurrency: 0 }, "concurrency"],
    [{ concurrency: 2_001 }, "concurrency"],
    [{ concurrency: "1" }, "concurrency"],
    [{ rate: { count: 5 } }, "rate.per_seconds"],
    [{ rate: { count: 0, per_seconds: 1 } }, "rate.count"],
    [{ rate: { count: 1, per_seconds: 86_401 } }, "rate.per_seconds"],
    [{ rate: { count: 1, per_seconds: 1, x: 1 } }, "rate.x"],
    [{ rate: [] }, "rate"],
    [{ paused: null }, "paused"],
    [{ paused: 1 }, "paused"],
    [{ pinned: null }, "pinned"],
  ])("refuses %j, and leaves no trace", async (body, param) => {
    const before = await gateway.countRows();
    readRefusal(await call("PATCH", "/v2/flows/a", body), "invalid_request", param);
    const { rate_windows: _, ...after } = await gateway.countRows();
    expect({ ...before, ...after }).toEqual(before);
  });

  test("keeps as many keys as an environment may have pinned or paused, and refuses one more without a trace", async () => {
    await fillFlows(gateway, project);
    const before = await gateway.countRows();
    for (const change of [{ pinned: true }, { paused: true, concurrency: 1 }])
      readRefusal(await call("PATCH", "/v2/flows/a", change), "plan_limit_exceeded");
    const { rate_windows: _, ...after } = await gateway.countRows();
    expect({ ...before, ...after }).toEqual(before);
    const { flows } = client;
    expect(await flows.update("a", { concurrency: 1 })).toMatchObject({ concurrency: 1 });
    expect(await flows.pause("kept1")).toMatchObject({ paused: true, pinned: true });
    await clientOf(gateway, project.development).flows.pause("a");
    await flows.update("kept1", { paused: false, pinned: false });
    expect(await flows.pause("a")).toMatchObject({ paused: true, concurrency: 1 });
  });

  test("of the same key at the same time ends with the changes of all", async () => {
    const { flows } = client;
    const rate = { count: 7, per_seconds: 8 };
    await Promise.all([
      ...[flows.update("a", { concurrency: 3 }), flows.update("a", { rate })],
      ...[flows.pause("a"), flows.update("a", { pinned: true })],
    ]);
    expect(await flows.get("a")).toMatchObject({ concurrency: 3, rate, paused: true, pinned: true });
  });
});

describe("a key in a path", () => {
  test.each(["a/b", "a+b", "...", "a%", "A:@-_.", "batch", "by-name", "x".repeat(64)])(
    "may be %j",
    async (text) => {
      const key = text.replace("%", "");
      await client.flows.update(key, { concurrency: 5 });
      expect((await client.flows.get(key)).key).toBe(key);
      expect((await client.flows.list()).data.map((flow) => flow.key)).toEqual([key]);
    },
  );

  test.each([
    "a%20b",
    "%2E",
    "%2e%2e",
    "..",
    "a%5Cb",
    "a%00",
    "%ff",
    "a%",
    "x".repeat(65),
    "a/b",
    "a%23b",
    "%C3%A4",
  ])("that is no key is not found: %s", async (path) => {
    for (const [method, body] of [["GET"], ["PATCH", {}]] as const)
      readRefusal(await call(method, `/v2/flows/${path}`, body), "resource_not_found");
    expect((await client.flows.list()).data).toEqual([]);
  });

  test("is of one environment, and of one project", async () => {
    await client.flows.update("a", { concurrency: 5 });
    const stranger = await gateway.addProject();
    for (const key of [project.development, stranger.production]) {
      const { flows } = clientOf(gateway, key);
      await refusalOf(flows.get("a"), "resource_not_found");
      expect((await flows.list()).data).toEqual([]);
      await flows.update("a", { concurrency: 6 });
    }
    expect((await client.flows.get("a")).concurrency).toBe(5);
  });
});

describe("GET /v2/flows", () => {
  test("lists the keys in ascending order of bytes, page by page", async () => {
    const keys = ["+", "-", "A", "B", "_", "a", "a.", "a/", "a0", "aa", "b"];
    for (const key of keys.toReversed()) await client.flows.update(key, {});
    expect((await client.flows.list()).data.map(({ key }) => key)).toEqual(keys);
    const walked: string[] = [];
    for await (const { key } of client.flows.list({ limit: 2 })) walked.push(key);
    expect(walked).toEqual(keys);
  });

  test("takes no filters, and no cursor of another list or environment", async () => {
    for (const key of ["a", "b"]) await client.flows.update(key, {});
    const { next_cursor: cursor } = await client.flows.list({ limit: 1 });
    for (const query of ["key=a", "paused=true", "limit=0", "cursor=x"])
      readRefusal(await call("GET", `/v2/flows?${query}`), "invalid_request", query.split("=")[0]);
    const at = `cursor=${cursor}`;
    readRefusal(await call("GET", `/v2/jobs?${at}`), "invalid_request", "cursor");
    readRefusal(
      await call("GET", `/v2/flows?${at}`, undefined, project.development),
      "invalid_request",
      "cursor",
    );
    readRefusal(await call("GET", "/v2/flows/a?x=1"), "invalid_request", "x");
  });
});

test("keys of scope jobs read and change flows, and keys of scope read read them", async () => {
  const [jobs, read] = await Promise.all(
    (["jobs", "read"] as const).map(async (scope) => (await gateway.addKey(project, { scope })).key),
  );
  expect((await call("PATCH", "/v2/flows/a", {}, jobs)).status).toBe(200);
  readRefusal(await call("PATCH", "/v2/flows/a", {}, read), "insufficient_scope");
  for (const key of [jobs, read])
    for (const path of ["/v2/flows", "/v2/flows/a"])
      expect((await call("GET", path, undefined, key)).status).toBe(200);
  expect((await call("DELETE", "/v2/flows/a")).headers.get("allow")).toBe("GET, HEAD, PATCH");
});

test("a key tells what of it is in use and what waits for it", async () => {
  const { jobs, flows } = client;
  const flow = { key: "a", concurrency: 1 };
  const first = await jobs.create({ target_url: TARGET_URL, flow });
  for (let n = 0; n < 2; n++) await jobs.create({ target_url: TARGET_URL, flow, region: "us-west" });
  await gateway.claim(project, first, 1);
  expect(await flows.get("a")).toMatchObject({ concurrency: 1, in_use: 1, waiting: 2 });
});
