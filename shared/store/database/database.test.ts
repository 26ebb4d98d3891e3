import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { type SQL, sql } from "drizzle-orm";
import { openTestDatabase } from "../../../test/support/database.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { type Database, isDatabaseFault, isTakenKey, StoreUnavailable } from "./database.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

const PID = "SELECT pg_backend_pid() AS pid";

describe("a transaction", () => {
  test("that cannot begin, or that loses its connection, keeps no connection of the pool", async () => {
    const db = openTestDatabase(store.url, 2, "silent");
    const end = (pid: number | undefined) => store.query("SELECT pg_terminate_backend($1)", [pid]);
    const [idle] = await db.run<{ pid: number }>("pid", PID, []);
    await end(idle?.pid);
    for (let n = 0; n < 5; n++) {
      const lost = db.transact(async (tx) => {
        const [own] = await tx.run<{ pid: number }>("pid", PID, []);
        await end(own?.pid);
        await tx.run("one", "SELECT 1 AS one", []);
      });
      await lost.catch(() => undefined);
    }
    expect(await db.transact((tx) => tx.run<{ one: number }>("one", "SELECT 1 AS one", []))).toEqual([
      { one: 1 },
    ]);
    await db.close();
  });

  test("is rolled back when its callback throws, and its connection goes on", async () => {
    const projectNo = await store.addProject();
    const nameOf = () => store.query("SELECT name FROM projects WHERE no = $1", [projectNo]);
    const before = await nameOf();
    const refused = store.db.transact(async (tx) => {
      await tx.run("rename", "UPDATE projects SET name = 'x' WHERE no = $1", [projectNo]);
      throw new Error("refused");
    });
    await expect(refused).rejects.toThrow("refused");
    expect(await nameOf()).toEqual(before);
    await store.db.transact((tx) =>
      tx.run("rename", "UPDATE projects SET name = 'x' WHERE no = $1", [projectNo]),
    );
    expect(await nameOf()).toEqual([{ name: "x" }]);
  });
});

describe.each(["serialization_failure", "deadlock_detected"])(
  "a statement that Postgres rolls back: %s",
  (condition) => {
    const failing = (times: number) => `DO $$ BEGIN
    CREATE SEQUENCE IF NOT EXISTS tries;
    PERFORM setval('tries', 1);
    CREATE OR REPLACE FUNCTION fail() RETURNS int LANGUAGE plpgsql AS 'BEGIN
      IF nextval(''tries'') <= ${times} + 1 THEN RAISE EXCEPTION USING ERRCODE = ''${condition}''; END IF;
      RETURN 1;
    END';
  END $$`;
    const run = (db: Database) => db.run<{ one: number }>("fail", "SELECT fail() AS one", []);

    test("is run again, and each time is counted", async () => {
      await store.query(failing(4));
      const db = openTestDatabase(store.url, 1, "silent");
      expect(await run(db)).toEqual([{ one: 1 }]);
      expect(db.errors).toEqual({ unavailable: 0, refused: 0, repeated: 4 });
      await db.close();
    });

    test("is given up after five times, with an unknown outcome", async () => {
      await store.query(failing(5));
      await expect(run(store.db)).rejects.toThrow(StoreUnavailable);
    });
  },
);

describe("the figures that operators see of a database", () => {
  test("show how its connections are used, and count its errors as unavailable or refused", async () => {
    const db = openTestDatabase(store.url, 1, "silent");
    expect(db.connections()).toEqual({ busy: 0, idle: 0, waiting: 0 });
    const held = Promise.withResolvers<void>();
    const holding = db.transact(async (tx) => {
      await tx.run("pid", PID, []);
      await held.promise;
    });
    const second = db.run("pid", PID, []);
    expect(db.connections()).toEqual({ busy: 1, idle: 0, waiting: 1 });
    held.resolve();
    await Promise.all([holding, second]);
    expect(db.connections()).toEqual({ busy: 0, idle: 1, waiting: 0 });

    await expect(db.run("nonsense", "SELECT nothing", [])).rejects.toThrow();
    const add = "INSERT INTO nodes (kind, name, regions, process) VALUES ('worker', 'twice', '{}', 'test')";
    await db.run("add", add, []);
    await expect(db.run("add", add, [])).rejects.toThrow("nodes_living_name");
    const refusal = new Error("no statement's fault");
    await expect(db.transact(() => Promise.reject(refusal))).rejects.toBe(refusal);
    expect(db.errors).toEqual({ unavailable: 0, refused: 1, repeated: 0 });
    await expect(db.run("end", "SELECT pg_terminate_backend(pg_backend_pid())", [])).rejects.toThrow();
    expect(db.errors).toEqual({ unavailable: 1, refused: 1, repeated: 0 });
    await db.close();
  });

  test("count the errors of a transaction by their causes, also those that the query builder wraps", async () => {
    const db = openTestDatabase(store.url, 1, "silent");
    const ask = (statement: SQL) => db.transact(({ drizzle }) => drizzle.execute(statement));
    await expect(ask(sql`SELECT nothing`)).rejects.toThrow();
    expect(db.errors).toEqual({ unavailable: 0, refused: 1, repeated: 0 });
    const add = sql`INSERT INTO nodes (kind, name, regions, process) VALUES ('worker', 'thrice', '{}', 'test')`;
    await ask(add);
    const taken = await ask(add).catch((error) => error);
    expect(isTakenKey(taken)).toBe(true);
    expect(db.errors).toEqual({ unavailable: 0, refused: 1, repeated: 0 });
    const lost = await ask(sql`SELECT pg_terminate_backend(pg_backend_pid())`).catch((error) => error);
    expect(isDatabaseFault(lost)).toBe(true);
    expect(db.errors).toEqual({ unavailable: 1, refused: 1, repeated: 0 });
    await db.close();
  });

  test("count a transaction that gets no connection", async () => {
    const away = new URL(store.url);
    away.port = "1";
    const db = openTestDatabase(away.href, 1, "silent");
    await expect(db.transact(() => Promise.resolve())).rejects.toThrow();
    expect(db.errors).toEqual({ unavailable: 1, refused: 0, repeated: 0 });
    await db.close();
  });
});

test("a statement that Postgres refuses is no fault of the database, whatever its text and its parameters say", async () => {
  const refused = store.db.drizzle.execute(sql`SELECT ${"Connection terminated: timeout"}::int`);
  const error = await refused.catch((error) => error);
  expect(error.message).toContain("Connection terminated: timeout");
  expect(isDatabaseFault(error)).toBe(false);
});
