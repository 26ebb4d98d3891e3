import { afterAll, beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import fc from "fast-check";
import { ENVIRONMENTS, type ProjectNo } from "../domain/scope.ts";
import { createLog } from "../platform/log.ts";
import { type Database, openDatabase } from "./database.ts";
import { type RateAnswer, type RateQuestion, takeRequests } from "./request-rate.ts";
import { startStore, type TestStore } from "./test-support.ts";

setDefaultTimeout(60_000);

let store: TestStore;
/** What a second gateway has: connections of its own. */
let other: Database;
let project: ProjectNo;

beforeAll(async () => {
  store = await startStore();
  other = openDatabase(store.url, { connections: 8, log: createLog({ name: "test", level: "silent" }) });
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
  ...wish,
});

async function take(wish: Partial<RateQuestion> = {}, db = store.db): Promise<RateAnswer> {
  const [answer] = await takeRequests(db, [question(wish)]);
  if (answer === undefined) throw new Error("no answer");
  return answer;
}

/** As if so much time had passed. By way of the negative numbers, since no tick may pass through another. */
async function age(ticks: number): Promise<void> {
  await store.query("UPDATE rate_ticks SET tick = -tick WHERE project_no = $1", [project]);
  await store.query("UPDATE rate_ticks SET tick = -tick - $2 WHERE project_no = $1", [project, ticks]);
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

describe("the request rate", () => {
  test("counts down to nothing, refuses, and says when it will accept again", async () => {
    expect(await take({ requestCount: 7 })).toMatchObject({
      acceptedCount: 7,
      remaining: 3,
      retryAfterMs: 0,
    });
    const last = await take({ requestCount: 5 });
    expect(last).toMatchObject({ acceptedCount: 3, remaining: 0 });
    for (const ms of [last.retryAfterMs, last.resetMs]) {
      expect(ms).toBeGreaterThan(WINDOW_MS - 5_000);
      expect(ms).toBeLessThanOrEqual(WINDOW_MS + TICK_MS);
    }
    expect(await take()).toMatchObject({ acceptedCount: 0, remaining: 0 });
    // What was refused has left nothing behind.
    expect(await expectSumRight()).toBe(10);
  });

  test("of requests beyond the limit that are the first of all names the wait as well", async () => {
    const { acceptedCount, retryAfterMs } = await take({ requestCount: 11 });
    expect(acceptedCount).toBe(10);
    expect(retryAfterMs).toBeGreaterThan(WINDOW_MS);
    expect(retryAfterMs).toBeLessThanOrEqual(WINDOW_MS + TICK_MS);
  });

  test("holds a request for a minute and at most a tenth of a second more", async () => {
    await take({ requestCount: 10 });
    const { retryAfterMs } = await take();
    // The whole ticks that still lie before it, but one: it counts.
    await age(Math.ceil(retryAfterMs / TICK_MS) - 3);
    expect((await take()).acceptedCount).toBe(0);
    await age(3);
    expect(await take()).toMatchObject({ acceptedCount: 1, remaining: 9 });
    expect(await expectSumRight()).toBe(1);
  });

  test("begins anew where the database's clock has gone back, instead of waiting for times to come", async () => {
    await take({ requestCount: 10 });
    expect((await take()).acceptedCount).toBe(0);
    await age(-36_000);
    expect(await take()).toMatchObject({ acceptedCount: 1, remaining: 9 });
  });

  test("waits, after the limit was lowered, for as much as is too much", async () => {
    await take({ requestCount: 4 });
    await age(300);
    await take({ requestCount: 4 });
    // Of 8 accepted 6 have to go: the 4 old ones are not enough.
    const { acceptedCount, remaining, retryAfterMs } = await take({ limit: 3 });
    expect({ acceptedCount, remaining }).toEqual({ acceptedCount: 0, remaining: 0 });
    expect(retryAfterMs).toBeGreaterThan(WINDOW_MS - 5_000);
    expect((await take({ limit: 5 })).retryAfterMs).toBeLessThan(WINDOW_MS / 2 + 2 * TICK_MS);
  });

  test("is counted for each project and environment apart, many in one statement", async () => {
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

  test("of a project that does not exist is a bug, not a refusal", async () => {
    await expect(take({ projectNo: 1_000_000 })).rejects.toThrow("request rate");
  });

  test("is there for projects that are older than it", async () => {
    const migration = await Bun.file(`${import.meta.dir}/migrations/0001_request_rates.sql`).text();
    await store.query("DELETE FROM rate_windows");
    await store.query(migration.split("--> statement-breakpoint").at(-1) ?? "");
    for (const environment of ENVIRONMENTS) expect((await take({ environment })).acceptedCount).toBe(1);
  });

  test("accepts exactly the limit of a burst over two gateways, ten times out of ten", async () => {
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

  test("stays exact while ticks run out under two gateways at once", async () => {
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
      // A part of what was accepted is a minute old.
      await store.query(
        `WITH old AS (SELECT project_no, environment, tick FROM rate_ticks WHERE project_no = $1 ORDER BY tick LIMIT 1)
         UPDATE rate_ticks t SET tick = t.tick - 601 FROM old
          WHERE t.project_no = old.project_no AND t.environment = old.environment AND t.tick = old.tick`,
        [project],
      );
    }
  });

  test("is not misled by a row that had the same sum before the lock was waited for", async () => {
    const limit = 10;
    await take({ limit, requestCount: 5 });
    const mate = await store.session();
    await mate.query("BEGIN");
    await mate.query("SELECT 1 FROM rate_windows WHERE project_no = $1 FOR UPDATE", [project]);
    const waiting = take({ limit, requestCount: 2 }, other);
    await store.untilBlocked();
    // A mate takes away the five old ones and accepts three: with two more the sum is five again.
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

  test("is that of a plain model of a sliding minute, tick by tick", async () => {
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
          // Ages in ticks; the steps themselves take a few, which the margins leave out.
          let model: { age: number; count: number }[] = [];
          for (const { count, ticks } of steps) {
            await age(ticks);
            model = model.map((entry) => ({ ...entry, age: entry.age + ticks }));
            if (model.some((entry) => entry.age > 560 && entry.age <= 601)) return;
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
