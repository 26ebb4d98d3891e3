import { expect, test } from "bun:test";
import fc from "fast-check";
import { ApiError } from "./errors.ts";
import {
  ATTEMPTS_MAX,
  completeRetryPolicy,
  decideCancel,
  decideManualRetry,
  decideNewJob,
  isTerminal,
  JOB_STATUSES,
  type JobContext,
  jobStatusOf,
  parseInstant,
  parseRunAt,
} from "./job.ts";

const now = Date.parse("2026-11-21T10:00:00Z");
const context: JobContext = {
  plan: "pro",
  defaultRegion: "eu-central",
  now,
  targets: { allowInsecure: false, own: [] },
};
const targetUrl = "https://example.com/hook";

/** The code and param with which something is refused. */
function refusalOf(act: () => unknown): [string, string | undefined] {
  try {
    act();
  } catch (error) {
    if (error instanceof ApiError) return [error.code, error.param];
    throw error;
  }
  throw new Error("It was not refused.");
}

test("a job that names only its target gets every default", () => {
  expect(decideNewJob({ targetUrl }, context)).toEqual({
    targetUrl,
    runAt: null,
    region: "eu-central",
    retryPolicy: { maxAttempts: 5, baseSeconds: 10, capSeconds: 3_600 },
    tags: null,
    flow: null,
  });
});

test("hobby projects are limited to us-east, also where their stored default is another region", () => {
  const hobby: JobContext = { ...context, plan: "hobby" };
  expect(decideNewJob({ targetUrl }, hobby).region).toBe("us-east");
  expect(decideNewJob({ targetUrl, region: "us-east" }, hobby).region).toBe("us-east");
  expect(refusalOf(() => decideNewJob({ targetUrl, region: "us-west" }, hobby))).toEqual([
    "invalid_request",
    "region",
  ]);
});

test("the field at fault is named", () => {
  const invalid = "invalid_request";
  expect(refusalOf(() => decideNewJob({ targetUrl: "http://a.com" }, context))).toEqual([
    invalid,
    "target_url",
  ]);
  expect(refusalOf(() => decideNewJob({ targetUrl, runAt: "" }, context))).toEqual([invalid, "run_at"]);
});

test("a default base follows a lower cap, a given base does not", () => {
  expect(completeRetryPolicy({ capSeconds: 5 })).toEqual({ maxAttempts: 5, baseSeconds: 5, capSeconds: 5 });
  expect(completeRetryPolicy({ capSeconds: 11 }).baseSeconds).toBe(10);
  expect(completeRetryPolicy({ baseSeconds: 3_600 }).capSeconds).toBe(3_600);
  const param = ["invalid_request", "retry_policy.base_seconds"] as [string, string];
  expect(refusalOf(() => completeRetryPolicy({ baseSeconds: 3_601 }))).toEqual(param);
  expect(refusalOf(() => completeRetryPolicy({ baseSeconds: 6, capSeconds: 5 }))).toEqual(param);
  expect(completeRetryPolicy({ baseSeconds: 5, capSeconds: 5, maxAttempts: 1 }).maxAttempts).toBe(1);
});

test("instants in ISO 8601 are read, with any offset", () => {
  const golden: [string, string][] = [
    ["2026-11-21T10:00:00Z", "2026-11-21T10:00:00.000Z"],
    ["2026-11-21T10:00Z", "2026-11-21T10:00:00.000Z"],
    ["2026-11-21T10:00:00.5Z", "2026-11-21T10:00:00.500Z"],
    ["2026-11-21T10:00:00,25Z", "2026-11-21T10:00:00.250Z"],
    ["2026-11-21T10:00:00.123999Z", "2026-11-21T10:00:00.123Z"],
    ["2026-11-21T10:00:00+05:30", "2026-11-21T04:30:00.000Z"],
    ["2026-11-21T20:00:00-08:00", "2026-11-22T04:00:00.000Z"],
    ["2026-11-21T10:00:00+02", "2026-11-21T08:00:00.000Z"],
    ["2026-11-21T10:00:00+0200", "2026-11-21T08:00:00.000Z"],
    ["2026-11-21T10:00:00-0930", "2026-11-21T19:30:00.000Z"],
    ["2026-11-21t10:00:00z", "2026-11-21T10:00:00.000Z"],
    ["2026-11-21t10:00+05:30", "2026-11-21T04:30:00.000Z"],
    ["2026-11-21T10:00:00.25z", "2026-11-21T10:00:00.250Z"],
    ["2026-11-21T10:00:00-00:00", "2026-11-21T10:00:00.000Z"],
    ["2028-02-29T00:00:00Z", "2028-02-29T00:00:00.000Z"],
    ["2000-02-29T00:00:00Z", "2000-02-29T00:00:00.000Z"],
    ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"],
    ["2026-12-31T23:59:59.999Z", "2026-12-31T23:59:59.999Z"],
  ];
  for (const [text, iso] of golden) {
    const at = parseInstant(text);
    expect([text, at === null ? null : new Date(at).toISOString()]).toEqual([text, iso]);
  }
});

test("whatever is not a real instant is refused", () => {
  const bad = [
    "2026-11-21T10:00:00",
    "2026-11-21",
    "2026-11-21 10:00:00Z",
    "2026-02-29T00:00:00Z",
    "1900-02-29T00:00:00Z",
    "2026-04-31T00:00:00Z",
    "2026-00-10T00:00:00Z",
    "2026-13-10T00:00:00Z",
    "2026-11-00T00:00:00Z",
    "2026-11-32T00:00:00Z",
    "2026-11-21T24:00:00Z",
    "2026-11-21T23:60:00Z",
    "2026-12-31T23:59:60Z",
    "2026-11-21T10:00:00.Z",
    "2026-11-21T10:00:00+24:00",
    "2026-11-21T10:00:00+05:60",
    "2026-11-21T10:00:00+053",
    "2026-11-21T10:00:00+5",
    "2026-11-21T10:00:00+05:",
    "2026-11-21T10:00:00+2400",
    "2026-11-21T10:00:00+0560",
    "2026-11-21T10:00:00z+02",
    "20261121T100000Z",
    "+002026-11-21T10:00:00Z",
    "2026-W47-6T10:00:00Z",
    "2026-325T10:00:00Z",
    "1763719200000",
    " 2026-11-21T10:00:00Z",
    "2026-11-21T10:00:00Z\n",
    "Sat, 21 Nov 2026 10:00:00 GMT",
    "tomorrow",
    "",
  ];
  for (const text of bad) expect([text, parseInstant(text)]).toEqual([text, null]);
});

test("every instant comes back from its own text", () => {
  const instants = fc.integer({
    min: Date.parse("0000-01-01T00:00:00Z"),
    max: Date.parse("9999-12-31T23:59:59Z"),
  });
  fc.assert(fc.property(instants, (at) => expect(parseInstant(new Date(at).toISOString())).toBe(at)));
});

test("run_at may lie 60 seconds back and ten years ahead, and not a millisecond more", () => {
  const past = (ms: number) => new Date(now - ms).toISOString();
  expect(parseRunAt(past(60_000), now)).toBe(now - 60_000);
  expect(refusalOf(() => parseRunAt(past(60_001), now))).toEqual(["run_at_in_past", "run_at"]);
  expect(parseRunAt("2036-11-21T10:00:00.000Z", now)).toBe(Date.parse("2036-11-21T10:00:00Z"));
  expect(refusalOf(() => parseRunAt("2036-11-21T10:00:00.001Z", now))).toEqual(["invalid_request", "run_at"]);
});

test("a job's status follows from the stored facts", () => {
  expect(jobStatusOf({ endedAs: null, hasRunInProgress: false })).toBe("queued");
  expect(jobStatusOf({ endedAs: null, hasRunInProgress: true })).toBe("running");
  expect(jobStatusOf({ endedAs: "canceled", hasRunInProgress: true })).toBe("canceled");
  expect(jobStatusOf({ endedAs: "failed", hasRunInProgress: false })).toBe("failed");
  expect(JOB_STATUSES.filter(isTerminal)).toEqual(["succeeded", "failed", "canceled"]);
});

test("a job can be canceled until it has ended", () => {
  expect(decideCancel({ status: "queued", isSent: false })).toBe("waiting");
  expect(decideCancel({ status: "running", isSent: true })).toBe("sent");
  expect(decideCancel({ status: "running", isSent: false })).toBe("unsent");
  for (const status of JOB_STATUSES.filter(isTerminal)) {
    expect(refusalOf(() => decideCancel({ status, isSent: false }))).toEqual(["invalid_request", undefined]);
  }
});

test("a failed or timed out run can be retried while its job is failed or waits between attempts", () => {
  const refused: [string, undefined] = ["invalid_request", undefined];
  const waiting = { status: "queued" as const, attempts: 2, maxAttempts: 5 };
  for (const run of [{ status: "failed" }, { status: "timed_out" }] as const) {
    expect(decideManualRetry(waiting, run)).toEqual({
      attempt: 3,
      attemptsAllowed: 5,
      replacesPending: true,
    });
    for (const status of ["running", "succeeded", "canceled"] as const) {
      expect(refusalOf(() => decideManualRetry({ ...waiting, status }, run))).toEqual(refused);
    }
  }
  for (const run of [{ status: "running" }, { status: "succeeded" }] as const) {
    expect(refusalOf(() => decideManualRetry(waiting, run))).toEqual(refused);
  }
});

test("a manual retry gives an exhausted job exactly one more attempt, up to as many as can be counted", () => {
  const failed = (attempts: number) => ({ status: "failed" as const, attempts, maxAttempts: 5 });
  const run = { status: "failed" as const };
  for (const [attempts, attemptsAllowed] of [
    [2, 5],
    [4, 5],
    [5, 6],
    [6, 7],
    [ATTEMPTS_MAX - 1, ATTEMPTS_MAX],
  ] as const) {
    const wanted = { attempt: attempts + 1, attemptsAllowed, replacesPending: false };
    expect(decideManualRetry(failed(attempts), run)).toEqual(wanted);
  }
  expect(refusalOf(() => decideManualRetry(failed(ATTEMPTS_MAX), run))).toEqual([
    "invalid_request",
    undefined,
  ]);
});
