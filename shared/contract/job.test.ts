import { expect, test } from "bun:test";
import { Value } from "@sinclair/typebox/value";
import { ApiError, type EntryError } from "../domain/errors.ts";
import { firstIdAt, parseId } from "../domain/ids.ts";
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
    "retry_policy":{"max_attempts":25,"base_seconds":86400,"cap_seconds":86400},"tags":["a:b","NULL"]}`;
  expect(readOne(text)).toEqual({
    targetUrl: "https://example.com/hook",
    payloadText: '{"n":9007199254740993}',
    runAt: Date.parse("2026-11-22T09:00:00Z"),
    region: "eu-central",
    retryPolicy: { maxAttempts: 25, baseSeconds: 86_400, capSeconds: 86_400 },
    tags: ["a:b", "NULL"],
    flow: null,
  });
});

test("tags are 1 to 10 different ones of the allowed characters, and the refusal names the bad one", () => {
  const paramOf = (tags: string) =>
    refusalOf(() => readOne(`{"target_url":"https://example.com","tags":${tags}}`)).param;
  expect([paramOf("null"), paramOf('"a"'), paramOf("[]")]).toEqual(["tags", "tags", "tags"]);
  expect(paramOf(JSON.stringify(Array.from({ length: 11 }, (_, n) => `t${n}`)))).toBe("tags");
  expect(paramOf("[1]")).toBe("tags[0]");
  for (const bad of ["", " ", "a b", "a,b", "ä", "a\n", "x".repeat(65), "{}", '"']) {
    expect(paramOf(JSON.stringify(["good", bad]))).toBe("tags[1]");
  }
  expect(paramOf('["a","b","a"]')).toBe("tags[2]");
  const widest = Array.from({ length: 10 }, (_, n) => `${n}_.:/@+-Zz`.padEnd(64, "x"));
  expect(readOne(`{"target_url":"https://example.com","tags":${JSON.stringify(widest)}}`).tags).toEqual(
    widest,
  );
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
  expect(refusalOf(() => readOne(withField('"palyoad":1'))).message).toBe(
    "palyoad is not a known field. Did you mean payload?",
  );
  expect(refusalOf(() => readOne(withField('"url":1'))).message).toStartWith(
    "url is not a known field. Known are target_url, ",
  );
  const secret = refusalOf(() => readOne(withField('"region":"s3cret"')));
  expect(secret.message).toBe(
    "region must be one of us-east, us-west, eu-central, ap-southeast, not another string.",
  );
  expect(refusalOf(() => readOne("[]")).message).toBe("The body must be an object, not an array.");
});

test("a required field under a misspelt name is recognised, and a stranger's name is not repeated", () => {
  const misspelt = (text: string) => {
    const { message, param } = refusalOf(() => readOne(text));
    expect(param).toBe("target_url");
    return message;
  };
  const meant = (name: string) => `${name} is not a known field. Did you mean target_url? It is required.`;
  expect(misspelt('{"targetUrl":"https://example.com"}')).toBe(meant("targetUrl"));
  expect(misspelt('{"a":1,"b":2,"taget_url":"https://example.com"}')).toBe(meant("taget_url"));
  expect(misspelt("{}")).toBe("target_url is required.");
  expect(misspelt('{"url":"https://example.com"}')).toBe("target_url is required.");
  expect(misspelt('{"target_url\\u202e":""}')).toBe("target_url is required.");
  expect(misspelt(`{"${"_".repeat(1_000)}target_url":""}`)).toBe("target_url is required.");
  const many = Array.from({ length: 1_000 }, (_, n) => `"targeturl${n}${"x".repeat(40)}":0`);
  expect(misspelt(`{${many}}`)).toBe("target_url is required.");
  const { details } = refusalOf(() =>
    readMany('{"jobs":[{"target_url":"https://example.com"},{"TargetURL":""}]}'),
  );
  expect(details).toEqual([
    { index: 1, code: "invalid_request", message: meant("TargetURL"), param: "target_url" },
  ]);
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
  const unfiltered = {
    ...{ status: null, region: null, tag: null, flowKey: null, schedule: { kind: "any" } as const },
    created: { after: null, before: null },
    ids: { fromId: null, beforeId: null },
  };
  expect(readJobListQuery("")).toEqual({ pageSize: 50, cursor: null, ...unfiltered });
  expect(readJobListQuery("limit=200&cursor=abc&status=queued&region=us-west&tag=a%2Bb")).toEqual({
    ...unfiltered,
    pageSize: 200,
    cursor: "abc",
    status: "queued",
    region: "us-west",
    tag: "a+b",
  });
  const bad: [query: string, param: string][] = [
    ["limit=0", "limit"],
    ["status=done", "status"],
    ["region=mars", "region"],
    ["job_id=x", "job_id"],
    ["status=queued&status=failed", "status"],
    ["tag=", "tag"],
    ["tag=a+b", "tag"],
    [`tag=${"a".repeat(65)}`, "tag"],
    ["tag=a&tag=b", "tag"],
    ["created_after=", "created_after"],
    ["created_after=2026-11-21", "created_after"],
    ["created_before=2026-11-21T10:00:00+01:00", "created_before"],
    ["created_before=2026-02-30T10:00:00Z", "created_before"],
    ["started_after=2026-11-21T10:00:00Z", "started_after"],
  ];
  for (const [query, param] of bad) expect(refusalOf(() => readJobListQuery(query)).param).toBe(param);
});

test("a filter by created_at becomes bounds of ids, both instants left out and cut to the millisecond", () => {
  const { ids } = readJobListQuery(
    "created_after=2026-11-21T10:00:00.0079Z&created_before=2026-11-21T11:00:00.008%2B01:00",
  );
  const at = Date.parse("2026-11-21T10:00:00.008Z");
  expect([ids.fromId, ids.beforeId]).toEqual([firstIdAt("job_", at), firstIdAt("job_", at)]);
  const far = readJobListQuery("created_after=0000-01-01T00:00:00Z&created_before=9999-12-31T23:59:59-23:59");
  expect(far.ids.fromId).toBe("job_00000000000000000000000000");
  expect(parseId("job_", far.ids.beforeId ?? "")).not.toBeNull();
});

test("the jobs of a schedule id that no schedule can have are an empty list, not an error", () => {
  const id = "sch_01arz3ndektsv4rrffq69g5fav";
  expect(readJobListQuery(`schedule_id=${id}`).schedule).toEqual({ kind: "one", id });
  for (const text of ["", "x", id.toUpperCase(), id.replace("sch_", "job_")]) {
    expect(readJobListQuery(`schedule_id=${text}`).schedule).toEqual({ kind: "none" });
  }
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
  tags: null,
  flow: null,
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

test("a flow stands in the object as it was given, and in no other view", () => {
  const flow = { rate: { per_seconds: 60, count: 5 }, key: "a" };
  const flowing = { ...facts, tags: ["a"], flow };
  const text = jobText(flowing);
  expect(text).toEndWith(`,"tags":["a"],"flow":${JSON.stringify(flow)}}`);
  expect(Value.Check(Job, JSON.parse(text))).toBe(true);
  for (const view of [viewListedJob(flowing), viewCanceledJob(flowing)]) expect("flow" in view).toBe(false);
  expect("flow" in JSON.parse(jobText(facts))).toBe(false);
});

test("tags stand in every view of a job that has them, and in no other", () => {
  const tagged = { ...facts, tags: ["b", "a"] };
  for (const view of [JSON.parse(jobText(tagged)), viewListedJob(tagged), viewCanceledJob(tagged)]) {
    expect(view.tags).toEqual(["b", "a"]);
  }
  expect(Value.Check(Job, JSON.parse(jobText(tagged)))).toBe(true);
  expect(Value.Check(ListedJob, viewListedJob(tagged))).toBe(true);
  for (const view of [JSON.parse(jobText(facts)), viewListedJob(facts), viewCanceledJob(facts)]) {
    expect("tags" in view).toBe(false);
  }
});
