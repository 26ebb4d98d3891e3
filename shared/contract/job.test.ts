import { expect, test } from "bun:test";
import { Value } from "@sinclair/typebox/value";
import { ApiError, type EntryError } from "../domain/errors.ts";
import type { JobContext } from "../domain/job.ts";
import {
  CanceledJob,
  Job,
  JobBatch,
  type JobFacts,
  jobBatchParts,
  jobText,
  ListedJob,
  readJobListQuery,
  readNewJob,
  readNewJobBatch,
  viewCanceledJob,
  viewListedJob,
} from "./job.ts";
import { parseBody } from "./test-support.ts";

const context: JobContext = {
  plan: "pro",
  defaultRegion: "us-east",
  now: Date.parse("2026-11-21T10:00:00Z"),
  targets: { allowInsecure: false, own: [] },
};
const readOne = (text: string) => readNewJob(parseBody(Buffer.from(text), "member"), context);
const readMany = (text: string) => readNewJobBatch(parseBody(Buffer.from(text), "each job"), context);
const withField = (field: string) => `{"target_url":"https://example.com/hook",${field}}`;

function refusalOf(act: () => unknown): ApiError {
  try {
    act();
  } catch (error) {
    if (error instanceof ApiError) return error;
    throw error;
  }
  throw new Error("It was not refused.");
}

test("a full request is accepted as it is", () => {
  const text = `{"target_url":"https://example.com/hook","payload":{"n": 9007199254740993},
    "run_at":"2026-11-22T10:00:00+01:00","region":"eu-central",
    "retry_policy":{"max_attempts":25,"base_seconds":86400,"cap_seconds":86400}}`;
  expect(readOne(text)).toEqual({
    targetUrl: "https://example.com/hook",
    payloadText: '{"n":9007199254740993}',
    runAt: Date.parse("2026-11-22T09:00:00Z"),
    region: "eu-central",
    retryPolicy: { maxAttempts: 25, baseSeconds: 86_400, capSeconds: 86_400 },
  });
});

test("a payload that is left out is an empty object", () => {
  expect(readOne('{"target_url":"https://example.com"}').payloadText).toBe("{}");
});

test("each number of a retry policy has its bounds", () => {
  const numbers: [string, number, number][] = [
    ["max_attempts", 1, 25],
    ["base_seconds", 1, 86_400],
    ["cap_seconds", 1, 86_400],
  ];
  for (const [name, min, max] of numbers) {
    const cap = name === "base_seconds" ? ',"cap_seconds":86400' : "";
    const policy = (value: string) => withField(`"retry_policy":{"${name}":${value}${cap}}`);
    for (const value of [min, max, `${min}.0`]) readOne(policy(String(value)));
    for (const value of [min - 1, max + 1, -1, 1e9, '"5"', "5.5", "true", "null", "[5]", "{}"]) {
      const refusal = refusalOf(() => readOne(policy(String(value))));
      expect([value, refusal.code, refusal.param]).toEqual([
        value,
        "invalid_request",
        `retry_policy.${name}`,
      ]);
      expect(refusal.message).toContain(`an integer from ${min} to ${max}`);
    }
  }
});

test("a wrong type, null, or an unknown name is refused with its path", () => {
  const golden: [string, string | undefined][] = [
    ["[]", undefined],
    ["null", undefined],
    ['"x"', undefined],
    ["{}", "target_url"],
    ['{"target_url":null}', "target_url"],
    ['{"target_url":5}', "target_url"],
    ['{"target_url":""}', "target_url"],
    [withField('"payload":null'), "payload"],
    [withField('"payload":[1]'), "payload"],
    [withField('"payload":"{}"'), "payload"],
    [withField('"run_at":null'), "run_at"],
    [withField('"run_at":1795255200000'), "run_at"],
    [withField('"region":"us-east-1"'), "region"],
    [withField('"region":null'), "region"],
    [withField('"retry_policy":null'), "retry_policy"],
    [withField('"retry_policy":[]'), "retry_policy"],
    [withField('"retry_policy":{"retries":5}'), "retry_policy.retries"],
    [withField('"runAt":"2026-11-22T10:00:00Z"'), "runAt"],
    [withField('"status":"queued"'), "status"],
    [withField('"__proto__":{}'), "__proto__"],
    [withField('"constructor":{}'), "constructor"],
    [withField('"a/b~c":1'), "a/b~c"],
  ];
  for (const [text, param] of golden) {
    const refusal = refusalOf(() => readOne(text));
    expect([text, refusal.code, refusal.param]).toEqual([text, "invalid_request", param]);
  }
});

test("messages name the field that was probably meant, and never the given value", () => {
  expect(refusalOf(() => readOne(withField('"runAt":1'))).message).toBe(
    "runAt is not a known field. Did you mean run_at?",
  );
  const secret = refusalOf(() => readOne(withField('"region":"s3cret"')));
  expect(secret.message).toBe(
    "region must be one of us-east, us-west, eu-central, ap-southeast, not another string.",
  );
  expect(refusalOf(() => readOne("[]")).message).toBe("The body must be an object, not an array.");
});

test("a batch is accepted whole, in input order, with each entry's own payload", () => {
  const entry = (index: number) => withField(`"payload":{"i": ${index}}`);
  const hundred = Array.from({ length: 100 }, (_, index) => entry(index));
  const jobs = readMany(`{"jobs":[${hundred.join(",")}]}`);
  expect(jobs.map((job) => job.payloadText)).toEqual(hundred.map((_, index) => `{"i":${index}}`));
});

test("0 or more than 100 entries, and a body that is no batch, are refused", () => {
  const entries = new Array(101).fill('{"target_url":"https://example.com"}').join(",");
  for (const jobs of ["[]", `[${entries}]`, "null", "{}", '"x"']) {
    expect(refusalOf(() => readMany(`{"jobs":${jobs}}`)).param).toBe("jobs");
  }
  expect(refusalOf(() => readMany("{}")).param).toBe("jobs");
  expect(refusalOf(() => readMany("[]")).param).toBeUndefined();
  expect(refusalOf(() => readMany('{"jobs":[],"x":1}')).code).toBe("invalid_request");
});

test("a batch with bad entries names every one of them with its own code", () => {
  const large = `{"a":"${"x".repeat(262_137)}"}`;
  const refusal = refusalOf(() =>
    readMany(`{"jobs":[
      {"target_url":"https://example.com"},
      {"target_url":"http://example.com"},
      ${withField('"run_at":"2020-01-01T00:00:00Z"')},
      ${withField('"retry_policy":{"max_attempts":0}')},
      ${withField(`"payload":${large}`)},
      null
    ]}`),
  );
  expect([refusal.status, refusal.code, refusal.param]).toEqual([400, "invalid_request", undefined]);
  const summary = refusal.details?.map(({ index, code, param }: EntryError) => [index, code, param]);
  expect(summary).toEqual([
    [1, "invalid_request", "target_url"],
    [2, "run_at_in_past", "run_at"],
    [3, "invalid_request", "retry_policy.max_attempts"],
    [4, "payload_too_large", "payload"],
    [5, "invalid_request", undefined],
  ]);
});

test("the query string of the jobs list is read, and wrong ones refused", () => {
  expect(readJobListQuery("")).toEqual({ pageSize: 50, cursor: null, status: null, region: null });
  expect(readJobListQuery("limit=200&cursor=abc&status=queued&region=us-west")).toEqual({
    pageSize: 200,
    cursor: "abc",
    status: "queued",
    region: "us-west",
  });
  const bad = ["limit=0", "status=done", "region=mars", "job_id=x", "status=queued&status=failed"];
  expect(bad.map((query) => refusalOf(() => readJobListQuery(query)).param)).toEqual([
    "limit",
    "status",
    "region",
    "job_id",
    "status",
  ]);
});

const facts: JobFacts = {
  id: "job_01arz3ndektsv4rrffq69g5fav",
  status: "queued",
  targetUrl: 'https://example.com/"quoted"?é',
  payloadText: '{"n":9007199254740993}',
  runAt: Date.parse("2026-11-22T10:00:00Z"),
  region: "us-west",
  retryPolicy: { maxAttempts: 5, baseSeconds: 10, capSeconds: 3_600 },
  attempts: 0,
  createdAt: Date.parse("2026-11-21T10:00:00.007Z"),
};

test("a job object has exactly the documented fields, and its payload as it was written", () => {
  const text = jobText(facts);
  expect(text).toContain('"payload":{"n":9007199254740993}');
  const view = JSON.parse(text);
  expect(Value.Check(Job, view)).toBe(true);
  expect(view).toMatchObject({
    id: facts.id,
    status: "queued",
    target_url: facts.targetUrl,
    run_at: "2026-11-22T10:00:00.000Z",
    region: "us-west",
    retry_policy: { max_attempts: 5, base_seconds: 10, cap_seconds: 3_600 },
    attempts: 0,
    created_at: "2026-11-21T10:00:00.007Z",
  });
  const batch = JSON.parse(jobBatchParts([facts, { ...facts, attempts: 1 }]).join(""));
  expect(Value.Check(JobBatch, batch)).toBe(true);
  expect(batch.data[1].attempts).toBe(1);
});

test("list items and the cancel answer show their subsets and nothing more", () => {
  const listed = viewListedJob(facts);
  expect(Value.Check(ListedJob, listed)).toBe(true);
  expect(Object.keys(listed)).toEqual(["id", "status", "target_url", "region", "attempts", "created_at"]);
  const canceled = viewCanceledJob({ ...facts, status: "canceled" });
  expect(Value.Check(CanceledJob, canceled)).toBe(true);
  expect(Object.keys(canceled)).toEqual([...Object.keys(listed), "run_at"]);
});
