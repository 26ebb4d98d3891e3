import { beforeEach, describe, expect, test } from "bun:test";
import type { RateAnswer, RateQuestion } from "../../../shared/store/resources/request-rate.ts";
import { createRateLoans, type RateLoans } from "./loans.ts";

let now: number;
let loans: RateLoans;
beforeEach(() => {
  now = 5_000;
  loans = createRateLoans(() => now);
});

const NAME = "1/production";
const question = (wish: Partial<RateQuestion> = {}): RateQuestion => ({
  projectNo: 1,
  environment: "production",
  requestCount: 1,
  limit: 600,
  loan: "first",
  demand: 10,
  over: [],
  ...wish,
});
const answer: RateAnswer = {
  acceptedCount: 1,
  isUndecided: false,
  lentCount: 3,
  lentMs: 80,
  remaining: 500,
  retryAfterMs: 0,
  resetMs: 60_080,
};

describe("a loan", () => {
  test("counts the remaining requests of the limit down to its last request", () => {
    loans.open(NAME, question(), answer, now);
    now += 10;
    const left = [1, 2, 3, 4].map(() => loans.spend(NAME, 600)?.remaining ?? null);
    expect(left).toEqual([502, 501, 500, null]);
    expect(loans.spend("1/development", 600)).toBeNull();
    expect(loans.close(NAME)).toEqual([{ loan: "first", spentCount: 3 }]);
    expect(loans.close(NAME)).toEqual([]);
  });

  test("tells the time until no request counts any more", () => {
    loans.open(NAME, question(), answer, now);
    now += 10;
    expect(loans.spend(NAME, 600)).toMatchObject({ limit: 600, resetMs: 60_070, retryAfterMs: null });
  });

  test("ends with the tick, counted from when the question was sent", () => {
    loans.open(NAME, question(), answer, now - 30);
    now += 49.9;
    expect(loans.spend(NAME, 600)).not.toBeNull();
    now += 0.1;
    expect(loans.spend(NAME, 600)).toBeNull();
    expect(loans.close(NAME)).toEqual([{ loan: "first", spentCount: 1 }]);
  });

  test("is not spent if the answer took longer than the tick", () => {
    loans.open(NAME, question(), answer, now - 80);
    expect(loans.spend(NAME, 600)).toBeNull();
  });

  test("is not spent by a caller with a smaller limit, and shows its own limit to a caller with a larger one", () => {
    loans.open(NAME, question(), answer, now);
    expect(loans.spend(NAME, 599)).toBeNull();
    expect(loans.spend(NAME, 700)?.limit).toBe(600);
  });

  test("is accounted for soon after its end, even without further requests", () => {
    expect(loans.nextDueAt()).toBe(Number.POSITIVE_INFINITY);
    loans.open(NAME, question(), answer, now);
    const dueAt = loans.nextDueAt();
    expect(dueAt).toBeGreaterThan(now + 80);
    expect(dueAt).toBeLessThan(now + 100);
    expect(loans.due(dueAt - 1)).toEqual([]);
    expect(loans.due(dueAt)).toEqual([[NAME, question()]]);
  });

  test("with a lost answer is given back whole, together with the accounts in its question", () => {
    loans.keep(NAME, question({ loan: "second", over: [{ loan: "first", spentCount: 2 }] }));
    expect(loans.spend(NAME, 600)).toBeNull();
    expect(loans.nextDueAt()).toBeGreaterThan(now);
    const both = [
      { loan: "first", spentCount: 2 },
      { loan: "second", spentCount: 0 },
    ];
    expect(loans.close(NAME)).toEqual(both);
    loans.keep(NAME, question({ loan: "third", requestCount: 0, demand: 0, over: both }));
    expect(loans.close(NAME)).toEqual(both);
  });

  test("that is lost in a long outage leaves a list of bounded length", () => {
    for (let n = 0; n < 1_000; n++) loans.keep(NAME, question({ loan: `${n}`, over: loans.close(NAME) }));
    const kept = loans.close(NAME);
    expect(kept).toHaveLength(100);
    expect(kept.at(-1)).toEqual({ loan: "999", spentCount: 0 });
  });
});
