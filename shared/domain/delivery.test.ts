import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  brokenOffDelivery,
  DELIVERY_WAITS_SECONDS,
  DELIVERY_WINDOW_SECONDS,
  type DeliveryAttempt,
  type DeliveryOutcome,
  judgeDelivery,
  settleDelivery,
  unsentDelivery,
} from "./delivery.ts";
import { type AnswerHeaders, type Exchange, INTERRUPTED_ERROR } from "./run.ts";

const HOUR_MS = 3_600_000;
const now = Date.parse("2026-11-21T10:00:00Z");
const noHeaders: AnswerHeaders = {
  location: null,
  retryAfter: null,
  serviceNoRetry: null,
  contentEncoding: null,
};
const failed = unsentDelivery("no");

type Answer = Extract<Exchange, { kind: "answered" }>;

function judge(status: number, rest: Partial<Answer> = {}): DeliveryOutcome {
  const body = new TextEncoder().encode("out of order");
  return judgeDelivery(
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
    15_000,
  );
}

type Told = { status: "succeeded" | "failed" } | { status: "pending"; waitMs: number | null };

/** Settles attempt number `number`, before which each wait was used. The result leaves out how many are used then. */
function settle(
  { number = 1, ...attempt }: Partial<DeliveryAttempt> & { number?: number },
  outcome: DeliveryOutcome,
  { random = 0.5, scale = 1 }: { random?: number; scale?: number } = {},
): Told {
  const whole = { waits: number - 1, startedAt: now, firstStartedAt: now, byHand: false, ...attempt };
  const settled = settleDelivery(whole, outcome, { random: () => random, scale });
  if (settled.status !== "pending") return settled;
  return { status: settled.status, waitMs: settled.waitMs };
}

describe("what an attempt of a delivery came to", () => {
  test("is a success for 200 to 299, and for nothing else", () => {
    for (const status of [200, 202, 204, 299]) {
      expect(judge(status)).toEqual({ kind: "succeeded", responseStatus: status, error: null });
    }
    for (const status of [101, 199, 300, 304, 400, 404, 429, 500, 599]) {
      expect(judge(status)).toMatchObject({ kind: "failed", responseStatus: status, retry: "waits" });
    }
    expect(judge(500)).toMatchObject({ error: "out of order" });
  });

  test("is decided by the status, however the body behind it ends", () => {
    for (const bodyEnd of ["complete", "enough", "broken", "stalled"] as const) {
      expect(judge(200, { bodyEnd })).toEqual({ kind: "succeeded", responseStatus: 200, error: null });
      expect(judge(500, { bodyEnd }).kind).not.toBe("succeeded");
      expect(judge(410, { bodyEnd })).toMatchObject({ responseStatus: 410, retry: "never" });
    }
    expect(judge(500, { bodyEnd: "stalled" })).toMatchObject({ kind: "timed_out", responseStatus: 500 });
  });

  test("is a failure for a redirect, which is named and not followed", () => {
    const headers = { ...noHeaders, location: "https://elsewhere.example/" };
    expect(judge(307, { headers })).toMatchObject({
      kind: "failed",
      error: "The target answered 307 with Location: https://elsewhere.example/ (redirects are not followed)",
      retry: "waits",
    });
  });

  test("is our own fault where the endpoint closed a kept connection in place of an answer: another follows at once", () => {
    expect(judgeDelivery({ kind: "unknown" }, now, 15_000)).toMatchObject({
      kind: "failed",
      error: expect.stringContaining("its outcome is unknown"),
      retry: "at_once",
      fault: "ours",
    });
  });

  test("is timed out where nothing was answered in time, and failed where nobody could be reached", () => {
    expect(judgeDelivery({ kind: "stalled" }, now, 15_000)).toEqual({
      kind: "timed_out",
      responseStatus: null,
      error: "The target did not answer within the limit of 15 seconds.",
      retry: "waits",
      fault: "endpoint",
    });
    expect(judgeDelivery({ kind: "faulted", message: "connection refused" }, now, 15_000)).toEqual({
      kind: "failed",
      responseStatus: null,
      error: "connection refused",
      retry: "waits",
      fault: "endpoint",
    });
  });

  test("takes no wish of the endpoint's about when to come again: the waits are documented", () => {
    const headers = { ...noHeaders, retryAfter: "86400", serviceNoRetry: "true" };
    expect(judge(503, { headers })).toMatchObject({ retry: "waits" });
    expect(judge(410, { headers })).toMatchObject({ retry: "never" });
  });
});

describe("what follows from an attempt of a delivery", () => {
  test("that failed is the next one after 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, counted from its end", () => {
    const minute = 60_000;
    const documented = [
      5_000,
      5 * minute,
      30 * minute,
      120 * minute,
      300 * minute,
      600 * minute,
      840 * minute,
    ];
    expect(DELIVERY_WAITS_SECONDS.map((seconds) => seconds * 1_000)).toEqual(documented);
    for (const [index, waitMs] of documented.entries()) {
      const attempt = { number: index + 1 };
      expect(settle(attempt, failed)).toEqual({ status: "pending", waitMs });
      expect(waitOf(settle(attempt, failed, { random: 0 }))).toBeCloseTo(0.9 * waitMs, 2);
      expect(waitOf(settle(attempt, failed, { random: 1 - 2 ** -53 }))).toBeCloseTo(1.1 * waitMs, 2);
    }
  });

  test("that failed after those is one when 48 h after the first are over, and none follows that one", () => {
    const firstStartedAt = now - 32 * HOUR_MS;
    const lastAt = firstStartedAt + 48 * HOUR_MS;
    for (const random of [0, 0.5, 0.99]) {
      const eighth = settle({ number: 8, firstStartedAt }, failed, { random });
      expect(eighth).toEqual({ status: "pending", waitMs: null });
    }
    for (const startedAt of [lastAt, lastAt + 5])
      expect(settle({ number: 9, startedAt, firstStartedAt }, failed)).toEqual({ status: "failed" });
  });

  test("is known as the last one to the microsecond in which the 48 h end", () => {
    // A row keeps microseconds, and an instant is read from it as milliseconds with a fraction.
    const read = (micros: number) => Number((BigInt(now) * 1_000n + BigInt(micros)).toString()) / 1_000;
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 999_999 }), fc.integer({ min: 8, max: 30 }), (micros, number) => {
        const first = { firstStartedAt: read(micros), number };
        const windowMicros = 48 * HOUR_MS * 1_000;
        const before = settle({ ...first, startedAt: read(micros + windowMicros - 1) }, failed);
        expect(before).toEqual({ status: "pending", waitMs: null });
        const last = settle({ ...first, startedAt: read(micros + windowMicros) }, failed);
        expect(last).toEqual({ status: "failed" });
      }),
    );
  });

  test("that succeeded, met a 410, or was asked for by hand is nothing", () => {
    expect(settle({}, judge(204))).toEqual({ status: "succeeded" });
    expect(settle({}, judge(410))).toEqual({ status: "failed" });
    expect(settle({ byHand: true }, failed)).toEqual({ status: "failed" });
    expect(settle({ byHand: true }, brokenOffDelivery(INTERRUPTED_ERROR))).toEqual({ status: "failed" });
  });

  test("uses up the wait that follows it, unless the next attempt comes at once", () => {
    const attempt = { waits: 2, startedAt: now, firstStartedAt: now, byHand: false };
    const chance = { random: () => 0.5, scale: 1 };
    expect(settleDelivery(attempt, failed, chance)).toMatchObject({ waits: 3 });
    expect(settleDelivery({ ...attempt, waits: 7 }, failed, chance)).toMatchObject({ waits: 7 });
    expect(settleDelivery(attempt, brokenOffDelivery(INTERRUPTED_ERROR), chance)).toMatchObject({ waits: 2 });
  });

  test("that we broke off ourselves is another one at once, until the 48 h are over", () => {
    const broken = brokenOffDelivery(INTERRUPTED_ERROR);
    expect(settle({ number: 5 }, broken)).toEqual({ status: "pending", waitMs: 0 });
    expect(settle({ number: 5, firstStartedAt: now - 48 * HOUR_MS }, broken)).toEqual({ status: "failed" });
  });

  test("keeps its proportions on any scale: every wait and the window shrink alike", () => {
    const scale = 0.001;
    expect(settle({ number: 4 }, failed, { scale })).toEqual({ status: "pending", waitMs: 7_200 });
    expect(settle({ number: 9, firstStartedAt: now - 172_800 }, failed, { scale })).toEqual({
      status: "failed",
    });
    expect(waitOf(settle({ number: 1 }, failed, { scale, random: 0 }))).toBeCloseTo(4.5, 2);
  });

  test("makes nine attempts over the 48 h where every one of them fails, whatever the chances", () => {
    fc.assert(
      fc.property(fc.array(fc.double({ min: 0, max: 0.999, noNaN: true }), { minLength: 9 }), (chances) => {
        const windowEndsAt = now + DELIVERY_WINDOW_SECONDS * 1_000;
        let startedAt = now;
        let number = 1;
        for (;;) {
          const random = chances[number - 1] ?? 0;
          const next = settle({ number, startedAt, firstStartedAt: now }, failed, { random });
          if (next.status !== "pending") break;
          startedAt = Math.min(startedAt + 15_000 + (next.waitMs ?? Number.POSITIVE_INFINITY), windowEndsAt);
          number++;
        }
        expect(number).toBe(9);
        expect(startedAt).toBe(windowEndsAt);
      }),
    );
  });
});

function waitOf(settled: Told): number | null {
  if (settled.status !== "pending") throw new Error(`nothing follows: ${settled.status}`);
  return settled.waitMs;
}
