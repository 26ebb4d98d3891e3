import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import type { ProjectNo } from "../../domain/scope.ts";
import { recordStatements } from "../plan-test-support.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { emptyGateCalls } from "./gate-calls.ts";
import { emptyHostCalls } from "./host-calls.ts";

/** So many rows make the indexes deeper, which costs each of the statement's look-ups a page or two more. The rows fill 700 pages. */
const DEEPER_INDEX_PAGES = 500;

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
  await store.query("ALTER TABLE gate_calls SET (autovacuum_enabled = off)");
});
afterEach(() => store.query("DELETE FROM gate_calls"));
afterAll(() => store.stop());

/** Rows of calls for gates that have nothing to call: `rowsEach` for each of `count` gates, whose names begin with `kind`. */
const addCalls = (project: ProjectNo, kind: string, count: number, rowsEach = 1) =>
  store.query(
    `INSERT INTO gate_calls (project_no, environment, gate)
     SELECT $1, 1, $2 || n FROM generate_series(1, $3::int) n, generate_series(1, $4::int)`,
    [project, kind, count, rowsEach],
  );

/** How many rows each of the projects has left after each statement that empties the table. */
async function empty(projects: readonly ProjectNo[], calls = emptyGateCalls): Promise<number[][]> {
  const left: number[][] = [];
  const { db } = store;
  await calls({
    ...db,
    async run<Row>(name: string, text: string, values: unknown[]) {
      const rows = await db.run<Row>(name, text, values);
      const found = await store.query<{ project_no: ProjectNo; count: number }>(
        "SELECT project_no, count(*)::int AS count FROM gate_calls GROUP BY 1",
      );
      const counts = new Map(found.map(({ project_no, count }) => [project_no, count]));
      left.push(projects.map((project) => counts.get(project) ?? 0));
      return rows;
    },
  });
  return left;
}

describe("calls of gates", () => {
  test("are taken a few gates at a time, by projects in turn, whatever was asked first", async () => {
    for (const [kind, calls, gatesMax] of [
      ["k", emptyGateCalls, 100],
      ["h", emptyHostCalls, 20],
    ] as const) {
      const [flooding, other] = [await store.addProject(), await store.addProject()];
      await addCalls(flooding, kind, 2 * gatesMax);
      await addCalls(other, kind, 10);
      const left = await empty([flooding, other], calls);
      expect(left).toEqual([
        [gatesMax + 10, 0],
        [10, 0],
        [0, 0],
      ]);
    }
  });

  test("of one gate are taken together, a bounded number of them", async () => {
    const project = await store.addProject();
    await addCalls(project, "k", 1, 700);
    expect(await empty([project])).toEqual([[200], [0]]);
  });

  test("of many projects are all taken", async () => {
    const projects = await Promise.all(Array.from({ length: 45 }, () => store.addProject()));
    for (const project of projects) await addCalls(project, "k", 10);
    const left = await empty(projects);
    expect(left.at(-1)).toEqual(projects.map(() => 0));
    // A hundred gates of twenty projects have five turns each.
    expect(left[0]?.toSorted()).toEqual([...Array(25).fill(10), ...Array(20).fill(5)].toSorted());
  });

  test("that may have thousands of attempts to call are taken alone", async () => {
    const project = await store.addProject();
    await addCalls(project, "k", 3);
    await addCalls(project, "p", 5);
    // The first three gates of both kinds are the same keys.
    expect(await empty([project])).toEqual([[6], [4], [2], [1], [0]]);
  });

  test("end a turn of emptying, although more of them come all the time", async () => {
    const project = await store.addProject();
    const addMore = () => addCalls(project, "k", 300);
    await addMore();
    await emptyGateCalls({
      ...store.db,
      async run<Row>(name: string, text: string, values: unknown[]) {
        const rows = await store.db.run<Row>(name, text, values);
        await addMore();
        return rows;
      },
    });
    expect((await store.query("SELECT FROM gate_calls")).length).toBeGreaterThan(0);
  });

  test("that another node has taken are left to it", async () => {
    const project = await store.addProject();
    await addCalls(project, "k", 3);
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("SELECT FROM gate_calls WHERE gate = 'k2' FOR UPDATE");
    expect((await empty([project])).at(-1)).toEqual([1]);
    await session.query("COMMIT");
    expect(await empty([project])).toEqual([[0]]);
  });

  test.each(["never", "once it had run empty", "once few waited"])(
    "are found at the same cost however many wait (the table was analyzed %s)",
    async (analyzed) => {
      const [flooding, other] = [await store.addProject(), await store.addProject()];
      const recorder = recordStatements(store.db);
      const session = await store.session();
      for (const [kind, calls, name] of [
        ["k", emptyGateCalls, "empty_gate_calls"],
        ["h", emptyHostCalls, "empty_host_calls"],
      ] as const) {
        await calls(recorder.db);
        await store.query("TRUNCATE gate_calls");
        if (analyzed !== "never") {
          // The indexes stay large.
          await addCalls(flooding, kind, 100_000);
          await store.query("DELETE FROM gate_calls");
          await store.query("VACUUM ANALYZE gate_calls");
        }
        // The plan is made for any parameters, as the role's settings ask for, and kept.
        await session.query(`PREPARE ${name} AS ${recorder.statements.get(name)?.text}`);
        const countRead = async () => {
          await session.query("BEGIN");
          const { rows } = await session.query<{ "QUERY PLAN": [{ Plan: Record<string, number> }] }>(
            `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE ${name}(0, 500)`,
          );
          await session.query("ROLLBACK");
          return rows[0]?.["QUERY PLAN"][0].Plan["Shared Hit Blocks"] ?? Number.NaN;
        };
        await countRead();
        await addCalls(other, kind, 1);
        await addCalls(flooding, kind, 500);
        const few = await countRead();
        // So the next plan is made for many rows by what is known of few.
        if (analyzed === "once few waited") await store.query("ANALYZE gate_calls");
        await addCalls(flooding, kind, 100_000);
        expect(await countRead()).toBeLessThan(few + DEEPER_INDEX_PAGES);
      }
    },
  );
});
