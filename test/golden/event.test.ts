import { expect, test } from "bun:test";
import { eventText } from "../../shared/contract/event-text.ts";

/**
 * The bytes of an event, which must be the same on every retry. Bodies are rendered at each attempt, so a release that
 * renders them in another way would change the retries of waiting deliveries. A new shape needs a new api_version by
 * which both are told apart; these bytes stay.
 */
const BYTES =
  '{"id":"evt_01m7ybr3vq81qbcnqxb2xa9jzd","type":"job.failed","created_at":"2026-11-21T06:12:27.001Z","api_version":"2026-11-01",' +
  '"project_id":"prj_01m7ybr3kgsnpd4n830jn3f3ba","environment":"production","data":{"job":{"id":"job_01m7ybr3kgsnpd4n830jn3f3ba",' +
  '"status":"failed","target_url":"https://example.com/hooks/jobs?a=\u00e9\\"","region":"eu-central","attempts":2,"schedule_id":null,' +
  '"created_at":"2026-11-21T06:12:25.328Z"},"run":{"id":"run_01m7ybr3vq81qbcnqxb2xa9jzd","job_id":"job_01m7ybr3kgsnpd4n830jn3f3ba",' +
  '"attempt":2,"status":"timed_out","response_status":null,"error":"line\\nline","started_at":"2026-11-21T06:12:25.592Z","duration_ms":1408,' +
  '"next_retry_at":null}}}';

const HOST_BYTES =
  '{"id":"evt_01m7ybr3vq81qbcnqxb2xa9jzd","type":"host.down","created_at":"2026-11-21T06:12:27.001Z","api_version":"2026-11-01",' +
  '"project_id":"prj_01m7ybr3kgsnpd4n830jn3f3ba","environment":"production","data":{"host":{"host":"[2001:db8::1]","state":"down",' +
  '"since":"2026-11-21T06:12:27.000Z","parked":21}}}';

test("the bytes of an event about a host never change", () => {
  const facts = {
    id: "evt_01m7ybr3vq81qbcnqxb2xa9jzd",
    type: "host.down",
    occurredAt: Date.parse("2026-11-21T06:12:27.001Z"),
    apiVersion: "2026-11-01",
    projectId: "prj_01m7ybr3kgsnpd4n830jn3f3ba",
    environment: "production",
    host: { host: "[2001:db8::1]", since: Date.parse("2026-11-21T06:12:27.000Z"), parked: 21 },
  } as const;
  expect(eventText(facts)).toBe(HOST_BYTES);
  const up = HOST_BYTES.replace("host.down", "host.up").replace('"down"', '"opening"');
  expect(eventText({ ...facts, type: "host.up" })).toBe(up);
});

test("the bytes of an event never change", () => {
  const facts = {
    id: "evt_01m7ybr3vq81qbcnqxb2xa9jzd",
    type: "job.failed",
    occurredAt: Date.parse("2026-11-21T06:12:27.001Z"),
    apiVersion: "2026-11-01",
    projectId: "prj_01m7ybr3kgsnpd4n830jn3f3ba",
    environment: "production",
    job: {
      id: "job_01m7ybr3kgsnpd4n830jn3f3ba",
      targetUrl: 'https://example.com/hooks/jobs?a=\u00e9"',
      region: "eu-central",
      attempts: 2,
      scheduleId: null,
      createdAt: Date.parse("2026-11-21T06:12:25.328Z"),
      tags: null,
    },
    run: {
      id: "run_01m7ybr3vq81qbcnqxb2xa9jzd",
      attempt: 2,
      status: "timed_out",
      responseStatus: null,
      error: "line\nline",
      startedAt: Date.parse("2026-11-21T06:12:25.592Z"),
      durationMs: 1408,
    },
  } as const;
  expect(eventText(facts)).toBe(BYTES);
  const tagged = { ...facts, job: { ...facts.job, tags: ["customer:4711", "b"] } };
  const withTags = BYTES.replace('.328Z"}', '.328Z","tags":["customer:4711","b"]}');
  expect(eventText(tagged)).toBe(withTags);
});
