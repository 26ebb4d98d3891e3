import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import pg from "pg";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { until } from "./until.ts";

let database: TestDatabase;
let pool: pg.Pool;
const lost: string[] = [];

beforeAll(async () => {
  database = await createTestDatabase("driver");
  pool = new pg.Pool({ connectionString: database.url, max: 4, idleTimeoutMillis: 0 });
  pool.on("error", (error) => lost.push(error.message));
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

/** Ends every session of the database except this function's own. */
async function killBackends(): Promise<void> {
  const client = new pg.Client({ connectionString: database.url });
  await client.connect();
  await client.query(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
  );
  await client.end();
}

describe("the Postgres driver", () => {
  test("prepares a named statement once in a session, and later only binds", async () => {
    const client = await pool.connect();
    try {
      for (const n of [1, 2, 3]) {
        const { rows } = await client.query({ name: "twice", text: "SELECT $1::int * 2 AS n", values: [n] });
        expect(rows).toEqual([{ n: 2 * n }]);
      }
      const { rows } = await client.query(
        "SELECT name, (generic_plans + custom_plans)::int AS plans FROM pg_prepared_statements",
      );
      expect(rows).toEqual([{ name: "twice", plans: 3 }]);
    } finally {
      client.release();
    }
  });

  test("refuses one name for two texts", async () => {
    const client = await pool.connect();
    try {
      await client.query({ name: "one_name", text: "SELECT 1 AS n" });
      await expect(client.query({ name: "one_name", text: "SELECT 2 AS n" })).rejects.toThrow("one_name");
    } finally {
      client.release();
    }
  });

  test("passes arrays as text, and texts of any content as an array", async () => {
    const texts = ['a "quoted" one', "back\\slash", "{,}", "NULL", "", "line\nfeed", "größe 🎡", null];
    const { rows } = await pool.query(
      "SELECT n, t FROM unnest($1::int[], $2::text[], $3::timestamptz[]) AS u (n, t, at) WHERE n IS NOT NULL",
      ["{1,2,3,4,5,6,7,8}", texts, '{"2026-01-01T00:00:00.123Z",-infinity,NULL}'],
    );
    expect(rows.map((row) => row.t)).toEqual(texts);
  });

  test("gives float8 as number, bigint as text, bytea as Buffer", async () => {
    const { rows } = await pool.query(
      "SELECT 1.5::float8 AS f, 9007199254740993::bigint AS b, '\\x00ff'::bytea AS y, '{1,2}'::smallint[] AS a",
    );
    expect(rows).toEqual([{ f: 1.5, b: "9007199254740993", y: Buffer.from([0, 255]), a: [1, 2] }]);
  });

  test("gives errors with their SQLSTATE", async () => {
    const refused = pool.query("SELECT $1::text", ["\u0000"]);
    await expect(refused).rejects.toMatchObject({ code: "22021" });
    await expect(pool.query("SELECT 1/0")).rejects.toMatchObject({ code: "22012" });
  });

  test("rejects what was under way when its backend was killed, and then serves again", async () => {
    const asked = Array.from({ length: 4 }, () =>
      pool.query({ name: "slow", text: "SELECT pg_sleep(30)" }).then(
        () => "no error",
        (error: { code?: string }) => error.code,
      ),
    );
    const watch = new pg.Client({ connectionString: database.url });
    await watch.connect();
    await until(async () => {
      const { rows } = await watch.query(
        "SELECT count(*)::int AS n FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'",
      );
      return rows[0]?.n === 4;
    });
    await watch.end();
    await killBackends();
    expect(await Promise.all(asked)).toEqual(["57P01", "57P01", "57P01", "57P01"]);
    const after = await Promise.all(
      Array.from({ length: 8 }, (_, n) =>
        pool.query({ name: "after", text: "SELECT $1::int AS n", values: [n] }),
      ),
    );
    expect(after.map(({ rows }) => rows[0]?.n)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  });

  test("reports a killed idle session by the pool's error event, and replaces it", async () => {
    await pool.query("SELECT 1");
    const idleCount = pool.totalCount;
    lost.length = 0;
    await killBackends();
    await until(() => lost.length === idleCount && pool.totalCount === 0);
    expect((await pool.query("SELECT 2 AS n")).rows).toEqual([{ n: 2 }]);
  });

  test("gives up an answer after query_timeout, and does not use that session again", async () => {
    const impatient = new pg.Pool({ connectionString: database.url, max: 1, query_timeout: 10_000 });
    impatient.on("error", () => {});
    const before = (await impatient.query("SELECT pg_backend_pid() AS pid")).rows[0]?.pid;
    await expect(impatient.query("SELECT pg_sleep(60)")).rejects.toThrow("timeout");
    const after = (await impatient.query("SELECT pg_backend_pid() AS pid")).rows[0]?.pid;
    expect(after).not.toBe(before);
    await impatient.end();
  });
});
