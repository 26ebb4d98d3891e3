import { expect, test } from "bun:test";
import { REASON_CHARACTERS_MAX, reasonOf } from "./failure-reason.ts";
import { type Exchange, judgeResponse } from "./run.ts";

const CANARY = "canary";
const answered = (status: number, bodyEnd: "complete" | "broken" | "stalled" = "complete"): Exchange => ({
  kind: "answered",
  status,
  headers: {
    location: `https://u:${CANARY}@elsewhere.example/?token=${CANARY}`,
    retryAfter: null,
    serviceNoRetry: null,
    contentEncoding: null,
  },
  body: new TextEncoder().encode(`{"password": "${CANARY}"}`),
  bodyBytes: 22,
  bodyEnd,
});

/** The reason of an attempt whose exchange ended so. */
function reasonFor(exchange: Exchange): string | null {
  const { kind, responseStatus, error } = judgeResponse(exchange, 0, 15_000);
  return reasonOf({ status: kind, responseStatus, error });
}

test("a reason says what the target did, and nothing of what it has sent", () => {
  const exchanges: [Exchange, string | null][] = [
    [answered(200), null],
    [answered(503), "The target answered 503."],
    [answered(302), "The target answered 302, and redirects are not followed."],
    [answered(200, "broken"), "The target answered 200, but its body broke off."],
    [answered(200, "stalled"), "The target answered 200, but its body was not complete in time."],
    [answered(500, "stalled"), "The target answered 500, but its body was not complete in time."],
    [{ kind: "stalled" }, "The target did not answer within the limit of 15 seconds."],
    [
      { kind: "faulted", message: "The target refused the connection (ECONNREFUSED)." },
      "The target refused the connection (ECONNREFUSED).",
    ],
  ];
  for (const [exchange, reason] of exchanges) {
    expect(reasonFor(exchange)).toBe(reason);
    expect(reasonFor(exchange) ?? "").not.toContain(CANARY);
  }
});

test("what a certificate says can neither fill the log nor work a terminal", () => {
  const names = "\u001b[2Jevil\u202e\u009b\n\u{e0001}";
  const reason = reasonFor({ kind: "faulted", message: names.repeat(1_000) }) ?? "";
  expect(reason.length).toBeLessThanOrEqual(REASON_CHARACTERS_MAX);
  expect(reason).toStartWith("\ufffd[2Jevil\ufffd\ufffd\ufffd\ufffd");
  expect(reason).not.toMatch(/\p{C}/u);
});
