import { expect, test } from "bun:test";
import { cpSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { drizzle } from "drizzle-orm/node-postgres";
import { migrate as applyMigrations } from "drizzle-orm/node-postgres/migrator";
import pg from "pg";
import { openTestDatabase } from "../../../test/support/database.ts";
import { createTestDatabase } from "../../../test/support/postgres.ts";
import { migrate } from "../cell/migrate.ts";
import { listRuns } from "../resources/run-list.ts";
import { dropExpiredPartitions } from "./retention.ts";
import { listRunMoves, moveRuns } from "./run-moves.ts";

const MIGRATION = "run_retention";
const RUNS = 500;

test("a migration shows runs from before retention classes at once, and moves them to their plans' tables in batches", async () => {
  const database = await createTestDatabase("unsorted");
  const before = new pg.Client({ connectionString: database.url });
  const db = openTestDatabase(database.url, 2, "silent");
  // The database is dropped while this client is connected.
  before.on("error", () => undefined);
  try {
    await before.connect();
    await applyMigrations(drizzle(before), { migrationsFolder: await migrationsBefore(MIGRATION) });
    await before.query(SEED, [Date.now() - 3_600_000, RUNS]);
    await before.end();
    await migrate(database.url);

    const runsOf = async (projectNo: number) => {
      const page = await listRuns(db, {
        projectNo,
        environment: "production",
        jobId: null,
        status: null,
        beforeId: null,
        sinceAt: 0,
        limit: RUNS + 1,
      });
      return page.rows;
    };
    const shown = { hobby: await runsOf(1), scale: await runsOf(2) };
    expect([shown.hobby.length, shown.scale.length]).toEqual([RUNS, RUNS]);
    expect((await dropExpiredPartitions(db, Date.now())).names).toEqual([]);

    for (const move of await listRunMoves(db, 10)) {
      for (let count = 1; count > 0; ) count = (await moveRuns(db, move, 200)) ?? 0;
    }
    expect(await db.run("count_by_plan", BY_PLAN, [])).toEqual([
      { plan: "runs_hobby", runs: RUNS, in_default: 0 },
      { plan: "runs_scale", runs: RUNS, in_default: 0 },
    ]);
    expect({ hobby: await runsOf(1), scale: await runsOf(2) }).toEqual(shown);
    expect((await dropExpiredPartitions(db, Date.now())).names).toEqual(["runs_unsorted"]);
    expect((await dropExpiredPartitions(db, Date.now())).names).toEqual([]);
    expect(await runsOf(2)).toEqual(shown.scale);
  } finally {
    await db.close();
    await database.drop();
  }
});

/** A copy of the migrations that ends before one of them. */
async function migrationsBefore(name: string): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), "migrations-"));
  process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
  cpSync(join(import.meta.dir, "../database/migrations"), folder, { recursive: true });
  const journal = Bun.file(join(folder, "meta", "_journal.json"));
  const { entries, ...rest } = (await journal.json()) as { entries: { tag: string }[] };
  const end = entries.findIndex(({ tag }) => tag.endsWith(name));
  await journal.write(JSON.stringify({ ...rest, entries: entries.slice(0, end) }));
  return folder;
}

/** Two projects that are two days old, and runs of both from an instant on, a second apart. */
const SEED = `
WITH project AS (
  INSERT INTO projects (id, name, plan, api_version)
  SELECT (lpad(to_hex($1::bigint - 172800000), 12, '0') || left(md5(plan), 20))::uuid, plan, plan, '2026-11-01'
    FROM unnest(ARRAY['hobby', 'scale']) AS plan
  RETURNING no
), flow AS (
  INSERT INTO flows (project_no, concurrency, month) SELECT no, 10, date_trunc('month', now())::date FROM project
)
INSERT INTO runs (id, job_id, project_no, environment, attempt, status, started_at, duration_ms)
SELECT (lpad(to_hex($1::bigint + n * 1000), 12, '0') || left(md5(no::text || n), 20))::uuid, gen_random_uuid(), no, 1, 1,
       1 + n % 3, now(), 5
  FROM project CROSS JOIN generate_series(1, $2::int) AS n`;

const BY_PLAN = `
SELECT inhparent::regclass::text AS plan, count(*)::int AS runs,
       count(*) FILTER (WHERE inhrelid::regclass::text LIKE '%default')::int AS in_default
  FROM runs JOIN pg_inherits ON inhrelid = runs.tableoid GROUP BY 1 ORDER BY 1`;
