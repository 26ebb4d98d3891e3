import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createLog } from "../platform/log.ts";
import { openDatabase } from "./database.ts";
import { startStore, type TestStore } from "./test-support.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

const PID = "SELECT pg_backend_pid() AS pid";

describe("a transaction", () => {
  test("that cannot begin, or loses its connection within, keeps no connection of the pool", async () => {
    const log = createLog({ name: "test", level: "silent" });
    const db = openDatabase(store.url, { connections: 2, log });
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

  test("takes everything back where it is refused, and its connection goes on", async () => {
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
