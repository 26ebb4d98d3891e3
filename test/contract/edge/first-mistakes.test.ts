import { afterAll, beforeAll, expect, test } from "bun:test";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../../support/gateway.ts";

/** The first mistakes of a newcomer. Each message says what to do; code and param are those of the contract. */

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const job = (fields: object) => ["POST", "/v2/jobs", { target_url: TARGET_URL, ...fields }] as const;
const schedule = (fields: object) =>
  [
    "POST",
    "/v2/schedules",
    { name: "nightly", cron: "0 3 * * *", target_url: TARGET_URL, ...fields },
  ] as const;
const ZONE = "timezone must be the name of a zone of the IANA database, such as Europe/Berlin or UTC.";

test.each([
  [job({ target_url: "http://example.com/hook" }), "target_url", "target_url must be an https URL."],
  [
    job({ target_url: "example.com/hook" }),
    "target_url",
    "target_url must be an absolute https URL, such as https://example.com/path.",
  ],
  [
    job({ target_url: "https://localhost:3000/hook" }),
    "target_url",
    "target_url must have a full host name, such as example.com.",
  ],
  [
    ["POST", "/v2/jobs", { targetUrl: TARGET_URL }],
    "target_url",
    "targetUrl is not a known field. Did you mean target_url? It is required.",
  ],
  [job({ runAt: "2026-11-24T10:00:00Z" }), "runAt", "runAt is not a known field. Did you mean run_at?"],
  [
    job({ run_at: "2026-11-24 10:00" }),
    "run_at",
    "run_at must be an ISO 8601 date and time with Z or an offset, such as 2026-11-01T09:30:00Z or 2026-11-01T09:30:00+01:00.",
  ],
  [
    ["POST", "/v2/jobs", `{\n  "target_url": "${TARGET_URL}",\n}`],
    undefined,
    "The body is not valid JSON: at line 3, column 1, a name in double quotes is expected.",
  ],
  [["POST", "/v2/jobs", ""], undefined, "The body is empty; JSON is expected."],
  [
    ["GET", "/v2/jobs?staus=failed", undefined],
    "staus",
    '"staus" is not a known query parameter. Did you mean status? Known are ',
  ],
] as const)("%j", async ([method, path, body], param, message) => {
  const before = await gateway.countRows();
  const answer = await gateway.call(method, path, {
    key: project.development,
    ...(body === undefined ? {} : { body }),
  });
  const { error } = JSON.parse(answer.text);
  expect([answer.status, error.code, error.param]).toEqual([400, "invalid_request", param]);
  expect(error.message).toStartWith(message);
  expect(await gateway.countRows()).toEqual(before);
});

test.each([
  [
    schedule({ cron: "every 5 minutes" }),
    "cron",
    "cron must have 5 fields (minute, hour, day of month, month, day of week)",
  ],
  [schedule({ cron: "@every 5m" }), "cron", "cron must have 5 fields"],
  [schedule({ cron: "61 * * * *" }), "cron", 'cron, minute: "61" needs 0 to 59.'],
  [
    schedule({ cron: "CRON_TZ=Europe/Berlin 0 3 * * *" }),
    "cron",
    "cron must not name a time zone (TZ=): give it in the field timezone.",
  ],
  [schedule({ timezone: "Berlin" }), "timezone", `${ZONE} Did you mean Europe/Berlin?`],
  [schedule({ timezone: "America/New York" }), "timezone", `${ZONE} Did you mean America/New_York?`],
  [schedule({ timezone: "PST" }), "timezone", ZONE],
] as const)("%j", async ([method, path, body], param, message) => {
  const answer = await gateway.call(method, path, { key: project.development, body });
  const { error } = JSON.parse(answer.text);
  expect([answer.status, error.code, error.param]).toEqual([400, "invalid_cron_expression", param]);
  expect(error.message).toStartWith(message);
});

test("without a key, with half of one, with another scheme: one message that shows the header", async () => {
  for (const headers of [
    {},
    { authorization: project.development },
    { authorization: `Bearer ${project.development.slice(0, -1)}` },
    { "x-api-key": project.development },
  ]) {
    const answer = await gateway.call("GET", "/v2/jobs", { headers });
    expect([answer.status, JSON.parse(answer.text).error.message]).toEqual([
      401,
      "A valid API key is required, in one header: Authorization: Bearer <API_KEY>.",
    ]);
  }
});

test("a body as curl sends it by itself is told which header it needs", async () => {
  const answer = await gateway.call("POST", "/v2/jobs", {
    key: project.development,
    body: JSON.stringify({ target_url: TARGET_URL }),
    headers: { "Content-Type": "application/x-www-form-urlencoded" },
  });
  expect([answer.status, JSON.parse(answer.text).error.message]).toEqual([
    415,
    "Content-Type must be application/json, in UTF-8.",
  ]);
});
