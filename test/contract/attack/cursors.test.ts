import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { OPERATIONS } from "../../../shared/contract/operations/all.ts";
import type { Operation } from "../../../shared/contract/operations/operation.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { expectNoTrace } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;
/** A cursor for each path. The cursor works at that path with limit=1 and no filter. */
const cursors = new Map<string, string>();

const lists = (Object.values(OPERATIONS) as Operation[])
  .filter(({ method, id, query }) => method === "GET" && id === null && "cursor" in query.properties)
  .map(({ path, query }): [string, string[]] => [path, Object.keys(query.properties)]);

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  for (let n = 0; n < 3; n++) {
    const job = await gateway.createJob(project);
    await gateway.attempt(project, job, 1, { status: "failed", leaves: "failed" });
  }
  for (const path of ["/v2/jobs", "/v2/runs"]) {
    const { text } = await list(path, "limit=1");
    cursors.set(path, (JSON.parse(text) as { next_cursor: string }).next_cursor);
  }
});
afterAll(() => gateway.stop());

const list = (path: string, query: string, key = project.production) =>
  gateway.call("GET", `${path}?${query}`, { key });
const refuse = async (...request: Parameters<typeof list>) =>
  readRefusal(await list(...request), "invalid_request", "cursor");

describe.each(lists)("the cursors of %s", (path, names) => {
  test("work in no other list", async () => {
    await expectNoTrace(gateway, project, async () => {
      for (const [other, cursor] of cursors) {
        if (other !== path) await refuse(path, `cursor=${cursor}`);
        else expect((await list(path, `cursor=${cursor}`)).status).toBe(200);
      }
    });
  });

  test("are refused if the service did not make them", async () => {
    const made = [
      ...["", "a", "AAAA", "%00", "%ff", "null", "..", "1", "%F0%9F%98%80", "a".repeat(15_000)],
      Buffer.from(JSON.stringify({ id: "job_00000000000000000000000000" })).toString("base64url"),
      Buffer.concat([Buffer.alloc(16), Buffer.from("job_00000000000000000000000000")]).toString("base64url"),
    ];
    for (const cursor of made) await refuse(path, `cursor=${cursor}`);
  });

  test("are bound to the filters, the environment and the project", async () => {
    const stranger = await gateway.addProject();
    for (const cursor of cursors.values()) {
      await refuse(path, `cursor=${cursor}`, stranger.production);
      await refuse(path, `cursor=${cursor}`, project.development);
      const status = path === "/v2/webhooks" ? "enabled" : "failed";
      if (names.includes("status")) await refuse(path, `status=${status}&cursor=${cursor}`);
      if (names.includes("region")) await refuse(path, `region=us-east&cursor=${cursor}`);
    }
  });
});

test.each(["/v2/jobs", "/v2/runs"])(
  "a cursor of %s is refused cut off at any place, and spelled in another way",
  async (path) => {
    const cursor = cursors.get(path) ?? "";
    for (let length = 0; length < cursor.length; length++)
      await refuse(path, `cursor=${cursor.slice(0, length)}`);
    for (const other of [
      `${cursor}A`,
      `${cursor}=`,
      `${cursor}%3D`,
      `%20${cursor}`,
      `${cursor}%0A`,
      `${cursor}${cursor}`,
    ]) {
      await refuse(path, `cursor=${other}`);
    }
    const bytes = Buffer.from(cursor, "base64url");
    for (let at = 0; at < bytes.length; at++) {
      const altered = Buffer.from(bytes);
      altered[at] = (altered[at] ?? 0) ^ 1;
      await refuse(path, `cursor=${altered.toString("base64url")}`);
    }
  },
);
