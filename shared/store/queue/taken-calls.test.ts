import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import type { ProjectNo } from "../../domain/scope.ts";
import { explain, recordStatements } from "../plan-test-support.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { emptyGateCalls } from "./gate-calls.ts";
import { emptyHostCalls } from "./host-calls.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
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

  test("are found at the same cost however many wait", async () => {
    const [flooding, other] = [await store.addProject(), await store.addProject()];
    const recorder = recordStatements(store.db);
    for (const [kind, calls, name] of [
      ["k", emptyGateCalls, "empty_gate_calls"],
      ["h", emptyHostCalls, "empty_host_calls"],
    ] as const) {
      await calls(recorder.db);
      const { text, values } = recorder.statements.get(name) ?? { text: "", values: [] };
      const readPages = async () => {
        const plan = { mode: "force_generic_plan", text, values, tables: ["gate_calls"] };
        const { pagesRead, wholeTables } = await explain(store, plan);
        expect(wholeTables).toEqual([]);
        return pagesRead;
      };
      await addCalls(other, kind, 1);
      await addCalls(flooding, kind, 500);
      const few = await readPages();
      await addCalls(flooding, kind, 20_000);
      expect(await readPages()).toBeLessThan(1.5 * few);
    }
  });
});
