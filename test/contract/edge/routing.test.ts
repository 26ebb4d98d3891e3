import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import {
  parseRaw,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const call = (method: string, path: string) => gateway.call(method, path, { key: project.production });
const RUN = "/v2/runs/run_00000000000000000000000000";

describe("routing", () => {
  test.each([
    ["PUT", "/v2/jobs", "GET, HEAD, POST"],
    ["DELETE", "/v2/jobs", "GET, HEAD, POST"],
    ["OPTIONS", "/v2/jobs", "GET, HEAD, POST"],
    ["PATCH", "/v2/jobs/job_00000000000000000000000000", "DELETE, GET, HEAD"],
    ["POST", "/v2/runs", "GET, HEAD"],
    ["DELETE", RUN, "GET, HEAD"],
    ["GET", `${RUN}/retry`, "POST"],
    ["HEAD", `${RUN}/retry`, "POST"],
    ["PUT", "/v2/project", "GET, HEAD, PATCH"],
    ["POST", "/v2/project/usage", "GET, HEAD"],
    ["PATCH", "/v2/jobs/batch", "DELETE, GET, HEAD, POST"],
    ["PUT", "/v2/schedules", "GET, HEAD, POST"],
    ["PUT", "/v2/schedules/sch_00000000000000000000000000", "DELETE, GET, HEAD, PATCH"],
    ["PATCH", "/v2/schedules/by-name/a", "GET, HEAD, PUT"],
    ["DELETE", "/v2/schedules/by-name/a", "GET, HEAD, PUT"],
    ["POST", "/v2/schedules/by-name/run", "GET, HEAD, PUT"],
  ])("%s %s is refused with 405 and the methods of the path", async (method, path, allow) => {
    const answer = await call(method, path);
    expect(answer.status).toBe(405);
    expect(answer.headers.get("allow")).toBe(allow);
    if (method !== "HEAD") readRefusal(answer, "method_not_allowed");
  });

  test.each([
    "/v2",
    "/v2/",
    "/v2/jobs/",
    "/v2/project/",
    "/v2/runs//retry",
    "/v2/Jobs",
    "/v2/%6Aobs",
    "/v2/jobs/a/b",
    "/v2/__proto__",
    "/v2/nothing",
    "/v2/schedules/by-name/",
    "/v2/schedules/by-name/a/b",
  ])("%s is an unknown path", async (path) => {
    readRefusal(await call("GET", path), "resource_not_found");
  });

  test("answers HEAD as GET, without the body", async () => {
    const job = await gateway.createJob(project);
    for (const path of ["/v2/jobs", `/v2/jobs/${job.id}`, "/v2/project", "/v2/nothing"]) {
      const get = await call("GET", path);
      const head = await call("HEAD", path);
      expect(head.status).toBe(get.status);
      expect(head.text).toBe("");
      const plain = ({ headers }: typeof get) =>
        [...headers].filter(([name]) => !["date", "request-id", "ratelimit-remaining"].includes(name)).sort();
      expect(plain(head)).toEqual(plain(get));
    }
  });

  test.each(["a", "ab", "abc", "a:1", "[::1]", "example.com"])("accepts the host %s", async (host) => {
    const raw = await gateway.send(
      `GET /v2/project HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer ${project.production}\r\n\r\n`,
    );
    expect(parseRaw(raw).status).toBe(200);
  });

  test.each(["HTTP/1.1\r\nHost:", "HTTP/1.1\r\nHost: a/b", "HTTP/1.0"])(
    "a request without a usable host is refused in the documented form: %s",
    async (rest) => {
      const answer = parseRaw(await gateway.send(`GET /v2/project ${rest}\r\n\r\n`));
      readRefusal(answer, "invalid_request");
      expect(answer.headers.get("service-version")).toBe("2026-11-01");
    },
  );
});
