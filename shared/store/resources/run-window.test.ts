import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import { firstIdAt, idTimeMs, idToUuid, RUN_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { retentionClassOf } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { settleAttempts } from "../queue/settle.ts";
import { createRunPartitions, dropExpiredPartitions } from "../retention/retention.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { retryRun } from "./jobs-by-hand.ts";
import { listRuns } from "./run-list.ts";
import { findRun } from "./runs.ts";

setDefaultTimeout(600_000);

const DAY_MS = 86_400_000;
const EXPIRED_RUNS = 200_000;

let store: TestStore;
let nodeId: number;
let project: ProjectNo;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
  project = await store.addProject();
});
afterAll(() => store.stop());

const scope = (sinceAt: number) => ({ projectNo: project, environment: "production" as const, sinceAt });
const page = (sinceAt: number) => ({
  ...scope(sinceAt),
  jobId: null,
  status: null,
  beforeId: null,
  limit: 50,
});

describe("a run that is as old as the window", () => {
  test("is found and listed, and one that is a millisecond older is not", async () => {
    const [jobId = ""] = await store.addJobs(project, 1);
    const attempt = await store.start(nodeId, project, jobId);
    await settleAttempts(store.db, [settlementOf(attempt, failedWith("over"))]);
    const { runId } = attempt.granted;
    const bornAt = idTimeMs(runId);
    for (const [sinceAt, isShown] of [
      [bornAt - 1, true],
      [bornAt - 0.5, true],
      [bornAt, true],
      [bornAt + 0.5, false],
      [bornAt + 1, false],
    ] as const) {
      const ids = isShown ? [runId] : [];
      expect((await findRun(store.db, scope(sinceAt), runId))?.id).toBe(ids[0]);
      expect((await listRuns(store.db, page(sinceAt))).rows.map(({ id }) => id)).toEqual(ids);
      expect((await listRuns(store.db, { ...page(sinceAt), jobId })).rows.map(({ id }) => id)).toEqual(ids);
    }
    const before = await store.flow(project);
    expect(await retryRun(store.db, scope(bornAt + 1), runId, store.newRunId(), keyCause())).toEqual({
      kind: "not_found",
    });
    expect(await store.flow(project)).toEqual(before);
    expect(await retryRun(store.db, scope(bornAt), runId, store.newRunId(), keyCause())).toMatchObject({
      kind: "retried",
    });
  });

  test("is shown however old it is while it is in progress", async () => {
    const [jobId = ""] = await store.addJobs(project, 1);
    const { granted } = await store.start(nodeId, project, jobId);
    const never = Date.now() + DAY_MS;
    expect(await findRun(store.db, scope(never), granted.runId)).toMatchObject({ status: "running" });
    expect((await listRuns(store.db, page(never))).rows.map(({ id }) => id)).toContain(granted.runId);
  });
});

describe("over many runs that have expired", () => {
  let shown: string[];
  beforeAll(async () => {
    // Tables as they are after twenty days, and the runs of a project that has come down from enterprise.
    await dropExpiredPartitions(store.db, Date.now() + 1_000 * DAY_MS);
    for (const days of [20, 0]) await createRunPartitions(store.db, Date.now() - days * DAY_MS);
    project = await store.addProject({ plan: "hobby" });
    const rows = (firstAt: number, spreadMs: number, count: number) =>
      store.query<{ id: string }>(
        `INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, started_at, duration_ms)
         SELECT (lpad(to_hex($3::bigint + n * $4::bigint / $5), 12, '0') || left(md5(n::text), 20))::uuid, gen_random_uuid(),
                $1, 1, $2, 1, 1 + n % 3, now(), 5
           FROM generate_series(0, $5::int - 1) AS n RETURNING CASE WHEN $5 < 1000 THEN id::text END AS id`,
        [project, retentionClassOf("enterprise"), Math.floor(firstAt), Math.floor(spreadMs), count],
      );
    await rows(Date.now() - 20 * DAY_MS, 16 * DAY_MS, EXPIRED_RUNS);
    shown = (await rows(Date.now() - DAY_MS, DAY_MS / 2, 60))
      .map(({ id }) => uuidToId(RUN_PREFIX, id))
      .reverse();
    await store.query("VACUUM ANALYZE");
  });

  test("a page, a look-up and a retry read few pages, by the indexes, of tables within the window", async () => {
    const sinceAt = Date.now() - 3 * DAY_MS;
    const recorder = record(store.db);
    expect((await listRuns(recorder.db, page(sinceAt))).rows.map(({ id }) => id)).toEqual(shown.slice(0, 50));
    const rest = { ...page(sinceAt), beforeId: shown[49] ?? null };
    expect((await listRuns(recorder.db, rest)).rows.map(({ id }) => id)).toEqual(shown.slice(50));
    const found = await findRun(recorder.db, scope(sinceAt), shown[0] ?? "");
    await listRuns(recorder.db, { ...page(sinceAt), jobId: found?.jobId ?? "" });
    const [jobId = ""] = await store.addJobs(project, 1);
    const attempt = await store.start(nodeId, project, jobId);
    await settleAttempts(store.db, [settlementOf(attempt, failedWith({ dueAt: Date.now() + DAY_MS }))]);
    await retryRun(recorder.db, scope(sinceAt), attempt.granted.runId, store.newRunId(), keyCause());

    const expired = await tablesBefore(sinceAt);
    expect(expired.size).toBeGreaterThan(15);
    const PAGES_MAX: Record<string, number> = {
      list_runs: 200,
      list_runs_of_job: 100,
      find_run: 50,
      find_job_state: 50,
      retry_run: 100,
    };
    expect([...recorder.statements.keys()].sort()).toEqual(Object.keys(PAGES_MAX).sort());
    for (const [name, { text, values }] of recorder.statements) {
      const { nodes, pagesRead } = await explain(text, values);
      const scans = nodes.filter(
        (node) => node["Relation Name"]?.startsWith("runs_") && node["Node Type"] !== "ModifyTable",
      );
      const isByIndex = scans.every((node) => node["Node Type"].startsWith("Index"));
      expect({ name, isByIndex, isFew: pagesRead < (PAGES_MAX[name] ?? 0) }).toEqual({
        name,
        isByIndex: true,
        isFew: true,
      });
      // The retry also changes the attempt before it, however long ago that attempt began.
      if (name === "retry_run" || name === "find_job_state") continue;
      const looked = scans.map((node) => node["Relation Name"] ?? "");
      expect({ name, looked: looked.filter((table) => expired.has(table)) }).toEqual({ name, looked: [] });
      expect(looked.length).toBeGreaterThan(0);
    }
  });
});

/** The tables that end before an instant. */
async function tablesBefore(at: number): Promise<Set<string>> {
  const rows = await store.query<{ name: string }>(
    `SELECT relname AS name FROM pg_class
      WHERE relkind = 'r' AND substring(pg_get_expr(relpartbound, oid) FROM 'TO [(]''(.*)''')::uuid <= $1`,
    [idToUuid(firstIdAt(RUN_PREFIX, at))],
  );
  return new Set(rows.map(({ name }) => name));
}

/** The database with a memory of the last call of each named statement. A manual retry is remembered and not made. */
function record(db: Database) {
  const statements = new Map<string, { text: string; values: unknown[] }>();
  return {
    statements,
    db: {
      ...db,
      run<Row>(name: string, text: string, values: unknown[]) {
        statements.set(name, { text, values });
        if (name === "retry_run") return Promise.resolve([{ outcome: "quota_exceeded" } as Row]);
        return db.run<Row>(name, text, values);
      },
    },
  };
}

interface PlanNode {
  "Node Type": string;
  "Relation Name"?: string;
  "Shared Hit Blocks": number;
  "Shared Read Blocks": number;
  Plans?: PlanNode[];
}

/** How Postgres runs a statement of the service, and how many pages it reads. Its changes are rolled back. */
async function explain(text: string, values: unknown[]): Promise<{ nodes: PlanNode[]; pagesRead: number }> {
  const client = await store.session();
  try {
    await client.query("BEGIN");
    await client.query(`PREPARE asked AS ${text}`);
    const list = values.map((value) => (value === null ? "NULL" : client.escapeLiteral(String(value))));
    const { rows } = await client.query<{ "QUERY PLAN": { Plan: PlanNode }[] }>(
      `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked(${list.join(", ")})`,
    );
    const root = rows[0]?.["QUERY PLAN"][0]?.Plan;
    if (root === undefined) throw new Error("no plan");
    return { nodes: flatten(root), pagesRead: root["Shared Hit Blocks"] + root["Shared Read Blocks"] };
  } finally {
    await client.query("ROLLBACK");
  }
}

const flatten = (node: PlanNode): PlanNode[] => [node, ...(node.Plans ?? []).flatMap(flatten)];
