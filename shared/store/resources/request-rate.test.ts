import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import fc from "fast-check";
import { openTestDatabase } from "../../../test/support/database.ts";
import { ENVIRONMENTS, type ProjectNo } from "../../domain/scope.ts";
import type { Database } from "../database/database.ts";
import { inTime, startStore, type TestStore } from "../test-support.ts";
import { type RateAnswer, type RateQuestion, type SpentLoan, takeRequests } from "./request-rate.ts";

let store: TestStore;
/** The connections of a second gateway. */
let other: Database;
let project: ProjectNo;

beforeAll(async () => {
  store = await startStore();
  other = openTestDatabase(store.url, 8, "silent");
});
beforeEach(async () => {
  project = await store.addProject();
});
afterAll(async () => {
  await other.close();
  await store.stop();
});

const WINDOW_MS = 60_000;
const TICK_MS = 100;

const question = (wish: Partial<RateQuestion> = {}): RateQuestion => ({
  projectNo: project,
  environment: "production",
  requestCount: 1,
  limit: 10,
  loan: crypto.randomUUID(),
  demand: 0,
  over: [],
  ...wish,
});

async function take(wish: Partial<RateQuestion> = {}, db = store.db): Promise<RateAnswer> {
  const [answer] = await takeRequests(db, [question(wish)]);
  if (answer === undefined) throw new Error("no answer");
  return answer;
}

/** Makes all ticks older. They pass through negative numbers, since no tick may meet another on the way. */
async function age(ticks: number): Promise<void> {
  await store.query("UPDATE rate_ticks SET tick = -tick WHERE project_no = $1", [project]);
  await store.query("UPDATE rate_ticks SET tick = -tick - $2 WHERE project_no = $1", [project, ticks]);
  await store.query(
    `UPDATE rate_windows SET loans = (SELECT jsonb_object_agg(key, jsonb_build_array((value->>0)::bigint - $2, value->1))
                                        FROM jsonb_each(loans))
      WHERE project_no = $1 AND loans <> '{}'`,
    [project, ticks],
  );
}

async function expectSumRight(): Promise<number> {
  const rows = await store.query<{ accepted: number; ticks: number }>(
    `SELECT w.accepted, coalesce(sum(t.accepted), 0)::int AS ticks
       FROM rate_windows w LEFT JOIN rate_ticks t USING (project_no, environment)
      WHERE w.project_no = $1 GROUP BY w.environment, w.accepted`,
    [project],
  );
  expect(rows).toHaveLength(2);
  for (const row of rows) expect(row.accepted).toBe(row.ticks);
  return Math.max(...rows.map((row) => row.accepted));
}

/** What is left of a wait of `ms` that begins now. */
function countDown(ms: number): () => number {
  const endAt = performance.now() + ms;
  return () => endAt - performance.now();
}

describe("the request rate", () => {
  test("accepts down to a remainder of 0, then refuses and says when it will accept again", async () => {
    const leastMs = countDown(WINDOW_MS - 5_000);
    expect(await take({ requestCount: 7 })).toMatchObject({
      acceptedCount: 7,
      remaining: 3,
      retryAfterMs: 0,
    });
    const last = await take({ requestCount: 5 });
    expect(last).toMatchObject({ acceptedCount: 3, remaining: 0 });
    for (const ms of [last.retryAfterMs, last.resetMs]) {
      expect(ms).toBeGreaterThan(leastMs());
      expect(ms).toBeLessThanOrEqual(WINDOW_MS + TICK_MS);
    }
    expect(await take()).toMatchObject({ acceptedCount: 0, remaining: 0 });
    // A refused request leaves nothing behind.
    expect(await expectSumRight()).toBe(10);
  });

  test("names the wait also to the very first requests, if they are beyond the limit", async () => {
    const { acceptedCount, retryAfterMs } = await take({ requestCount: 11 });
    expect(acceptedCount).toBe(10);
    expect(retryAfterMs).toBeGreaterThan(WINDOW_MS);
    expect(retryAfterMs).toBeLessThanOrEqual(WINDOW_MS + TICK_MS);
  });

  test("counts a request for a minute, and at most a tenth of a second longer", async () => {
    await inTime(2 * TICK_MS, async (begin) => {
      project = await store.addProject();
      await take({ requestCount: 10 });
      begin();
      const { retryAfterMs } = await take();
      // All whole ticks that are left of the wait, except one: the request still counts.
      await age(Math.ceil(retryAfterMs / TICK_MS) - 3);
      expect((await take()).acceptedCount).toBe(0);
    });
    await age(3);
    expect(await take()).toMatchObject({ acceptedCount: 1, remaining: 9 });
    expect(await expectSumRight()).toBe(1);
  });

  test("begins anew after the database's clock has gone back, instead of waiting for that time to come again", async () => {
    await take({ requestCount: 10 });
    expect((await take()).acceptedCount).toBe(0);
    await age(-36_000);
    expect(await take()).toMatchObject({ acceptedCount: 1, remaining: 9 });
  });

  test("names, after the limit was lowered, the wait until enough requests have ended", async () => {
    await take({ requestCount: 4 });
    await age(300);
    const leastMs = countDown(WINDOW_MS - 5_000);
    await take({ requestCount: 4 });
    // 6 of the 8 accepted requests have to end: the 4 old ones are not enough.
    const { acceptedCount, remaining, retryAfterMs } = await take({ limit: 3 });
    expect({ acceptedCount, remaining }).toEqual({ acceptedCount: 0, remaining: 0 });
    expect(retryAfterMs).toBeGreaterThan(leastMs());
    expect((await take({ limit: 5 })).retryAfterMs).toBeLessThan(WINDOW_MS / 2 + 2 * TICK_MS);
  });

  test("is counted for each project and environment separately, with many in one statement", async () => {
    const stranger = await store.addProject();
    const questions = [
      question({ requestCount: 12 }),
      question({ requestCount: 2, environment: "development" }),
      question({ requestCount: 3, projectNo: stranger, limit: 2 }),
    ];
    const answers = await takeRequests(store.db, questions.toReversed());
    expect(answers.map((answer) => answer.acceptedCount)).toEqual([2, 2, 10]);
    expect((await take({ environment: "development" })).acceptedCount).toBe(1);
  });

  test("throws for a project that does not exist, instead of refusing", async () => {
    await expect(take({ projectNo: 1_000_000 })).rejects.toThrow("request rate");
  });

  test("also counts for projects that are older than its table", async () => {
    const migration = await Bun.file(
      `${import.meta.dir}/../database/migrations/0001_request_rates.sql`,
    ).text();
    await store.query("DELETE FROM rate_windows");
    await store.query(migration.split("--> statement-breakpoint").at(-1) ?? "");
    for (const environment of ENVIRONMENTS) expect((await take({ environment })).acceptedCount).toBe(1);
  });

  test("accepts exactly the limit from a burst over two gateways, ten times out of ten", async () => {
    for (let round = 0; round < 10; round++) {
      project = await store.addProject();
      const limit = 60;
      const answers = await Promise.all(
        Array.from({ length: limit + 1 }, (_, n) => take({ limit }, n % 2 === 0 ? store.db : other)),
      );
      expect(answers.filter((answer) => answer.acceptedCount === 1)).toHaveLength(limit);
      expect(await expectSumRight()).toBe(limit);
      const refused = answers.filter((answer) => answer.acceptedCount === 0);
      for (const { retryAfterMs } of refused) {
        expect(retryAfterMs).toBeGreaterThan(WINDOW_MS - 10_000);
        expect(retryAfterMs).toBeLessThanOrEqual(WINDOW_MS + TICK_MS);
      }
    }
  });

  test("stays exact while ticks end under two gateways at once", async () => {
    const limit = 50;
    for (let round = 0; round < 20; round++) {
      const answers = await Promise.all(
        Array.from({ length: 40 }, (_, n) =>
          take({ limit, requestCount: 1 + (n % 3) }, n % 2 === 0 ? store.db : other),
        ),
      );
      const accepted = answers.reduce((sum, answer) => sum + answer.acceptedCount, 0);
      expect(await expectSumRight()).toBe(limit);
      expect(accepted).toBeGreaterThan(0);
      // Some of the accepted requests are a minute old.
      await store.query(
        `WITH old AS (SELECT project_no, environment, tick FROM rate_ticks WHERE project_no = $1 ORDER BY tick LIMIT 1)
         UPDATE rate_ticks t SET tick = t.tick - 601 FROM old
          WHERE t.project_no = old.project_no AND t.environment = old.environment AND t.tick = old.tick`,
        [project],
      );
    }
  });

  test("reads the row as it is after waiting for its lock, even if the sum is the same as before", async () => {
    const limit = 10;
    await take({ limit, requestCount: 5 });
    const mate = await store.session();
    await mate.query("BEGIN");
    await mate.query("SELECT 1 FROM rate_windows WHERE project_no = $1 FOR UPDATE", [project]);
    const waiting = take({ limit, requestCount: 2 }, other);
    await store.untilBlocked();
    // The other session removes the five old requests and accepts three. With two more the sum is five again.
    await mate.query("DELETE FROM rate_ticks WHERE project_no = $1", [project]);
    await mate.query(
      "INSERT INTO rate_ticks SELECT $1, 1, floor(extract(epoch FROM clock_timestamp()) * 10)::bigint, 3",
      [project],
    );
    await mate.query("UPDATE rate_windows SET accepted = 3 WHERE project_no = $1 AND environment = 1", [
      project,
    ]);
    await mate.query("COMMIT");
    expect(await waiting).toMatchObject({ acceptedCount: 2, remaining: 5 });
    expect(await expectSumRight()).toBe(5);
  });

  test("agrees with a plain model of a sliding minute, tick by tick", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(
          fc.record({ count: fc.integer({ min: 1, max: 6 }), ticks: fc.integer({ min: 0, max: 350 }) }),
          {
            minLength: 1,
            maxLength: 12,
          },
        ),
        async (steps) => {
          project = await store.addProject();
          // Ages are in ticks. The steps themselves take a few ticks, and the margins leave those out.
          let model: { age: number; count: number }[] = [];
          for (const { count, ticks } of steps) {
            await age(ticks);
            model = model.map((entry) => ({ ...entry, age: entry.age + ticks }));
            if (model.some((entry) => entry.age > 500 && entry.age <= 601)) return;
            model = model.filter((entry) => entry.age < 601);
            const standing = model.reduce((sum, entry) => sum + entry.count, 0);
            const { acceptedCount, remaining } = await take({ requestCount: count });
            const wanted = Math.min(count, 10 - standing);
            expect({ acceptedCount, remaining }).toEqual({
              acceptedCount: wanted,
              remaining: 10 - standing - wanted,
            });
            model.push({ age: 0, count: wanted });
          }
        },
      ),
      { numRuns: 60 },
    );
  });
});

const HIGH_DEMAND = 10_000;
/** How long a gateway may take to give a loan back. */
const AWAITED_MS = 7 * TICK_MS;

const LOAN_TRIES_MAX = 20;

/**
 * Takes one request and a loan that lasts; `begin` hears of each try. At the end of a tick little or nothing is lent, so the next one is
 * tried.
 */
async function takeLoan(
  wish: Partial<RateQuestion> = {},
  begin: () => void = () => undefined,
): Promise<RateAnswer & { loan: string; takenCount: number }> {
  let over: SpentLoan[] = [];
  for (let takenCount = 1; takenCount <= LOAN_TRIES_MAX; takenCount++) {
    begin();
    const loan = crypto.randomUUID();
    const answer = await take({ loan, demand: HIGH_DEMAND, over, ...wish });
    if (answer.lentCount > 0 && answer.lentMs > 2) return { ...answer, loan, takenCount };
    over = [{ loan, spentCount: 0 }];
    await Bun.sleep(answer.lentMs + 1);
  }
  throw new Error("nothing was lent");
}

describe("requests lent to a gateway", () => {
  test("count at once, in the tick that ends with the loan", async () => {
    const { lentCount, lentMs, remaining, takenCount, resetMs } = await takeLoan({
      limit: 1_000,
      demand: 40,
    });
    expect(lentCount).toBe(Math.ceil((40 * 1.25 * lentMs) / TICK_MS));
    expect(lentMs).toBeLessThanOrEqual(TICK_MS);
    expect(resetMs).toBeCloseTo(lentMs + WINDOW_MS, 1);
    expect(remaining).toBe(1_000 - takenCount - lentCount);
    expect(await expectSumRight()).toBe(takenCount + lentCount);
  });

  test("are at most an eighth of the rest, and never reach the last quarter of the limit", async () => {
    const first = await takeLoan({ limit: 800 });
    expect(first.lentCount).toBe(Math.floor((800 - first.takenCount) / 8));
    await take({
      limit: 800,
      over: [{ loan: first.loan, spentCount: 0 }],
      requestCount: 589 - first.takenCount,
    });
    // Requests are taken one by one, until the next loan would be smaller than the smallest that is made.
    for (let standing = 590; standing <= 600; standing++) {
      const loan = crypto.randomUUID();
      const { lentCount, lentMs } = await take({ limit: 800, loan, demand: HIGH_DEMAND });
      if (standing > 595) expect(lentCount).toBe(0);
      else if (lentMs > 1) expect(lentCount).toBe(600 - standing);
      await take({ limit: 800, requestCount: 0, over: [{ loan, spentCount: 0 }] });
    }
  });

  test("are none where few are expected or the limit is small", async () => {
    expect((await take({ limit: 1_000, demand: 3 })).lentCount).toBe(0);
    expect((await take({ limit: 40, demand: HIGH_DEMAND })).lentCount).toBe(0);
  });

  test("are given back once, however often the gateway says so", async () => {
    const { loan, lentCount, takenCount } = await takeLoan({ limit: 1_000 });
    const over = [{ loan, spentCount: 10 }];
    for (let time = 0; time < 3; time++) {
      const { remaining } = await take({ limit: 1_000, requestCount: 0, over });
      expect(remaining).toBe(1_000 - takenCount - 10);
      expect(await expectSumRight()).toBe(takenCount + 10);
    }
    expect(lentCount).toBeGreaterThan(10);
  });

  test("refuse no request before they are given back", async () => {
    await inTime(AWAITED_MS, async (begin) => {
      project = await store.addProject();
      const { loan, lentCount, takenCount } = await takeLoan({ limit: 100 }, begin);
      const left = 100 - takenCount - lentCount;
      expect(await take({ limit: 100, requestCount: left }, other)).toMatchObject({
        acceptedCount: left,
        isUndecided: false,
      });
      expect(await take({ limit: 100 }, other)).toMatchObject({ acceptedCount: 0, isUndecided: true });
      const back = await take({ limit: 100, requestCount: 20, over: [{ loan, spentCount: 3 }] });
      expect(back).toMatchObject({ acceptedCount: lentCount - 3, isUndecided: false });
      expect(await expectSumRight()).toBe(100);
    });
  });

  test("count as accepted when they have not come back in eight ticks, and may come back later", async () => {
    const leastMs = countDown(WINDOW_MS - 5_000);
    const { loan, lentCount } = await takeLoan({ limit: 100 });
    await take({ limit: 100, requestCount: 100 });
    await age(8);
    const refused = await take({ limit: 100 }, other);
    expect(refused).toMatchObject({ acceptedCount: 0, isUndecided: false, remaining: 0 });
    expect(refused.retryAfterMs).toBeGreaterThan(leastMs());
    await age(300);
    const { remaining } = await take({ limit: 100, requestCount: 0, over: [{ loan, spentCount: 0 }] });
    expect(remaining).toBe(lentCount);
    await expectSumRight();
  });

  test("are forgotten with their tick, and giving them back then changes nothing", async () => {
    const { loan } = await takeLoan({ limit: 100 });
    await age(601);
    expect(await take({ limit: 100, over: [{ loan, spentCount: 0 }] })).toMatchObject({ remaining: 99 });
    expect(await expectSumRight()).toBe(1);
  });

  test("are forgotten when the clock goes back", async () => {
    const { loan } = await takeLoan({ limit: 100 });
    await age(-36_000);
    expect((await take({ limit: 100 })).remaining).toBe(99);
    await take({ limit: 100, over: [{ loan, spentCount: 0 }] });
    expect(await expectSumRight()).toBe(2);
  });

  test("do not lengthen the wait that a refusal names in the statement that gives them back", async () => {
    const { loan } = await takeLoan({ limit: 100 });
    await age(300);
    const leastMs = countDown(WINDOW_MS - 5_000);
    await take({ limit: 100, requestCount: 4 });
    // The rest of the old tick alone would leave one too many.
    const over = [{ loan, spentCount: 0 }];
    const { retryAfterMs } = await take({ limit: 4 - 1, over });
    expect(retryAfterMs).toBeGreaterThan(leastMs());
  });

  test("are seen by a statement that waited for the lock while they were lent", async () => {
    const mate = await store.session();
    await inTime(AWAITED_MS, async (begin) => {
      project = await store.addProject();
      await mate.query("BEGIN");
      await mate.query("SELECT 1 FROM rate_windows WHERE project_no = $1 FOR UPDATE", [project]);
      const waiting = take({ limit: 100 }, other);
      await store.untilBlocked();
      const loan = crypto.randomUUID();
      begin();
      const [row] = (
        await mate.query("SELECT floor(extract(epoch FROM clock_timestamp()) * 10)::bigint AS tick")
      ).rows;
      await mate.query("INSERT INTO rate_ticks VALUES ($1, 1, $2, 100)", [project, row.tick]);
      await mate.query(
        "UPDATE rate_windows SET accepted = 100, loans = jsonb_build_object($2::text, jsonb_build_array($3::bigint, 50)) WHERE project_no = $1 AND environment = 1",
        [project, loan, row.tick],
      );
      await mate.query("COMMIT");
      expect(await waiting).toMatchObject({ acceptedCount: 0, isUndecided: true });
      expect((await take({ limit: 100, over: [{ loan, spentCount: 0 }] })).remaining).toBe(49);
    });
    expect(await expectSumRight()).toBe(51);
  });
});
