import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { clearHostLimit, setHostLimit } from "../../shared/store/cell/host-limits.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { endedStatusCode } from "../../shared/store/database/codes.ts";
import type { Transaction } from "../../shared/store/database/database.ts";
import { until } from "../flow/support.ts";
import { testCause } from "../support/cause.ts";
import { openPatientDatabase } from "../support/database.ts";
import { expectNothingDoubled } from "../support/load.ts";
import { createTestDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { startService } from "../support/service-process.ts";
import { startTarget } from "../support/target.ts";

setDefaultTimeout(600_000);

const JOBS = 40;
const HOST = "127.0.0.1";
const RECOVERY_MS = 60_000;
/** The name of this test's own sessions. */
const OWN_NAME = "test";

const dataDir = mkdtempSync(join(tmpdir(), "jobwheel-released-"));
const database = await createTestDatabase("released");
const ownUrl = new URL(database.url);
ownUrl.searchParams.set("application_name", OWN_NAME);
const db = openPatientDatabase(ownUrl.href, 2);
const target = startTarget();
afterAll(async () => {
  await target.stop();
  await db.close();
  await database.drop();
  rmSync(dataDir, { recursive: true, force: true });
});

const countJobs = async (sql: Transaction, which: "parked" | "due"): Promise<number> => {
  const isDue = which === "due" ? "IS NOT NULL" : "IS NULL";
  const [row] = await sql.run<{ count: number }>(
    `count_${which}`,
    `SELECT count(*)::int AS count FROM open_jobs WHERE parked_host = '${HOST}' AND node_id IS NULL AND due_at ${isDue}`,
    [],
  );
  return row?.count ?? 0;
};

const END_OTHERS = `
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend'
   AND application_name <> '${OWN_NAME}'`;

const countEnded = async (attempts: number): Promise<number> => {
  const text = "SELECT count(*)::int AS count FROM ended_jobs WHERE status = $1 AND attempts = $2";
  const [row] = await db.run<{ count: number }>("count_ended", text, [
    endedStatusCode("succeeded"),
    attempts,
  ]);
  return row?.count ?? 0;
};

test("attempts that a killed node had released and not yet claimed are sent once by the next node", async () => {
  await migrate(database.url);
  await setHostLimit(db, { host: HOST, requests: 0 }, testCause());
  const standalone = await startService("standalone", { DATA_DIR: dataDir, DATABASE_URL: database.url });
  const key = await until(() => /svc_live_[A-Za-z0-9]+(?=\s)/.exec(standalone.output)?.[0]);
  const post = () =>
    fetchServed(`http://127.0.0.1:${standalone.port}/v2/jobs`, {
      method: "POST",
      headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
      body: JSON.stringify({ target_url: target.url }),
    });
  const answers = await Promise.all(Array.from({ length: JOBS }, post));
  expect(answers.filter(({ status }) => status === 201).length).toBe(JOBS);
  await until(async () => (await countJobs(db, "parked")) === JOBS);

  // A claim waits for the row of its project; a release only reads it.
  await db.transact(async (sql) => {
    await sql.run("patience", "SET LOCAL idle_in_transaction_session_timeout = 0", []);
    await sql.run("lock_flows", "SELECT project_no FROM flows FOR UPDATE", []);
    await clearHostLimit(db, HOST, testCause());
    await until(async () => (await countJobs(sql, "due")) > 0);
    await standalone.end("SIGKILL");
    // Otherwise Postgres would execute the dead node's statements once the lock is free. Some may not wait for the
    // lock yet, so all of the node's sessions have to be gone. A transaction would see the same list of them again.
    await until(async () => (await db.run("end_others", END_OTHERS, [])).length === 0);
  });
  expect(target.arrivals.length).toBe(0);

  await standalone.startAgain();
  await target.until((arrivals) => arrivals.length >= JOBS, RECOVERY_MS);
  await until(async () => (await countEnded(1)) === JOBS);
  expectNothingDoubled(target);
  expect(await standalone.end("SIGTERM")).toBe(0);
});
