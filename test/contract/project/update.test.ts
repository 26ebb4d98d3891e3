import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { clientOf, refusalOf } from "../../support/client.ts";
import {
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let mate: { port: number; stop(): Promise<void> };
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  mate = await gateway.startMate();
  project = await gateway.addProject();
});
afterAll(async () => {
  await mate.stop();
  await gateway.stop();
});

const NOTICED_MS_MAX = 5_000;
const ASK_EVERY_MS = 50;
const patch = (body: object | string) =>
  gateway.call("PATCH", "/v2/project", { key: project.production, body });
const client = (key = project.production) => clientOf(gateway, key);

describe("PATCH /v2/project", () => {
  test("changes the given fields, and shows the project at once and to every key", async () => {
    await client().project.get();
    await client(project.development).project.get();
    const named = await client().project.update({ name: "Schön 🛒" });
    expect(named).toMatchObject({ id: project.id, name: "Schön 🛒", default_region: "us-east" });
    expect(await client().project.get()).toEqual(named);
    const moved = await client(project.development).project.update({ default_region: "eu-central" });
    expect(moved).toMatchObject({
      name: "Schön 🛒",
      default_region: "eu-central",
      environment: "development",
    });
    expect(await client().project.get()).toEqual({ ...moved, environment: "production" });
    const both = await client().project.update({ name: "Test", default_region: "us-east" });
    expect(both).toMatchObject({ name: "Test", default_region: "us-east" });
  });

  test("with nothing to change changes nothing", async () => {
    const before = await client().project.get();
    expect(await client().project.update({})).toEqual(before);
  });

  test("changes the default region of later jobs, and moves no earlier job", async () => {
    const own = await gateway.addProject();
    const before = await gateway.createJob(own);
    await client(own.production).project.update({ default_region: "ap-southeast" });
    expect((await gateway.createJob(own)).region).toBe("ap-southeast");
    expect((await client(own.production).jobs.get(before.id)).region).toBe("us-east");
  });

  test("takes effect within 5 s on every other gateway", async () => {
    const own = await gateway.addProject();
    const elsewhere = clientOf(gateway, own.production, mate.port);
    expect((await elsewhere.project.get()).name).toBe("Test");
    await client(own.production).project.update({ name: "Changed", default_region: "us-west" });
    const changedAt = performance.now();
    for (;;) {
      const askedAt = performance.now();
      if ((await elsewhere.project.get()).name === "Changed") break;
      expect(askedAt - changedAt).toBeLessThan(NOTICED_MS_MAX);
      await Bun.sleep(ASK_EVERY_MS);
    }
    expect((await elsewhere.jobs.create({ target_url: TARGET_URL })).region).toBe("us-west");
  });

  test.each([
    ["an empty name", { name: "" }, "name"],
    ["a blank name", { name: " \t" }, "name"],
    ["a name of 81 characters", { name: "ü".repeat(81) }, "name"],
    ["a null name", { name: null }, "name"],
    ["a number for a name", { name: 1 }, "name"],
    ["an unknown region", { default_region: "mars" }, "default_region"],
    ["a null region", { default_region: null }, "default_region"],
    ["an unknown field", { plan: "scale" }, "plan"],
    ["an array", [], undefined],
  ])("refuses %s and changes nothing", async (_, body, param) => {
    const before = await client().project.get();
    readRefusal(await patch(body), "invalid_request", param);
    expect(await client().project.get()).toEqual(before);
  });

  test("accepts a name of 80 characters", async () => {
    const own = await gateway.addProject();
    const name = "🛒".repeat(80);
    expect((await client(own.production).project.update({ name })).name).toBe(name);
  });

  test("keeps a hobby project in us-east", async () => {
    const hobby = await gateway.addProject("hobby");
    const { update } = client(hobby.production).project;
    const refused = update({ name: "No", default_region: "us-west" });
    await refusalOf(refused, "invalid_request", "default_region");
    expect((await update({ default_region: "us-east" })).name).toBe("Test");
  });

  test("refuses a body that is not JSON, a query parameter, and a key that may not change the project", async () => {
    readRefusal(await patch("{"), "invalid_request");
    const text = await gateway.call("PATCH", "/v2/project", {
      key: project.production,
      body: "{}",
      headers: { "Content-Type": "text/plain" },
    });
    readRefusal(text, "unsupported_media_type");
    const queried = await gateway.call("PATCH", "/v2/project?a=1", { key: project.production, body: {} });
    readRefusal(queried, "invalid_request", "a");
    for (const scope of ["read", "jobs"] as const) {
      const { key } = await gateway.addKey(project, { scope });
      await refusalOf(client(key).project.update({ name: "No" }), "insufficient_scope");
    }
  });
});
