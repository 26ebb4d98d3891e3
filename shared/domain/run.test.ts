import { expect, test } from "bun:test";
import fc from "fast-check";
import { createIdSource, RUN_PREFIX } from "./ids.ts";
import {
  type AnswerHeaders,
  ERROR_BYTES_MAX,
  type Exchange,
  errorText,
  interruptedOutcome,
  judgeResponse,
  lostOutcome,
  type Outcome,
  RESPONSE_BODY_BYTES_MAX,
  START_SHIFT_MS,
  settleAttempt,
  startedInTime,
} from "./run.ts";

const now = Date.parse("2026-11-21T10:00:00Z");
const noHeaders: AnswerHeaders = {
  location: null,
  retryAfter: null,
  serviceNoRetry: null,
  contentEncoding: null,
};
type Answer = Extract<Exchange, { kind: "answered" }>;

function judge(status: number, rest: Partial<Answer> = {}): Outcome {
  const body = new TextEncoder().encode("out of stock");
  return judgeResponse(
    {
      kind: "answered",
      status,
      headers: noHeaders,
      body,
      bodyBytes: body.length,
      bodyEnd: "complete",
      ...rest,
    },
    now,
    900_000,
  );
}

test("200 to 299 succeeds, and nothing else does", () => {
  for (const status of [200, 204, 299]) {
    expect(judge(status)).toEqual({ kind: "succeeded", responseStatus: status, error: null });
  }
  for (const status of [101, 199, 300, 304, 400, 404, 410, 500, 599]) {
    expect(judge(status)).toMatchObject({ kind: "failed", responseStatus: status, retry: "backoff" });
  }
  expect(judge(500)).toMatchObject({ error: "out of stock" });
  expect(judge(500, { body: new Uint8Array() })).toMatchObject({
    error: "The target answered 500 with an empty body.",
  });
});

test("a body in a content coding is named by its coding and its length, since nobody can read it", () => {
  const coded = (contentEncoding: string) => judge(500, { headers: { ...noHeaders, contentEncoding } }).error;
  expect(coded("gzip")).toBe("(gzip, 12 bytes)");
  expect(coded("GZip, br")).toBe("(gzip, br, 12 bytes)");
  for (const none of ["", "identity", "Identity"]) expect(coded(none)).toBe("out of stock");
  expect(
    judge(500, { bodyBytes: RESPONSE_BODY_BYTES_MAX, headers: { ...noHeaders, contentEncoding: "br" } })
      .error,
  ).toBe("(br, 65536 bytes)");
  expect(Buffer.byteLength(coded("x".repeat(60_000)) ?? "")).toBe(ERROR_BYTES_MAX);
});

test("an attempt whose kept connection was closed in place of an answer is retried at once, as after a lost node", () => {
  const outcome = judgeResponse({ kind: "unknown" }, now, 900_000);
  expect(outcome).toEqual({ ...lostOutcome(), error: expect.stringContaining("its outcome is unknown") });
});

test("the status decides once enough of the body was read, however much more there would be", () => {
  expect(judge(200, { bodyEnd: "enough" }).kind).toBe("succeeded");
  expect(judge(500, { bodyEnd: "enough" }).kind).toBe("failed");
});

test("a 2xx whose body breaks off is failed, one that stalls is timed out, and both keep the status", () => {
  expect(judge(200, { bodyEnd: "broken" })).toMatchObject({ kind: "failed", responseStatus: 200 });
  expect(judge(200, { bodyEnd: "stalled" })).toMatchObject({ kind: "timed_out", responseStatus: 200 });
  expect(judge(500, { bodyEnd: "stalled" })).toMatchObject({ kind: "timed_out", responseStatus: 500 });
});

test("without an answer there is no status", () => {
  expect(judgeResponse({ kind: "stalled" }, now, 900_000)).toEqual({
    kind: "timed_out",
    responseStatus: null,
    error: "The target did not answer within the limit of 900 seconds.",
    retry: "backoff",
    retryAfterMs: null,
  });
  expect(judgeResponse({ kind: "faulted", message: "connection reset\u0000" }, now, 1)).toMatchObject({
    kind: "failed",
    responseStatus: null,
    error: "connection reset\ufffd",
  });
});

test("a redirect is a failure that names its Location", () => {
  const outcome = judge(307, { headers: { ...noHeaders, location: "https://example.com/a\r\nb" } });
  expect(outcome.error).toBe(
    "The target answered 307 with Location: https://example.com/a\ufffd\nb (redirects are not followed)",
  );
  expect(judge(304).error).toContain("without a Location");
});

test("Service-No-Retry: true fails the job at once, any other value says nothing", () => {
  for (const text of ["true", "TRUE", " true "]) {
    expect(judge(500, { headers: { ...noHeaders, serviceNoRetry: text } })).toMatchObject({ retry: "never" });
  }
  for (const text of ["false", "1", ""]) {
    expect(judge(500, { headers: { ...noHeaders, serviceNoRetry: text } })).toMatchObject({
      retry: "backoff",
    });
  }
  expect(judge(200, { headers: { ...noHeaders, serviceNoRetry: "true" } }).kind).toBe("succeeded");
});

test("Retry-After is heard on 429 and 503 only", () => {
  const headers = { ...noHeaders, retryAfter: "30" };
  for (const status of [429, 503]) expect(judge(status, { headers })).toMatchObject({ retryAfterMs: 30_000 });
  for (const status of [200, 301, 500, 502]) {
    expect(judge(status, { headers, bodyEnd: "broken" })).toMatchObject({ retryAfterMs: null });
  }
  expect(judge(503, { headers: { ...noHeaders, retryAfter: "soon" } })).toMatchObject({ retryAfterMs: null });
});

const second = {
  number: 2,
  attemptsAllowed: 3,
  retryPolicy: { maxAttempts: 3, baseSeconds: 10, capSeconds: 3_600 },
};
const chance = () => 0.5;

test("a settled attempt moves its job on", () => {
  expect(settleAttempt(second, judge(200), chance)).toEqual({ status: "succeeded" });
  expect(settleAttempt(second, judge(500), chance)).toEqual({ status: "queued", waitMs: 10_000 });
  const last = { ...second, number: 3 };
  expect(settleAttempt(last, judge(500), chance)).toEqual({ status: "failed" });
  const timedOut = judgeResponse({ kind: "stalled" }, now, 900_000);
  expect(settleAttempt(second, timedOut, chance).status).toBe("queued");
  expect(settleAttempt(last, timedOut, chance).status).toBe("failed");
});

test("a run starts in time up to START_SHIFT_MS before and after the instant in its id, both included", () => {
  const runId = createIdSource((count) => new Uint8Array(count)).next(RUN_PREFIX, now);
  for (const shiftMs of [START_SHIFT_MS, -START_SHIFT_MS]) {
    expect(startedInTime(runId, now + shiftMs)).toBe(true);
    expect(startedInTime(runId, now + shiftMs + Math.sign(shiftMs))).toBe(false);
  }
});

test("a target that asks not to be retried fails the job with attempts left", () => {
  const outcome = judge(500, { headers: { ...noHeaders, serviceNoRetry: "true" } });
  expect(settleAttempt({ ...second, number: 1 }, outcome, chance)).toEqual({ status: "failed" });
});

test("an attempt that was interrupted or lost is retried at once while attempts remain", () => {
  for (const outcome of [interruptedOutcome(), lostOutcome()]) {
    expect(settleAttempt(second, outcome, chance)).toEqual({ status: "queued", waitMs: 0 });
    expect(settleAttempt({ ...second, number: 3 }, outcome, chance)).toEqual({ status: "failed" });
  }
});

test("error text keeps line feeds and tabs and replaces other control characters", () => {
  expect(errorText("a\tb\nc\rd\u0000\u001f\u007f\u009f\u00a0e\ud800")).toBe(
    "a\tb\nc\ufffdd\ufffd\ufffd\ufffd\ufffd\u00a0e\ufffd",
  );
  expect(errorText(Uint8Array.of(0xff, 0x41))).toBe("\ufffdA");
});

test("error text is cut at 4,096 bytes, between characters", () => {
  expect(errorText("x".repeat(ERROR_BYTES_MAX))).toHaveLength(ERROR_BYTES_MAX);
  expect(errorText("x".repeat(ERROR_BYTES_MAX + 1))).toHaveLength(ERROR_BYTES_MAX);
  expect(errorText(`${"x".repeat(ERROR_BYTES_MAX - 3)}😀`)).toBe("x".repeat(ERROR_BYTES_MAX - 3));
  expect(errorText(`${"x".repeat(ERROR_BYTES_MAX - 4)}😀`)).toEndWith("😀");
  const sources = fc.oneof(
    fc.string({ unit: "binary", maxLength: 5_000, size: "max" }),
    fc.uint8Array({ maxLength: 9_000, size: "max" }),
  );
  fc.assert(
    fc.property(sources, (source) => {
      const text = errorText(source);
      expect(Buffer.byteLength(text)).toBeLessThanOrEqual(ERROR_BYTES_MAX);
      expect(text.isWellFormed()).toBe(true);
      const whole = typeof source === "string" ? source : new TextDecoder().decode(source);
      // Only control characters differ from the source, and a cut leaves less room than one character takes.
      const masked = (value: string) => value.replaceAll(/[\p{Cc}\p{Cs}\ufffd]/gu, "\ufffd");
      expect(masked(whole).startsWith(masked(text))).toBe(true);
      if (masked(text) !== masked(whole))
        expect(Buffer.byteLength(text)).toBeGreaterThan(ERROR_BYTES_MAX - 4);
    }),
    { numRuns: 200 },
  );
});
