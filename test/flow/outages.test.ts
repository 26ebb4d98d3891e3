import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import pg from "pg";
import type { Answers } from "../../shared/bus/messages.ts";
import { createIdSource, JOB_PREFIX } from "../../shared/domain/ids.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { listNodes } from "../../shared/store/cell/nodes.ts";
import { type Database, StoreUnavailable } from "../../shared/store/database/database.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget, type Target } from "../support/target.ts";
import { repeatedArrivals, until, untilAllEnded, untilEnded, untilJob } from "./support.ts";

let cell: Cell;
const targets: Target[] = [];
beforeEach(async () => {
  cell = await startCell();
});
afterEach(async () => {
  await cell.stop();
  for (const target of targets.splice(0)) await target.stop();
});

function openTarget(...args: Parameters<typeof startTarget>): Target {
  const target = startTarget(...args);
  targets.push(target);
  return target;
}

/** The id of the only living delivery node. */
async function deliveryNodeId(): Promise<number> {
  const nodes = (await listNodes(cell.db)).filter(({ kind, dead }) => kind === "delivery" && !dead);
  const [node] = nodes;
  if (node === undefined || nodes.length > 1) throw new Error(`${nodes.length} delivery nodes`);
  return node.id;
}

describe("NATS", () => {
  test("may lose every command: the sweep finds the jobs, and their retries", async () => {
    await cell.startWorker();
    await cell.startDelivery();
    const target = openTarget(({ attempt }) => new Response("", { status: attempt === 1 ? 500 : 200 }));
    const project = await cell.addProject();
    const wishes = Array.from({ length: 20 }, () => ({ targetUrl: target.url }));
    const ids = await cell.addJobs(project, wishes, { tell: false });
    expect(new Set(await untilAllEnded(cell, project, ids))).toEqual(new Set(["succeeded"]));
    expect(target.arrivals.length).toBe(40);
    expect(repeatedArrivals(target.arrivals)).toEqual([]);
  });

  test("may repeat messages and carry garbage: nothing is sent twice, early or without reason", async () => {
    await cell.startWorker();
    await cell.startDelivery();
    const worker = 999_999;
    const delivery = await deliveryNodeId();
    const gate = Promise.withResolvers<void>();
    const target = openTarget(async () => {
      await gate.promise;
      return new Response("ok");
    });
    const project = await cell.addProject();
    const { no: projectNo } = project;
    const shard = shardOf(projectNo, 8);
    const runAt = Math.floor(cell.clock.now()) + 3_600_000;
    const [now = "", later = ""] = await cell.addJobs(project, [
      { targetUrl: target.url },
      { targetUrl: target.url, runAt },
    ]);
    const owed = { projectNo, flowClass: "production jobs" as const, id: now, attempt: 1, dueAt: 0, shard };
    const unknown = createIdSource(randomBytes).next(JOB_PREFIX, Date.now());
    const say = () => {
      const items = [
        owed,
        owed,
        { ...owed, id: later },
        { ...owed, attempt: 2 },
        { ...owed, attempt: 99_999 },
        { ...owed, flowClass: "development jobs" as const },
        { ...owed, flowClass: "production webhooks" as const },
        { ...owed, projectNo: 2_000_000_000 },
        { ...owed, projectNo: 99_999_999_999 },
        { ...owed, id: unknown },
        { ...owed, id: "nonsense" },
        { ...owed, id: "job_00000000000000000000000000" },
      ];
      cell.bus.sendDue(delivery, { workerNodeId: worker, region: "us-east", items });
      cell.bus.sendDue(delivery, { workerNodeId: worker, region: "ap-southeast", items });
      cell.bus.sendCommand({ region: "us-east", shard, projectNo, owed: items });
      cell.bus.sendHint({ region: "us-east", shard, owed: items, freed: [{ projectNo, returned: 1_000 }] });
      const answers = items.map((item) => ({ ...item, answer: { kind: "gone" as const } }));
      cell.bus.sendAnswers(worker, { deliveryNodeId: delivery, region: "us-east", room: 0, items: answers });
    };
    say();
    await target.until((arrivals) => arrivals.length > 0);
    say();
    gate.resolve();
    await untilEnded(cell, project, now);
    say();
    const [after = ""] = await cell.addJobs(project, [{ targetUrl: target.url }]);
    expect(await untilEnded(cell, project, after)).toMatchObject({ status: "succeeded", attempts: 1 });
    expect(target.arrivals.map(({ jobId }) => jobId)).toEqual([now, after]);
    expect(await cell.job(project, now)).toMatchObject({ status: "succeeded", attempts: 1 });
    expect(await cell.job(project, later)).toMatchObject({ status: "queued", attempts: 0 });
    expect((await cell.runs(project, now)).length).toBe(1);
  });
});

describe("workers", () => {
  test("may all stop: the delivery node itself finds what is due, retries included", async () => {
    const worker = await cell.startWorker();
    await cell.startDelivery();
    const target = openTarget(({ attempt }) => new Response("", { status: attempt === 1 ? 500 : 200 }));
    const project = await cell.addProject();
    await worker.stop();
    const ids = await cell.addJobs(project, [{ targetUrl: target.url }, { targetUrl: target.url }]);
    expect(await untilAllEnded(cell, project, ids)).toEqual(["succeeded", "succeeded"]);
    expect(repeatedArrivals(target.arrivals)).toEqual([]);
  });

  test("may all be gone: delivery nodes alone work off a project that is over its limit", async () => {
    await (await cell.startWorker()).stop();
    await cell.startDelivery();
    await cell.startDelivery();
    const target = openTarget();
    const project = await cell.addProject({ concurrency: 2 });
    const ids = await cell.addJobs(
      project,
      Array.from({ length: 12 }, () => ({ targetUrl: target.url })),
    );
    expect(new Set(await untilAllEnded(cell, project, ids))).toEqual(new Set(["succeeded"]));
    expect(target.openMax).toBeLessThanOrEqual(2);
    expect(repeatedArrivals(target.arrivals)).toEqual([]);
  });

  test("may stop one at a time: another worker takes over what is due now and later", async () => {
    const [first, second] = [await cell.startWorker(), await cell.startWorker()];
    await cell.startDelivery();
    const target = openTarget();
    const projects = await Promise.all(Array.from({ length: 8 }, () => cell.addProject()));
    const add = async (aheadMs: number) => {
      const runAt = Math.floor(cell.clock.now()) + aheadMs;
      return Promise.all(
        projects.map(async (project) => {
          const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url, runAt }]);
          return { project, id };
        }),
      );
    };
    const before = await add(1_500);
    await first.stop();
    const third = await cell.startWorker();
    const between = await add(1_000);
    await second.stop();
    const after = await add(0);
    for (const { project, id } of [...before, ...between, ...after]) {
      expect(await untilEnded(cell, project, id)).toMatchObject({ status: "succeeded", attempts: 1 });
    }
    for (const { jobId, at, headers } of target.arrivals) {
      expect({ jobId, isEarly: at < Date.parse(headers["service-scheduled-at"] ?? "") }).toEqual({
        jobId,
        isEarly: false,
      });
    }
    expect(repeatedArrivals(target.arrivals)).toEqual([]);
    await third.stop();
  });
});

describe("a delivery node that stops", () => {
  test("finishes what is on the wire, and starts nothing new", async () => {
    await cell.startWorker();
    const draining = await cell.startDelivery({ drainTimeoutMs: 30_000 });
    const gate = Promise.withResolvers<void>();
    const target = openTarget(async () => {
      await gate.promise;
      return new Response("ok");
    });
    const project = await cell.addProject();
    const [onTheWire = ""] = await cell.addJobs(project, [{ targetUrl: target.url }]);
    await target.until((arrivals) => arrivals.length === 1);
    const stopped = draining.stop();
    const [waiting = ""] = await cell.addJobs(project, [{ targetUrl: target.url }]);
    // The job is due later than a delivery node waits for workers before it sweeps by itself.
    const [due = ""] = await cell.addJobs(project, [
      { targetUrl: target.url, runAt: cell.clock.now() + 3_000 },
    ]);
    await until(async () => cell.clock.now() > (await cell.job(project, due)).runAt);
    expect(target.arrivals.length).toBe(1);
    expect(await cell.job(project, waiting)).toMatchObject({ status: "queued", attempts: 0 });
    gate.resolve();
    await stopped;
    expect(await cell.job(project, onTheWire)).toMatchObject({ status: "succeeded", attempts: 1 });
    await cell.startDelivery();
    expect(await untilAllEnded(cell, project, [waiting, due])).toEqual(["succeeded", "succeeded"]);
    expect(target.arrivals.length).toBe(3);
  });

  test("refers workers that do not know of its stop to another node", async () => {
    const gate = Promise.withResolvers<void>();
    const target = openTarget(async () => {
      await gate.promise;
      return new Response("ok");
    });
    const project = await cell.addProject();
    const [first = "", second = ""] = await cell.addJobs(project, [
      { targetUrl: target.url },
      { targetUrl: target.url },
    ]);
    // Without a lane the node cannot find the jobs by itself, as it would after 2 s without a worker.
    await cell.db.run("hide", "DELETE FROM lanes WHERE project_no = $1", [project.no]);
    const draining = await cell.startDelivery({ drainTimeoutMs: 30_000 });
    const delivery = await deliveryNodeId();
    const worker = 999_999;
    const heard: Answers[] = [];
    cell.bus.onAnswers(worker, (answers) => void heard.push(answers));
    const tell = (id: string) => {
      const shard = shardOf(project.no, 8);
      const item = {
        projectNo: project.no,
        flowClass: "production jobs" as const,
        id,
        attempt: 1,
        dueAt: 0,
        shard,
      };
      cell.bus.sendDue(delivery, { workerNodeId: worker, region: "us-east", items: [item] });
    };
    tell(first);
    await until(() => heard.length === 1);
    const stopped = draining.stop();
    tell(second);
    await until(() => heard.length === 2);
    expect(heard.map(({ items }) => items[0]?.answer.kind)).toEqual(["granted", "node_full"]);
    expect(heard[1]?.room).toBe(0);
    gate.resolve();
    await stopped;
    expect(target.arrivals.map(({ jobId }) => jobId)).toEqual([first]);
  });

  test("waits no longer than its drain time: the rest ends as interrupted, and another node retries it at once", async () => {
    await cell.startWorker();
    const first = await cell.startDelivery({ drainTimeoutMs: 0 });
    const never = Promise.withResolvers<Response>();
    const target = openTarget(({ attempt }) => (attempt === 1 ? never.promise : new Response("ok")));
    const project = await cell.addProject();
    const policy = { baseSeconds: 3_600, capSeconds: 3_600 };
    const ids = await cell.addJobs(
      project,
      Array.from({ length: 10 }, () => ({ targetUrl: target.url, ...policy })),
    );
    await target.until((arrivals) => arrivals.length === 10);
    await cell.startDelivery();
    await first.stop();
    expect(new Set(await untilAllEnded(cell, project, ids))).toEqual(new Set(["succeeded"]));
    for (const id of ids) {
      const [interrupted, again] = await cell.runs(project, id);
      expect(interrupted).toMatchObject({
        status: "failed",
        responseStatus: null,
        error: "interrupted by a shutdown",
      });
      expect(again).toMatchObject({ attempt: 2, status: "succeeded" });
      expect(again?.startedAt).toBeGreaterThanOrEqual(interrupted?.nextRetryAt ?? Number.POSITIVE_INFINITY);
    }
    expect(repeatedArrivals(target.arrivals)).toEqual([]);
  });

  test("counts its drain time from the start, although it waits for Postgres to answer a claim of its sweep", async () => {
    let isAway = false;
    const asked: string[] = [];
    const db: Database = {
      ...cell.serviceDb,
      async run<Row>(name: string, text: string, values: unknown[]) {
        if (!isAway || !/^(claim|settle)/.test(name)) return cell.serviceDb.run<Row>(name, text, values);
        asked.push(name);
        throw new StoreUnavailable("Postgres is away");
      },
    };
    // Without a worker the node finds its jobs by itself.
    const node = await cell.startDelivery({ db, drainTimeoutMs: 0 });
    const never = Promise.withResolvers<Response>();
    const target = openTarget(() => never.promise);
    const project = await cell.addProject();
    const [onTheWire = ""] = await cell.addJobs(project, [{ targetUrl: target.url }]);
    await target.until((arrivals) => arrivals.length === 1);
    isAway = true;
    await cell.addJobs(project, [{ targetUrl: target.url }]);
    await until(() => asked.some((name) => name.startsWith("claim")));
    const stopped = node.stop();
    await until(() => asked.some((name) => name.startsWith("settle")));
    isAway = false;
    await stopped;
    const [interrupted] = await cell.runs(project, onTheWire);
    expect(interrupted).toMatchObject({ status: "failed", error: "interrupted by a shutdown" });
  });

  test("in the middle of a flood loses nothing, sends nothing twice and leaves no permit in use", async () => {
    await cell.startWorker();
    const target = openTarget();
    const project = await cell.addProject({ concurrency: 20 });
    let node = await cell.startDelivery({ drainTimeoutMs: 0 });
    const ids = await cell.addJobs(
      project,
      Array.from({ length: 300 }, () => ({ targetUrl: target.url, maxAttempts: 25 })),
    );
    for (const count of [50, 150]) {
      await target.until((arrivals) => arrivals.length >= count);
      const next = await cell.startDelivery({ drainTimeoutMs: 0 });
      await node.stop();
      node = next;
    }
    expect(new Set(await untilAllEnded(cell, project, ids))).toEqual(new Set(["succeeded"]));
    expect(repeatedArrivals(target.arrivals)).toEqual([]);
    const [flow] = await cell.db.run(
      "jobs_of_flow",
      "SELECT production_jobs AS jobs FROM flows WHERE project_no = $1",
      [project.no],
    );
    expect(flow).toEqual({ jobs: 0 });
  });
});

describe("Postgres", () => {
  test("may end every session in the middle of 200 jobs: all jobs end, and no attempt arrives twice", async () => {
    await cell.startWorker();
    await Promise.all([cell.startDelivery(), cell.startDelivery()]);
    const target = openTarget(({ attempt, jobId }) => {
      const fails = attempt === 1 && jobId.charCodeAt(jobId.length - 1) % 4 === 0;
      return new Response("", { status: fails ? 500 : 200 });
    });
    const project = await cell.addProject({ concurrency: 20 });
    const ids = await cell.addJobs(
      project,
      Array.from({ length: 200 }, () => ({ targetUrl: target.url })),
    );
    const killer = new pg.Client({ connectionString: cell.url });
    await killer.connect();
    for (const count of [10, 60, 110, 160]) {
      await target.until((arrivals) => arrivals.length >= count);
      await killer.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
      );
    }
    await killer.end();
    expect(new Set(await untilAllEnded(cell, project, ids))).toEqual(new Set(["succeeded"]));
    expect(repeatedArrivals(target.arrivals)).toEqual([]);
    for (const id of ids) {
      const runs = await cell.runs(project, id);
      const { attempts } = await cell.job(project, id);
      expect(runs.map(({ attempt }) => attempt)).toEqual(Array.from({ length: attempts }, (_, n) => n + 1));
      expect(runs.map((run) => run.id)).toEqual(
        target.arrivals.filter(({ jobId }) => jobId === id).map(({ runId }) => runId),
      );
    }
  });

  test("may be killed while attempts are on the wire: they are settled once it is back", async () => {
    await cell.startWorker();
    await cell.startDelivery();
    const gate = Promise.withResolvers<void>();
    const target = openTarget(async () => {
      await gate.promise;
      return new Response("ok");
    });
    const project = await cell.addProject();
    const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url }]);
    await target.until((arrivals) => arrivals.length === 1);
    await untilJob(cell, project, id, (job) => job.status === "running");
    const killer = new pg.Client({ connectionString: cell.url });
    await killer.connect();
    gate.resolve();
    for (let round = 0; round < 5; round++) {
      await killer.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
      );
    }
    await killer.end();
    await untilEnded(cell, project, id);
    expect(await cell.runs(project, id)).toMatchObject([{ attempt: 1, status: "succeeded" }]);
    expect(target.arrivals.length).toBe(1);
  });
});

describe("the database's clock", () => {
  test("may go back by an hour: what is due after that is sent at its time", async () => {
    const { now } = cell.clock;
    let aheadMs = 3_600_000;
    const target = openTarget();
    const project = await cell.addProject();
    await cell.startWorker({ clock: { now: () => now() + aheadMs, stop() {} } });
    await cell.startDelivery();
    // A job that is announced and sent at once shows that the worker's wheels are an hour ahead.
    const [first = ""] = await cell.addJobs(project, [{ targetUrl: target.url, runAt: now() }]);
    await untilEnded(cell, project, first);
    aheadMs = 0;
    const runAt = now() + 1_000;
    const [second = ""] = await cell.addJobs(project, [{ targetUrl: target.url, runAt }]);
    await untilEnded(cell, project, second);
    expect(target.arrivals.at(-1)?.at).toBeGreaterThanOrEqual(Math.floor(runAt));
  });
});
