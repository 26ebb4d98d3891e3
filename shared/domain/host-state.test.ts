import { describe, expect, test } from "bun:test";
import { foundNobody } from "./host-state.ts";
import type { Exchange } from "./run.ts";

const answered = (
  status: number,
  bodyEnd: (Exchange & { kind: "answered" })["bodyEnd"] = "complete",
): Exchange => ({
  kind: "answered",
  status,
  headers: { location: null, retryAfter: null, serviceNoRetry: null, contentEncoding: null },
  body: new Uint8Array(),
  bodyBytes: 0,
  bodyEnd,
});

describe("an attempt", () => {
  test.each<[string, Exchange]>([
    ["no connection", { kind: "faulted", message: "connection refused" }],
    ["no TLS", { kind: "faulted", message: "certificate has expired" }],
    ["no answer in time", { kind: "stalled" }],
    ["no end of the answer in time", answered(200, "stalled")],
    ...[502, 503, 504].map((status): [string, Exchange] => [`status ${status}`, answered(status)]),
    ["status 503 with a broken body", answered(503, "broken")],
  ])("finds nobody: %s", (_, exchange) => {
    expect(foundNobody(exchange)).toBe(true);
  });

  test.each([200, 204, 301, 400, 401, 404, 408, 410, 429, 500, 501, 505, 507])(
    "finds somebody who answers %i",
    (status) => {
      for (const bodyEnd of ["complete", "enough", "broken"] as const)
        expect(foundNobody(answered(status, bodyEnd))).toBe(false);
    },
  );

  test("finds somebody who answers, though not in HTTP", () => {
    const message = "The target did not answer in HTTP.";
    expect(foundNobody({ kind: "faulted", message, hasAnswered: true })).toBe(false);
  });

  test.each<[string, Exchange]>([
    ["nothing was sent, since it was too late", { kind: "unsent", because: "late" }],
    ["nothing was sent, since there was no secret", { kind: "unsent", because: "unsigned" }],
    ["a kept connection was closed without an answer", { kind: "unknown" }],
  ])("tells nothing of its host: %s", (_, exchange) => {
    expect(foundNobody(exchange)).toBeNull();
  });
});
