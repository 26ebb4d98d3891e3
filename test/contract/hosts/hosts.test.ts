import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import type { Client } from "../../../shared/client/index.ts";
import { eventTypeOf } from "../../../shared/store/database/codes.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { fillHosts } from "./support.ts";

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

const call = (method: string, path: string, key = project.production, headers = {}) =>
  gateway.call(method, path, { key, headers });
const HOST = "api.example.com";

describe("POST /v2/hosts/{host}/park", () => {
  test("parks a host without probes until it is opened, and again changes nothing", async () => {
    const parked = await client.hosts.park(HOST);
    const { since } = parked;
    expect(parked).toEqual({ host: HOST, state: "down", by: "hand", since, parked: 0, next_probe_at: null });
    expect(Math.abs(Date.parse(since) - Date.now())).toBeLessThan(60_000);
    expect(await client.hosts.park(HOST)).toEqual(parked);
    expect((await client.hosts.list()).data).toEqual([parked]);
    expect((await client.hosts.list({ state: "down" })).data).toEqual([parked]);
    expect((await client.hosts.list({ state: "opening" })).data).toEqual([]);
  });

  test("is refused beyond the environment's limit, but for a host that is parked already", async () => {
    await fillHosts(gateway, project);
    await refusalOf(client.hosts.park("one-more.example.com"), "plan_limit_exceeded");
    expect((await client.hosts.park("7.example.com")).state).toBe("down");
    expect((await clientOf(gateway, project.development).hosts.park(HOST)).state).toBe("down");
    await client.hosts.open("7.example.com");
    expect((await client.hosts.park("one-more.example.com")).state).toBe("down");
  });
});

test("a host is parked and opened in a project that never had a job, and whose endpoint asks for events of hosts", async () => {
  await client.webhooks.create({ url: "https://endpoint.example/hook", events: ["host.down", "host.up"] });
  expect((await client.hosts.park(HOST)).state).toBe("down");
  expect((await client.hosts.open(HOST)).state).toBe("opening");
  const told = await gateway.query<{ type: number }>(
    `SELECT e.type FROM events e JOIN open_deliveries o ON o.project_no = e.project_no AND o.event_id = e.id
      WHERE e.project_no = $1 ORDER BY e.type`,
    [project.no],
  );
  expect(told.map(({ type }) => eventTypeOf(type))).toEqual(["host.down", "host.up"]);
});

test("POST /v2/hosts/{host}/open opens a host, whether or not it was parked", async () => {
  await client.hosts.park(HOST);
  for (const host of [HOST, HOST, "other.example.com"]) {
    expect(await client.hosts.open(host)).toMatchObject({
      ...{ host, state: "opening", by: "hand", parked: 0, next_probe_at: null },
    });
  }
  expect((await client.hosts.list({ state: "down" })).data).toEqual([]);
});

test("an Idempotency-Key has the first answer again, whatever has become of the host", async () => {
  const headers = { "Idempotency-Key": "once" };
  for (const act of ["park", "open"]) {
    const first = await call("POST", `/v2/hosts/${HOST}/${act}`, project.production, headers);
    expect(first.status).toBe(200);
    await call("POST", `/v2/hosts/${HOST}/${act === "park" ? "open" : "park"}`);
    const again = await call("POST", `/v2/hosts/${HOST}/${act}`, project.production, headers);
    expect([again.status, again.text]).toEqual([200, first.text]);
    expect(again.headers.get("idempotent-replayed")).toBe("true");
  }
});

describe("a host in a path", () => {
  test.each([
    ["API.Example.COM", HOST],
    ["api.example.com.", HOST],
    ["10.0.0.1", "10.0.0.1"],
    ["0x7f.1", "127.0.0.1"],
    ["%5B2001:DB8::1%5D", "[2001:db8::1]"],
    ["b%C3%BCcher.example", "xn--bcher-kva.example"],
    ["localhost", "localhost"],
    ["a_b.example", "a_b.example"],
  ])("%s is %s", async (path, host) => {
    const answer = await call("POST", `/v2/hosts/${path}/park`);
    expect([answer.status, JSON.parse(answer.text).host]).toEqual([200, host]);
    expect((await client.hosts.list()).data.map((one) => one.host)).toEqual([host]);
  });

  test.each([
    ...[
      "a.example:443",
      "a%20b",
      "a%2Fb",
      "%40a.example",
      "a%00",
      "%",
      "%ff",
      "a..example",
      ".example",
      "%5B::1",
      "a%23b",
    ],
    ...[`${"a".repeat(64)}.example`, `${"a.".repeat(127)}b`, "300.1.1.1", "%2E%2E"],
  ])("that no target has is not found: %s", async (path) => {
    for (const act of ["park", "open"])
      readRefusal(await call("POST", `/v2/hosts/${path}/${act}`), "resource_not_found");
    expect((await client.hosts.list()).data).toEqual([]);
  });

  test("that is longer than any target's is not found", async () => {
    readRefusal(await call("POST", `/v2/hosts/${"x".repeat(5_000)}/park`), "resource_not_found");
  });
});

describe("GET /v2/hosts", () => {
  test("lists hosts in ascending order of bytes, page by page, of this environment alone", async () => {
    const hosts = ["10.0.0.1", "[::1]", "a.example", "b.example", "xn--bcher-kva.example"];
    for (const host of hosts.toReversed()) await client.hosts.park(host);
    const walked: string[] = [];
    for await (const { host } of client.hosts.list({ limit: 2, state: "down" })) walked.push(host);
    expect(walked).toEqual(hosts);
    expect((await clientOf(gateway, project.development).hosts.list()).data).toEqual([]);
  });

  test("refuses other filters, and cursors of other lists, filters and environments", async () => {
    for (const host of ["a.example", "b.example"]) await client.hosts.park(host);
    for (const query of ["state=up", "state=", "by=hand", "limit=0", "cursor=x"])
      readRefusal(await call("GET", `/v2/hosts?${query}`), "invalid_request", query.split("=")[0]);
    const { next_cursor } = await client.hosts.list({ limit: 1 });
    const at = `cursor=${next_cursor}`;
    for (const path of ["/v2/flows?", "/v2/jobs?", "/v2/hosts?state=down&"])
      readRefusal(await call("GET", path + at), "invalid_request", "cursor");
    readRefusal(await call("GET", `/v2/hosts?${at}`, project.development), "invalid_request", "cursor");
  });
});

test("keys of scope read list hosts, and those of scope jobs may do nothing with them", async () => {
  const [jobs, read] = await Promise.all(
    (["jobs", "read"] as const).map(async (scope) => (await gateway.addKey(project, { scope })).key),
  );
  expect((await call("GET", "/v2/hosts", read)).status).toBe(200);
  readRefusal(await call("GET", "/v2/hosts", jobs), "insufficient_scope");
  for (const key of [jobs, read])
    for (const act of ["park", "open"])
      readRefusal(await call("POST", `/v2/hosts/${HOST}/${act}`, key), "insufficient_scope");
});

describe("park_failing_hosts", () => {
  test("is shown only once it was set, to both environments", async () => {
    expect(Object.keys(await client.project.get())).not.toContain("park_failing_hosts");
    expect(Object.keys(await client.project.update({ name: "Test" }))).not.toContain("park_failing_hosts");
    for (const isOn of [false, true, false]) {
      const changed = await client.project.update({ park_failing_hosts: isOn });
      expect(changed.park_failing_hosts).toBe(isOn);
      expect(await client.project.get()).toEqual(changed);
      const other = await clientOf(gateway, project.development).project.get();
      expect(other.park_failing_hosts).toBe(isOn);
      expect((await client.project.update({ name: "Test" })).park_failing_hosts).toBe(isOn);
    }
  });

  test.each([[null], ["true"], [1], [[]]])("is refused as %j", async (value) => {
    const answer = await gateway.call("PATCH", "/v2/project", {
      key: project.production,
      body: { park_failing_hosts: value },
    });
    readRefusal(answer, "invalid_request", "park_failing_hosts");
  });

  test("leaves hosts that were parked by hand as they are when it is turned off", async () => {
    const parked = await client.hosts.park(HOST);
    await client.project.update({ park_failing_hosts: true });
    await client.project.update({ park_failing_hosts: false });
    expect((await client.hosts.list()).data).toEqual([parked]);
  });
});
