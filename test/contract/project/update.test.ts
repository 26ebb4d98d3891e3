import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Job } from "../../../shared/contract/job.ts";
import { Project } from "../../../shared/contract/project.ts";
import {
  readAs,
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
const patch = (body: object | string, key = project.production) =>
  gateway.call("PATCH", "/v2/project", { key, body });
const show = async (port = gateway.port, key = project.production) =>
  readAs(Project, await gateway.call("GET", "/v2/project", { key, port }));

describe("PATCH /v2/project", () => {
  test("changes what is given and shows the project, at once and to every key", async () => {
    await show();
    await show(gateway.port, project.development);
    const named = readAs(Project, await patch({ name: "Schön 🛒" }));
    expect(named).toMatchObject({ id: project.id, name: "Schön 🛒", default_region: "us-east" });
    expect(await show()).toEqual(named);
    const moved = readAs(Project, await patch({ default_region: "eu-central" }, project.development));
    expect(moved).toMatchObject({
      name: "Schön 🛒",
      default_region: "eu-central",
      environment: "development",
    });
    expect(await show()).toEqual({ ...moved, environment: "production" });
    const both = readAs(Project, await patch({ name: "Test", default_region: "us-east" }));
    expect(both).toMatchObject({ name: "Test", default_region: "us-east" });
  });

  test("with nothing to change changes nothing", async () => {
    const before = await show();
    expect(readAs(Project, await patch({}))).toEqual(before);
  });

  test("a default region counts for jobs created afterwards, and moves none", async () => {
    const own = await gateway.addProject();
    const before = await gateway.createJob(own);
    await patch({ default_region: "ap-southeast" }, own.production);
    expect((await gateway.createJob(own)).region).toBe("ap-southeast");
    const shown = await gateway.call("GET", `/v2/jobs/${before.id}`, { key: own.production });
    expect(readAs(Job, shown).region).toBe("us-east");
  });

  test("works within 5 s on every other gateway", async () => {
    const own = await gateway.addProject();
    expect((await show(mate.port, own.production)).name).toBe("Test");
    await patch({ name: "Changed", default_region: "us-west" }, own.production);
    const changedAt = performance.now();
    let name = "";
    while (name !== "Changed" && performance.now() - changedAt < NOTICED_MS_MAX) {
      name = (await show(mate.port, own.production)).name;
    }
    expect(name).toBe("Changed");
    const created = await gateway.call("POST", "/v2/jobs", {
      key: own.production,
      body: { target_url: TARGET_URL },
      port: mate.port,
    });
    expect(readAs(Job, created, 201).region).toBe("us-west");
  }, 20_000);

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
    const before = await show();
    readRefusal(await patch(body), "invalid_request", param);
    expect(await show()).toEqual(before);
  });

  test("takes a name of 80 characters", async () => {
    const own = await gateway.addProject();
    expect(readAs(Project, await patch({ name: "🛒".repeat(80) }, own.production)).name).toBe(
      "🛒".repeat(80),
    );
  });

  test("keeps a hobby project in us-east", async () => {
    const hobby = await gateway.addProject("hobby");
    const refused = await patch({ name: "No", default_region: "us-west" }, hobby.production);
    readRefusal(refused, "invalid_request", "default_region");
    expect(readAs(Project, await patch({ default_region: "us-east" }, hobby.production)).name).toBe("Test");
  });

  test("refuses a body that is no JSON, a query parameter, and a key that may not change it", async () => {
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
      readRefusal(await patch({ name: "No" }, key), "insufficient_scope");
    }
  });
});
