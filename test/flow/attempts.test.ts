import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createHmac } from "node:crypto";
import { retryCeilingMs } from "../../shared/domain/backoff.ts";
import { ENVIRONMENTS, REGIONS } from "../../shared/domain/scope.ts";
import { traceIdOf } from "../../shared/domain/trace.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { type PauseWatch, watchPauses } from "../support/pauses.ts";
import { startTarget } from "../support/target.ts";
import { retried, retry, signatureOf, until, untilEnded, untilJob } from "./support.ts";

/** The region whose attempts time out soon. */
const IMPATIENT = "ap-southeast";

let cell: Cell;
let pauses: PauseWatch;
beforeAll(async () => {
  cell = await startCell();
  pauses = await watchPauses(cell.url);
  await cell.startWorker();
  await cell.startDelivery({ regions: REGIONS.filter((region) => region !== IMPATIENT) });
  await cell.startDelivery({ regions: [IMPATIENT], attemptTimeoutMs: 8_000 });
});
afterAll(async () => {
  await pauses.stop();
  await cell.stop();
});

describe("a job", () => {
  test("without run_at is delivered at once, with the documented headers, body and signatures", async () => {
    const target = startTarget();
    const project = await cell.addProject();
    const payload =
      '{"n":9007199254740993,"text":"größe 🎡 \\u0000\\ud800","__proto__":{"b":1.10,"a":1e400},"2":-0,"1":0}';
    for (const environment of ENVIRONMENTS) {
      target.arrivals.length = 0;
      const runAt = Math.floor(cell.clock.now()) - 1_000;
      const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url, payload, environment, runAt }]);
      const [arrival] = await target.until((arrivals) => arrivals.length === 1);
      if (arrival === undefined) throw new Error("nothing arrived");
      const job = await untilEnded(cell, project, id, environment);
      const [run] = await cell.runs(project, id, environment);
      const secret = project.secrets[environment];
      const { traceparent, "webhook-timestamp": timestamp, ...headers } = arrival.headers;
      const signed = createHmac("sha256", Buffer.from(secret.slice(6), "base64"))
        .update(`${run?.id}.${timestamp}.${payload}`)
        .digest("base64");
      expect(arrival.body).toBe(payload);
      expect(headers).toEqual({
        "content-type": "application/json",
        "content-length": String(Buffer.byteLength(payload)),
        "user-agent": "Jobwheel/1",
        connection: "keep-alive",
        host: `127.0.0.1:${target.port}`,
        "service-job-id": id,
        "service-run-id": run?.id ?? "",
        "service-attempt": "1",
        "service-attempt-fence": "1",
        "service-scheduled-at": new Date(runAt).toISOString(),
        "service-environment": environment,
        "idempotency-key": id,
        "service-signature": signatureOf(secret, payload),
        "webhook-id": run?.id ?? "",
        "webhook-signature": `v1,${signed}`,
      });
      expect(traceparent).toMatch(new RegExp(`^00-${traceIdOf(id)}-[0-9a-f]{16}-00$`));
      // The signature's time has whole seconds, and lies between the two instants.
      expect(Number(timestamp) * 1_000).toBeWithin(
        (run?.startedAt ?? Number.NaN) - 2_000,
        arrival.at + 1_000,
      );
      expect(job).toMatchObject({ status: "succeeded", attempts: 1 });
      expect(run).toMatchObject({
        attempt: 1,
        status: "succeeded",
        responseStatus: 200,
        error: null,
        nextRetryAt: null,
      });
    }
    await target.stop();
  });

  test("whose target fails twice is tried three times, and each wait is within its backoff and as announced", async () => {
    const target = startTarget(({ attempt }) => new Response("no", { status: attempt < 3 ? 500 : 200 }));
    const project = await cell.addProject();
    const policy = { maxAttempts: 5, baseSeconds: 1, capSeconds: 2 };
    const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url, ...policy }]);
    pauses.longestMs();
    // The instant at which each run was first seen to have ended.
    const seenAt: number[] = [];
    const runs = await until(async () => {
      const all = await cell.runs(project, id);
      const ended = all.filter(({ status }) => status !== "running");
      for (let count = seenAt.length; count < ended.length; count++) seenAt.push(cell.clock.now());
      return ended.length === 3 && ended;
    });
    const pausedMs = pauses.longestMs();
    expect(await cell.job(project, id)).toMatchObject({ status: "succeeded", attempts: 3 });
    expect(runs.map((run) => [run.attempt, run.status, run.responseStatus, run.error])).toEqual([
      [1, "failed", 500, "no"],
      [2, "failed", 500, "no"],
      [3, "succeeded", 200, null],
    ]);
    for (const [index, run] of runs.slice(0, 2).entries()) {
      const next = runs[index + 1];
      const arrival = target.arrivals[index + 1];
      if (run.nextRetryAt === null || next === undefined || arrival === undefined)
        throw new Error("no retry");
      // The wait begins with the settlement, which was before the end was seen.
      expect(run.nextRetryAt - (seenAt[index] ?? 0)).toBeLessThan(retryCeilingMs(policy, run.attempt) + 50);
      expect(next.startedAt).toBeGreaterThanOrEqual(run.nextRetryAt);
      expect(arrival.at).toBeGreaterThanOrEqual(Math.floor(run.nextRetryAt));
      expect(next.startedAt - run.nextRetryAt - pausedMs).toBeLessThan(5_000);
      expect(arrival.headers["service-scheduled-at"]).toBe(new Date(run.nextRetryAt).toISOString());
    }
    expect(runs[2]?.nextRetryAt).toBeNull();
    await target.stop();
  });

  test("with a later run_at stays queued until then, and is never early", async () => {
    const target = startTarget();
    const project = await cell.addProject();
    pauses.longestMs();
    const runAts = [700, 1_300, 2_100, 2_101, 2_999].map((ms) => Math.floor(cell.clock.now()) + ms);
    const [waiting = "", ...ids] = await cell.addJobs(
      project,
      [Math.floor(cell.clock.now()) + 3_600_000, ...runAts].map((runAt) => ({
        targetUrl: target.url,
        runAt,
      })),
    );
    await target.until((arrivals) => arrivals.length === ids.length);
    const pausedMs = pauses.longestMs();
    expect(await cell.job(project, waiting)).toMatchObject({ status: "queued", attempts: 0 });
    for (const [index, id] of ids.entries()) {
      const runAt = runAts[index] ?? 0;
      const arrival = target.arrivals.find(({ jobId }) => jobId === id);
      expect(arrival?.at).toBeGreaterThanOrEqual(runAt);
      expect((arrival?.at ?? 0) - runAt - pausedMs).toBeLessThan(5_000);
      expect(arrival?.headers["service-scheduled-at"]).toBe(new Date(runAt).toISOString());
      await untilEnded(cell, project, id);
      const [run] = await cell.runs(project, id);
      expect(run?.startedAt).toBeGreaterThanOrEqual(runAt);
    }
    await target.stop();
  });

  test("fails after exactly max_attempts runs", async () => {
    const target = startTarget(() => new Response("never", { status: 503 }));
    const project = await cell.addProject();
    const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url, maxAttempts: 3 }]);
    expect(await untilEnded(cell, project, id)).toMatchObject({ status: "failed", attempts: 3 });
    const runs = await cell.runs(project, id);
    expect(runs.map((run) => [run.status, run.nextRetryAt === null])).toEqual([
      ["failed", false],
      ["failed", false],
      ["failed", true],
    ]);
    expect(target.arrivals.length).toBe(3);
    await target.stop();
  });

  test("whose target answers too late is timed_out, and retried", async () => {
    const gate = Promise.withResolvers<Response>();
    const target = startTarget(({ attempt }) => (attempt === 1 ? gate.promise : new Response("ok")));
    const project = await cell.addProject();
    const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url, region: IMPATIENT }]);
    expect(await untilEnded(cell, project, id)).toMatchObject({ status: "succeeded", attempts: 2 });
    const [late] = await cell.runs(project, id);
    expect(late).toMatchObject({ status: "timed_out", responseStatus: null });
    expect(late?.error).toContain("8 seconds");
    gate.resolve(new Response("too late"));
    await target.stop();
  });
});

describe("a manual retry", () => {
  test("of a failed job is exactly one more attempt", async () => {
    const target = startTarget(() => new Response("no", { status: 500 }));
    const project = await cell.addProject();
    const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url, maxAttempts: 1 }]);
    await untilEnded(cell, project, id);
    const [first] = await cell.runs(project, id);
    const run = await retried(cell, project, first?.id ?? "");
    expect(run).toMatchObject({ jobId: id, attempt: 2, status: "running", responseStatus: null });
    expect(await untilEnded(cell, project, id)).toMatchObject({ status: "failed", attempts: 2 });
    const runs = await cell.runs(project, id);
    expect(runs.map(({ id: runId, status }) => [runId, status])).toEqual([
      [first?.id ?? "", "failed"],
      [run.id, "failed"],
    ]);
    expect(target.arrivals.map(({ runId, attempt }) => [runId, attempt])).toEqual([
      [first?.id ?? "", 1],
      [run.id, 2],
    ]);
    expect(target.arrivals[1]?.headers["service-scheduled-at"]).toBe(new Date(run.startedAt).toISOString());
    await target.stop();
  });

  test("of a queued job replaces its planned retry", async () => {
    const target = startTarget(({ attempt }) =>
      attempt === 1
        ? new Response("later", { status: 503, headers: { "retry-after": "3600" } })
        : new Response("ok"),
    );
    const project = await cell.addProject();
    const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url, capSeconds: 3_600 }]);
    await untilJob(cell, project, id, (job) => job.status === "queued" && job.attempts === 1);
    const [first] = await cell.runs(project, id);
    expect((first?.nextRetryAt ?? 0) - cell.clock.now()).toBeGreaterThan(3_500_000);
    await retried(cell, project, first?.id ?? "");
    expect(await untilEnded(cell, project, id)).toMatchObject({ status: "succeeded", attempts: 2 });
    const runs = await cell.runs(project, id);
    expect(runs.map((run) => [run.attempt, run.status, run.nextRetryAt])).toEqual([
      [1, "failed", null],
      [2, "succeeded", null],
    ]);
    expect((await retry(cell, project, first?.id ?? "")).kind).toBe("refused");
    await target.stop();
  });

  test("at the concurrency limit is accepted, and is sent and begins when a permit is free", async () => {
    const gate = Promise.withResolvers<Response>();
    const target = startTarget(({ path }) =>
      path === "/slow" ? gate.promise : new Response("no", { status: 500 }),
    );
    const project = await cell.addProject({ concurrency: 1 });
    const [failing = ""] = await cell.addJobs(project, [{ targetUrl: target.url, maxAttempts: 1 }]);
    await untilEnded(cell, project, failing);
    const slowUrl = `http://127.0.0.1:${target.port}/slow`;
    const [slow = ""] = await cell.addJobs(project, [{ targetUrl: slowUrl }]);
    await target.until((arrivals) => arrivals.some(({ jobId }) => jobId === slow));
    const [first] = await cell.runs(project, failing);
    const run = await retried(cell, project, first?.id ?? "");
    expect(await cell.job(project, failing)).toMatchObject({ status: "running", attempts: 2 });
    // The attempt has asked for a permit and was refused.
    await until(async () => {
      const [row] = await cell.db.run<{ waiting: number }>(
        "waiting_of_project",
        "SELECT waiting FROM flows WHERE project_no = $1",
        [project.no],
      );
      return row?.waiting === 0b1_0000;
    });
    expect(target.arrivals.length).toBe(2);
    const freeAt = cell.clock.now();
    gate.resolve(new Response("ok"));
    expect(await untilEnded(cell, project, failing)).toMatchObject({ status: "failed", attempts: 2 });
    const [, second] = await cell.runs(project, failing);
    expect(second?.id).toBe(run.id);
    expect(second?.startedAt).toBeGreaterThan(freeAt);
    expect(target.openMax).toBe(1);
    await target.stop();
  });
});
