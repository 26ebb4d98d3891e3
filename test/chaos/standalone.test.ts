import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { until } from "../flow/support.ts";
import { createLoad, expectNothingDoubled, expectRunsMatch, untilTerminal } from "../support/load.ts";
import { fetchServed } from "../support/served.ts";
import { startService } from "../support/service-process.ts";
import { startTarget } from "../support/target.ts";

setDefaultTimeout(600_000);

const JOBS = 500;
/** So many attempts may be on the wire, so the rest of the jobs are sent after the restart. */
const CONCURRENCY = JOBS / 2;
/** A busy machine answers some of so many requests with 503 for a while. These are repeated. */
const POSTED_MS = 180_000;
const ANSWER_AFTER_MS = 400;
/** The time since the kill: the restart with the recovery of Postgres, and the second attempts of the lost ones. */
const RECOVERY_MS = 60_000;

const dataDir = mkdtempSync(join(tmpdir(), "jobwheel-standalone-"));
const killed = Promise.withResolvers<void>();
const target = startTarget(async () => {
  await Bun.sleep(ANSWER_AFTER_MS);
  // The later jobs are on the wire until the kill.
  if (target.arrivals.length > JOBS / 5) await killed.promise;
  return new Response("ok");
});
afterAll(async () => {
  await target.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

test("a standalone killed with 500 jobs in flight ends every accepted job after its restart, each once", async () => {
  const standalone = await startService("standalone", { DATA_DIR: dataDir });
  // The keys are printed when the standalone is ready; the last line may still be on its way.
  const key = await until(() => /svc_live_[A-Za-z0-9]+(?=\s)/.exec(standalone.output)?.[0]);
  // The plan's request rate is meant for clients; this test asks for every job again and again.
  const projectId = /prj_[a-z0-9]+/.exec(standalone.output)?.[0] ?? "";
  const limits = ["--requests-per-minute", "1000000", "--concurrency", String(CONCURRENCY)];
  const admin = ["services/admin/main.ts", "project", "set", projectId, ...limits];
  const changed = Bun.spawnSync([process.execPath, ...admin], {
    env: { ...process.env, DATA_DIR: dataDir, DATABASE_URL: "" },
  });
  expect(changed.stderr.toString()).toBe("");
  const base = `http://127.0.0.1:${standalone.port}`;
  const load = createLoad(() => base, key, { send: fetchServed, timeoutMs: POSTED_MS });
  const posting = Array.from({ length: JOBS }, () => load.post({ target_url: target.url }));
  await target.until((arrivals) => arrivals.length > JOBS / 5, POSTED_MS);
  await until(() => load.accepted.size >= JOBS / 5);
  await standalone.end("SIGKILL");
  killed.resolve();
  await Promise.all(posting);
  const arrivedBefore = target.arrivals.length;
  expect(arrivedBefore).toBeLessThan(JOBS);

  await standalone.startAgain();
  const jobs = await untilTerminal(base, key, load, RECOVERY_MS);
  expect(jobs.length).toBeGreaterThanOrEqual(JOBS / 5);
  expect(jobs.filter((job) => job.status !== "succeeded")).toEqual([]);
  // Some jobs were on the wire at the kill: their first attempt is lost, and their second one succeeds.
  expect(jobs.filter((job) => job.attempts > 1).length).toBeGreaterThan(0);
  expectNothingDoubled(target);
  await expectRunsMatch(base, key, jobs);
  // The keys are printed once.
  expect(standalone.output.match(/svc_live_/g)).toHaveLength(1);
  expect(await standalone.end("SIGTERM")).toBe(0);
});
