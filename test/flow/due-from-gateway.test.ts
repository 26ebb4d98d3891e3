import { afterAll, afterEach, beforeAll, expect, test } from "bun:test";
import { type Hint, NO_WORKER } from "../../shared/bus/messages.ts";
import { until } from "../../shared/bus/test-support.ts";
import { flowClassOf } from "../../shared/domain/flow-class.ts";
import type { OwedAttempt } from "../../shared/domain/owed.ts";
import { REGIONS } from "../../shared/domain/scope.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { setRegionsHeld } from "../../shared/store/cell/holds.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { testCause } from "../support/cause.ts";
import { type Cell, SHARDS_PER_REGION, startCell } from "../support/cell.ts";
import { startTarget, type Target } from "../support/target.ts";
import { untilEnded } from "./support.ts";

/** A node that hears a worker runs no sweep of its own. So it hears of an attempt by a message alone. */
const BEAT_EVERY_MS = 200;
const WORKER = 1_000_000;
const DUE_FOR_MS = 5_000;

let cell: Cell;
let nodeId: number;
let beating: ReturnType<typeof setInterval>;
const hints: Hint[] = [];
beforeAll(async () => {
  cell = await startCell();
  beating = setInterval(
    () => cell.bus.sendBeat("worker", { nodeId: WORKER, regions: [...REGIONS], room: 0 }),
    BEAT_EVERY_MS,
  );
  cell.bus.onHint("us-east", (hint) => hints.push(hint));
  const heard = Promise.withResolvers<number>();
  cell.bus.onBeat("delivery", (beat) => heard.resolve(beat.nodeId));
  await cell.startDelivery();
  nodeId = await heard.promise;
});
afterEach(() => {
  hints.length = 0;
});
afterAll(async () => {
  clearInterval(beating);
  await cell.stop();
});

const shardIn = (project: ProjectRow) => shardOf(project.no, SHARDS_PER_REGION);

function owedOf(project: ProjectRow, id: string): OwedAttempt {
  const flowClass = flowClassOf("jobs", "production");
  return { projectNo: project.no, flowClass, id, attempt: 1, dueAt: cell.clock.now() };
}

/** Tells the node of the jobs as a gateway does. */
function tell(project: ProjectRow, ...ids: string[]): void {
  const items = ids.map((id) => ({ ...owedOf(project, id), shard: shardIn(project) }));
  cell.bus.sendDue(nodeId, { workerNodeId: NO_WORKER, region: "us-east", items });
}

/** What has just come due by the clock of this process may not be due yet by Postgres' clock. */
async function addDueJob(project: ProjectRow, { url }: Target): Promise<string> {
  const wish = { targetUrl: url, runAt: cell.clock.now() - DUE_FOR_MS };
  const [id = ""] = await cell.addJobs(project, [wish], { tell: false });
  return id;
}

const hintedIds = () => hints.flatMap(({ owed }) => owed.map(({ id }) => id));

test("a job of which a gateway tells is sent once, however often it tells, and its shard hears nothing", async () => {
  const target = startTarget();
  const project = await cell.addProject();
  const id = await addDueJob(project, target);
  for (let count = 0; count < 3; count++) tell(project, id);
  expect((await untilEnded(cell, project, id)).status).toBe("succeeded");
  tell(project, id);
  // The node answers what came before in the order in which it came.
  const last = await addDueJob(project, target);
  tell(project, last);
  await untilEnded(cell, project, last);
  expect(target.arrivals.map(({ jobId }) => jobId)).toEqual([id, last]);
  expect(hintedIds()).toEqual([]);
  await target.stop();
});

test("a job for which no permit is free is told to its shard, and stays owed", async () => {
  const held = Promise.withResolvers<Response>();
  const target = startTarget(() => held.promise);
  const project = await cell.addProject({ concurrency: 1 });
  const first = await addDueJob(project, target);
  tell(project, first);
  await target.until(({ length }) => length === 1);
  const second = await addDueJob(project, target);
  tell(project, second);
  await until(() => hintedIds().length > 0);
  expect(hints).toMatchObject([
    { region: "us-east", shard: shardIn(project), owed: [{ id: second, attempt: 1 }] },
  ]);
  expect(target.arrivals).toHaveLength(1);
  held.resolve(new Response());
  await untilEnded(cell, project, first);
  tell(project, second);
  expect((await untilEnded(cell, project, second)).status).toBe("succeeded");
  await target.stop();
});

test("a job that is not due yet is told to its shard", async () => {
  const project = await cell.addProject();
  const runAt = cell.clock.now() + 3_600_000;
  const [id = ""] = await cell.addJobs(project, [{ targetUrl: "http://127.0.0.1:9/", runAt }], {
    tell: false,
  });
  tell(project, id);
  await until(() => hintedIds().length > 0);
  expect(hintedIds()).toEqual([id]);
  expect((await cell.job(project, id)).status).toBe("queued");
});

test("a job in a region that an operator holds is told to its shard, and sent once the region is resumed", async () => {
  const target = startTarget();
  const project = await cell.addProject();
  await setRegionsHeld(cell.db, ["us-east"], true, testCause());
  const id = await addDueJob(project, target);
  tell(project, id);
  await until(() => hintedIds().length > 0);
  expect(hintedIds()).toEqual([id]);
  expect(target.arrivals).toHaveLength(0);
  await setRegionsHeld(cell.db, ["us-east"], false, testCause());
  tell(project, id);
  expect((await untilEnded(cell, project, id)).status).toBe("succeeded");
  await target.stop();
});

test("what a node answers a worker does not wait for the other items of the message", async () => {
  const target = startTarget();
  const [project, locked] = [await cell.addProject(), await cell.addProject()];
  const [id, slowId] = [await addDueJob(project, target), await addDueJob(locked, target)];
  const answered: string[] = [];
  cell.bus.onAnswers(WORKER, ({ items }) => void answered.push(...items.map((item) => item.id)));
  const items = [
    { ...owedOf(project, id), shard: shardIn(project) },
    // Jobs with a flow key are claimed by statements of their own.
    { ...owedOf(locked, slowId), shard: shardIn(locked), isGated: true as const },
  ];
  await cell.db.transact(async (tx) => {
    await tx.run("lock_flow", "SELECT FROM flows WHERE project_no = $1 FOR NO KEY UPDATE", [locked.no]);
    cell.bus.sendDue(nodeId, { workerNodeId: WORKER, region: "us-east", items });
    await until(() => answered.length === 1);
  });
  await until(() => answered.length === 2);
  expect(answered).toEqual([id, slowId]);
});
