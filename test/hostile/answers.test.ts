import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { ERROR_BYTES_MAX } from "../../shared/domain/run.ts";
import { REGIONS } from "../../shared/domain/scope.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { repeatedArrivals, until, untilAllEnded, untilEnded } from "../flow/support.ts";
import { countFds } from "../runtime-contract/until.ts";
import { CELL_CONNECTIONS, type Cell, startCell } from "../support/cell.ts";
import { type PauseWatch, watchPauses } from "../support/pauses.ts";
import { startTarget } from "../support/target.ts";
import { HOSTILE_KINDS, type HostileTarget } from "../support/target-hostile.ts";

setDefaultTimeout(600_000);

const ATTEMPT_TIMEOUT_MS = 15_000;
/**
 * The region of the targets whose answers never end. The other targets get more time, since all of them together load
 * the machine. A connection that is not made fails after 10 s, and its attempt is to end before that.
 */
const IMPATIENT = "ap-southeast";
const IMPATIENT_TIMEOUT_MS = 8_000;
const CAP_SECONDS = 1;
/** The time that a busy machine may add to a deadline. */
const SLACK_MS = 60_000;
const NEIGHBOUR_JOBS = 40;

/** The cell sends one job to each kind of target, all at once, beside a neighbour with a good target. */
let cell: Cell;
let project: ProjectRow;
let neighbour: ProjectRow;
const good = startTarget();
const targets = new Map<string, HostileTarget>();
const ids = new Map<string, string>();
let fdsBefore = 0;
let pauses: PauseWatch;
/** How long the machine has held up this process since the first attempts. */
let pausedMs = 0;

beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  const regions = REGIONS.filter((region) => region !== IMPATIENT);
  await cell.startDelivery({ regions, attemptTimeoutMs: ATTEMPT_TIMEOUT_MS });
  await cell.startDelivery({ regions: [IMPATIENT], attemptTimeoutMs: IMPATIENT_TIMEOUT_MS });
  project = await cell.addProject();
  neighbour = await cell.addProject();
  for (const [name, kind] of Object.entries(HOSTILE_KINDS)) targets.set(name, await kind.start());
  const [warmUp = ""] = await cell.addJobs(neighbour, [{ targetUrl: good.url }]);
  await untilEnded(cell, neighbour, warmUp);
  pauses = await watchPauses(cell.url);
  fdsBefore = countFds();
  for (const [name, target] of targets) {
    const policy = { maxAttempts: 2, baseSeconds: CAP_SECONDS, capSeconds: CAP_SECONDS };
    const region = isEndless(name) ? IMPATIENT : "us-east";
    const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url, region, ...policy }]);
    ids.set(name, id);
  }
});
afterAll(async () => {
  await pauses.stop();
  await cell.stop();
  await good.stop();
  for (const target of targets.values()) await target.stop();
});

const isEndless = (name: string) => HOSTILE_KINDS[name]?.run.status === "timed_out";

describe("a neighbour of hostile targets", () => {
  test("has each of its jobs delivered by the first attempt", async () => {
    for (let count = 0; count < NEIGHBOUR_JOBS; count++) {
      const [id = ""] = await cell.addJobs(neighbour, [{ targetUrl: good.url, maxAttempts: 1 }]);
      expect(await untilEnded(cell, neighbour, id)).toMatchObject({ status: "succeeded", attempts: 1 });
    }
    expect(repeatedArrivals(good.arrivals)).toEqual([]);
  });
});

describe("a hostile target that", () => {
  test.each(Object.keys(HOSTILE_KINDS))("%s leaves the runs expected for it", async (name) => {
    const expected = HOSTILE_KINDS[name]?.run;
    const timeoutMs = isEndless(name) ? IMPATIENT_TIMEOUT_MS : ATTEMPT_TIMEOUT_MS;
    const id = ids.get(name) ?? "";
    const attempts = expected?.status === "succeeded" ? 1 : 2;
    const job = await untilEnded(cell, project, id);
    expect(job).toMatchObject({ status: attempts === 1 ? "succeeded" : "failed", attempts });
    pausedMs += pauses.read().totalMs;
    const runs = await cell.runs(project, id);
    expect(runs.length).toBe(attempts);
    for (const run of runs) {
      expect(run).toMatchObject({ status: expected?.status, responseStatus: expected?.responseStatus });
      if (expected?.error === null) expect(run.error).toBeNull();
      else expect(run.error ?? "").toMatch(expected?.error ?? /nothing/);
      // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what this looks for.
      expect(run.error ?? "").not.toMatch(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/);
      expect(Buffer.byteLength(run.error ?? "")).toBeLessThanOrEqual(ERROR_BYTES_MAX);
      expect(run.durationMs ?? Number.NaN).toBeLessThan(timeoutMs + SLACK_MS);
      if (run.status === "timed_out") {
        // The deadline counts from the claim, and the duration from the moment when the request could be sent.
        expect(run.durationMs).toBeGreaterThan(timeoutMs * 0.4 - pausedMs);
      }
    }
    // The wait stays within the policy's cap, whatever the target asks for.
    const [first] = runs;
    if (attempts === 2 && first !== undefined) {
      const waitMs = (first.nextRetryAt ?? Number.NaN) - first.startedAt - (first.durationMs ?? 0);
      expect(waitMs).toBeGreaterThanOrEqual(-SLACK_MS);
      expect(waitMs).toBeLessThanOrEqual(CAP_SECONDS * 1_000 + SLACK_MS);
    }
    // The HTTP client repeats no request by itself.
    const requestCount = targets.get(name)?.countRequests(id) ?? 0;
    expect(requestCount).toBeLessThanOrEqual(attempts);
    if (expected?.responseStatus !== null) expect(requestCount).toBe(attempts);
  });
});

describe("after all attempts at hostile targets have ended", () => {
  test("no permit is in use, and each was returned exactly once", async () => {
    await untilAllEnded(cell, project, [...ids.values()]);
    const runs = await Promise.all([...ids.values()].map((id) => cell.runs(project, id)));
    const [flow] = await cell.db.run<Record<string, number>>(
      "flow_of_project",
      "SELECT development_jobs + production_jobs AS in_use, returned::int AS returned FROM flows WHERE project_no = $1",
      [project.no],
    );
    expect(flow).toEqual({ in_use: 0, returned: runs.flat().length });
  });

  test("no connection to a target and no descriptor is left open", async () => {
    await untilAllEnded(cell, project, [...ids.values()]);
    for (const [name, target] of targets) {
      await until(() => target.openCount === 0).catch(() => {
        throw new Error(`${target.openCount} connections are open at the target that ${name}`);
      });
    }
    await until(() => countFds() <= fdsBefore + CELL_CONNECTIONS);
  });
});
