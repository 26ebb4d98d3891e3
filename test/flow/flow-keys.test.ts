import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { explainWait, type Waiting } from "../../shared/domain/explain.ts";
import { createIdSource, idTimeMs, RUN_PREFIX } from "../../shared/domain/ids.ts";
import { countWaiting } from "../../shared/domain/insights/waiting.ts";
import { REGIONS } from "../../shared/domain/scope.ts";
import { timelineOf } from "../../shared/domain/timeline.ts";
import { joinCell } from "../../shared/store/cell/membership.ts";
import { declareNodeDead } from "../../shared/store/cell/nodes.ts";
import { findInsights } from "../../shared/store/insights/insights.ts";
import { findWaiting } from "../../shared/store/insights/waiting.ts";
import { claimWhole } from "../../shared/store/queue/claim.ts";
import { type Explained, findExplained } from "../../shared/store/resources/explain.ts";
import { changeFlowKey, findFlowKey } from "../../shared/store/resources/flow-keys.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { keyCause } from "../support/cause.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";
import { until, untilAllEnded } from "./support.ts";

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  for (let nodes = 0; nodes < 2; nodes++) await cell.startDelivery();
});
afterAll(() => cell.stop());

const scopeOf = ({ no }: ProjectRow) => ({ projectNo: no, environment: "production" as const });
const repeated = <Wish>(count: number, wish: Wish) => Array.from({ length: count }, () => wish);

async function explained(project: ProjectRow, id: string): Promise<Explained> {
  const found = await findExplained(cell.db, { ...scopeOf(project), sinceAt: 0 }, id);
  if (found === null) throw new Error(`${id} is missing`);
  return found;
}

async function waitOf(project: ProjectRow, id: string): Promise<Waiting> {
  const { owed, around, asOf } = await explained(project, id);
  if (owed === null) throw new Error(`${id} does not wait`);
  return explainWait(owed, around, { now: asOf, createdAt: idTimeMs(id) });
}

test("the attempts of each key in progress are never more than its concurrency, over all nodes and regions", async () => {
  const project = await cell.addProject();
  const [open, most] = [new Map<string, number>(), new Map<string, number>()];
  const target = startTarget(async ({ path }) => {
    const count = (open.get(path) ?? 0) + 1;
    open.set(path, count);
    most.set(path, Math.max(most.get(path) ?? 0, count));
    await Bun.sleep(20);
    open.set(path, (open.get(path) ?? 0) - 1);
    return new Response("ok");
  });
  const at = (path: string) => new URL(path, target.url).href;
  const ids = await cell.addJobs(project, [
    ...repeated(15, { targetUrl: at("/a"), flow: { key: "a", concurrency: 1 } }),
    ...repeated(15, { targetUrl: at("/b"), flow: { key: "b", concurrency: 3 } }),
    ...repeated(15, { targetUrl: at("/b"), flow: { key: "b" }, region: "eu-central" as const }),
    ...repeated(5, { targetUrl: at("/plain") }),
  ]);
  expect(await untilAllEnded(cell, project, ids)).toEqual(repeated(50, "succeeded"));
  expect([most.get("/a"), (most.get("/b") ?? 4) <= 3]).toEqual([1, true]);
  for (const key of ["a", "b"])
    expect(await findFlowKey(cell.db, scopeOf(project), key)).toMatchObject({ inUse: 0, waiting: 0 });
  await target.stop();
});

test("a key that holds jobs with a concurrency of 1 runs them strictly one after the other, retries included", async () => {
  const project = await cell.addProject();
  const target = startTarget(({ attempt }) => new Response("", { status: attempt === 1 ? 500 : 200 }));
  const flow = { key: "order", concurrency: 1, hold: "job" as const };
  const ids = await cell.addJobs(project, repeated(4, { targetUrl: target.url, flow }));
  await untilAllEnded(cell, project, ids);
  expect(target.arrivals.map(({ jobId, attempt }) => `${jobId} ${attempt}`)).toEqual(
    ids.flatMap((id) => [`${id} 1`, `${id} 2`]),
  );
  await target.stop();
});

test("an attempt that is lost with its node gives its place back, and the next of its key starts", async () => {
  const own = await startCell();
  const project = await own.addProject();
  const scope = scopeOf(project);
  const target = startTarget();
  const flow = { key: "lost", concurrency: 1 };
  const ids = await own.addJobs(project, repeated(2, { targetUrl: target.url, flow, maxAttempts: 1 }));
  const [jobId = ""] = ids;
  const mortal = { kind: "delivery", name: "mortal", regions: REGIONS, process: "gone" } as const;
  const nodeId = await joinCell(own.db, mortal, { leaseMs: 1_000, isProvedDead: () => false });
  const runId = createIdSource(randomBytes).next(RUN_PREFIX, Date.now());
  const place = { ...scope, region: "us-east" } as const;
  const [claimed] = await claimWhole(own.db, nodeId, [{ ...place, jobId, attempt: 1, runId }]);
  expect(claimed).toMatchObject({ kind: "granted" });
  expect(await findFlowKey(own.db, scope, "lost")).toMatchObject({ inUse: 1, waiting: 1 });
  await declareNodeDead(own.db, nodeId);
  await own.startWorker();
  await own.startDelivery();
  expect(await untilAllEnded(own, project, ids)).toEqual(["failed", "succeeded"]);
  expect(await findFlowKey(own.db, scope, "lost")).toMatchObject({ inUse: 0, waiting: 0 });
  await own.stop();
  await target.stop();
});

test("in no window of a key's rate do more attempts start, by the database's clock", async () => {
  const project = await cell.addProject();
  const target = startTarget();
  const flow = { key: "rate", rate: { count: 2, per_seconds: 1 } };
  const ids = await cell.addJobs(project, repeated(6, { targetUrl: target.url, flow }));
  const ofMinute = { key: "rate of a minute", rate: { count: 2, per_seconds: 60 } };
  const asked = await cell.addProject();
  const slow = await cell.addJobs(asked, repeated(3, { targetUrl: target.url, flow: ofMinute }));
  const waiting = await until(async () => {
    const found = await waitOf(asked, slow.at(-1) ?? "");
    return found.for === "flow" && found.limit === 2 && found;
  });
  expect(waiting).toMatchObject({ for: "flow", flowKey: ofMinute.key, limit: 2 });
  // The last one would come after the end of the target.
  await changeFlowKey(cell.db, scopeOf(asked), ofMinute.key, { paused: true }, keyCause());
  await untilAllEnded(cell, project, ids);
  const runs = (await Promise.all(ids.map((id) => cell.runs(project, id)))).flat();
  const starts = runs.map(({ startedAt }) => startedAt).sort((one, other) => one - other);
  for (const [n, at] of starts.slice(2).entries())
    expect(at - (starts[n] ?? 0)).toBeGreaterThanOrEqual(1_000);
  await target.stop();
});

test("a paused key keeps its own jobs waiting and nobody else's; explain and insights say so", async () => {
  const project = await cell.addProject();
  const scope = scopeOf(project);
  const target = startTarget();
  await changeFlowKey(cell.db, scope, "paused", { paused: true }, keyCause());
  const paused = await cell.addJobs(project, repeated(3, { targetUrl: target.url, flow: { key: "paused" } }));
  const others = await cell.addJobs(project, [
    { targetUrl: target.url },
    { targetUrl: target.url, flow: { key: "other", concurrency: 1 } },
  ]);
  await target.until((arrivals) => arrivals.length === others.length);
  const last = paused.at(-1) ?? "";
  const wait = await until(async () => {
    const found = await waitOf(project, last);
    return found.for === "flow" && found.ahead === 2 && found;
  });
  expect(wait).toMatchObject({
    ...{ flowKey: "paused", limit: 0, inUse: 0, until: null },
    message: "The flow key paused is paused; 2 attempts go before this one.",
  });
  expect(wait.since).toBe(Math.max(idTimeMs(last), (await cell.job(project, last)).runAt));
  const waiting = await until(async () => {
    const { byReason } = countWaiting((await findWaiting(cell.db, scope, null)).found);
    return byReason.get("flow") === 3 && byReason;
  });
  expect(Object.fromEntries(waiting)).toEqual({ flow: 3 });
  expect(await findFlowKey(cell.db, scope, "paused")).toMatchObject({ waiting: 3, inUse: 0, paused: true });
  // A run counts as having waited only if it started after more than a second.
  await until(async () => (await explained(project, last)).asOf > wait.since + 1_500);
  expect(target.arrivals.map(({ jobId }) => jobId).sort()).toEqual(others.toSorted());
  // With one place they start one after the other. Without a limit all three would be sent at once, and any of them
  // could arrive first.
  await changeFlowKey(cell.db, scope, "paused", { paused: false, concurrency: 1 }, keyCause());
  expect(await untilAllEnded(cell, project, paused)).toEqual(repeated(3, "succeeded"));
  expect(target.arrivals.slice(2).map(({ jobId }) => jobId)).toEqual(paused);
  const over = await explained(project, last);
  const started = timelineOf({ ...over, createdAt: idTimeMs(last) }, over.asOf).find(
    ({ event }) => event === "started",
  );
  expect(started).toMatchObject({ heldFor: "flow" });
  await until(async () => {
    const { totals } = await findInsights(cell.db, scope, { period: "1h", region: null });
    return totals.waitedFor.get("flow") === 3;
  });
  await target.stop();
});
