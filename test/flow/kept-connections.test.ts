import { afterEach, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import type net from "node:net";
import { UNKNOWN_ERROR } from "../../shared/domain/run.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { answerOf, type RawServer, startRawServer } from "../runtime-contract/raw-server.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";
import { until, untilEnded } from "./support.ts";

setDefaultTimeout(240_000);

/** The backoff is far longer than a test, so an attempt that follows within the test did not wait for it. */
const BACKOFF_SECONDS = 86_400;
const JOBS_MAX = 100;

let cell: Cell;
let project: ProjectRow;
let closing: RawServer;
beforeEach(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery();
  project = await cell.addProject();
  closing = await startClosing();
});
afterEach(async () => {
  await cell.stop();
  await closing.stop();
});

/** Starts a target that keeps connections, and closes each of them in place of a second answer. */
function startClosing(): Promise<RawServer> {
  const answered = new WeakSet<net.Socket>();
  return startRawServer((socket) => {
    if (answered.has(socket)) socket.destroy();
    else socket.write(answerOf("200 OK", { "keep-alive": "timeout=5" }));
    answered.add(socket);
  });
}

describe("a kept connection that the target closes instead of answering", () => {
  test("leaves a run with an unknown outcome, and the next attempt follows at once", async () => {
    const wish = {
      targetUrl: closing.url,
      maxAttempts: 2,
      baseSeconds: BACKOFF_SECONDS,
      capSeconds: BACKOFF_SECONDS,
    };
    // The machine decides whether a connection is still kept when the next job comes.
    for (let count = 0; count < JOBS_MAX; count++) {
      const [id = ""] = await cell.addJobs(project, [wish]);
      const job = await untilEnded(cell, project, id);
      expect(job.status).toBe("succeeded");
      if (job.attempts === 1) continue;
      const runs = (await cell.runs(project, id)).toSorted((a, b) => a.attempt - b.attempt);
      expect(runs).toMatchObject([
        { status: "failed", responseStatus: null, error: UNKNOWN_ERROR },
        { status: "succeeded", responseStatus: 200, error: null },
      ]);
      // Each attempt was sent once.
      expect(closing.requests.filter((request) => request.includes(id)).length).toBe(2);
      return;
    }
    throw new Error("no connection was used twice");
  });

  test("leaves a job that has one attempt failed, with an unknown outcome", async () => {
    for (let count = 0; count < JOBS_MAX; count++) {
      const [id = ""] = await cell.addJobs(project, [{ targetUrl: closing.url, maxAttempts: 1 }]);
      const job = await untilEnded(cell, project, id);
      if (job.status === "succeeded") continue;
      expect(job).toMatchObject({ status: "failed", attempts: 1 });
      expect(await cell.runs(project, id)).toMatchObject([
        { status: "failed", responseStatus: null, error: UNKNOWN_ERROR },
      ]);
      expect(closing.requests.filter((request) => request.includes(id)).length).toBe(1);
      return;
    }
    throw new Error("no connection was used twice");
  });

  test("leaves a delivery attempt with an unknown outcome that does not count against the endpoint, and the next one follows at once", async () => {
    const jobs = startTarget();
    await cell.addEndpoint(project, { url: `${closing.url}/hook` });
    for (let count = 0; count < JOBS_MAX; count++) {
      await cell.addJobs(project, [{ targetUrl: jobs.url }]);
      await until(async () => (await deliveries()) === count + 1);
      const attempts = await cell.db.run<{
        attempt: number;
        response_status: number | null;
        error: string | null;
      }>(
        "test_repeated",
        `SELECT attempt, response_status, error FROM delivery_attempts
         WHERE delivery_id IN (SELECT delivery_id FROM delivery_attempts WHERE attempt > 1) ORDER BY attempt`,
        [],
      );
      if (attempts.length === 0) continue;
      expect(attempts).toEqual([
        { attempt: 1, response_status: null, error: UNKNOWN_ERROR },
        { attempt: 2, response_status: 200, error: null },
      ]);
      await jobs.stop();
      return;
    }
    throw new Error("no connection was used twice");
  });
});

/** The number of deliveries that have ended. */
async function deliveries(): Promise<number> {
  const [row] = await cell.db.run<{ count: number }>(
    "test_ended",
    "SELECT count(*)::int AS count FROM ended_deliveries",
    [],
  );
  return row?.count ?? 0;
}
