import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { idTimeMs } from "../../shared/domain/ids.ts";
import { timelineOf } from "../../shared/domain/timeline.ts";
import { type Explained, findExplained } from "../../shared/store/resources/explain.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";
import { findUndisturbed, until, untilEnded } from "./support.ts";

setDefaultTimeout(300_000);

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery();
});
afterAll(() => cell.stop());

async function explained(project: ProjectRow, id: string): Promise<Explained> {
  const found = await findExplained(
    cell.db,
    { projectNo: project.no, environment: "production", sinceAt: 0 },
    id,
  );
  if (found === null) throw new Error(`${id} is missing`);
  return found;
}

async function startsOf(project: ProjectRow, id: string) {
  await untilEnded(cell, project, id);
  const job = await explained(project, id);
  const timeline = timelineOf({ ...job, createdAt: idTimeMs(id) }, job.asOf);
  return timeline.filter((entry) => entry.event === "started");
}

test("a run that waited for its project's limit says so, and how long; the one before it did not wait", async () => {
  const starts = await findUndisturbed(cell, async () => {
    const project = await cell.addProject({ concurrency: 1 });
    const answered = Promise.withResolvers<void>();
    const target = startTarget(async () => {
      await answered.promise;
      return new Response("ok");
    });
    const [first = "", second = "", third = ""] = await cell.addJobs(
      project,
      Array.from({ length: 3 }, () => ({ targetUrl: target.url })),
      { tell: true },
    );
    await target.until((arrivals) => arrivals.length === 1);
    await until(async () => (await explained(project, third)).around.permitsInUse === 1);
    expect(await explained(project, third)).toMatchObject({ owed: { ahead: 1 } });
    await Bun.sleep(2_000);
    answered.resolve();
    const found = [];
    for (const id of [first, second, third]) found.push(...(await startsOf(project, id)));
    await target.stop();
    return found;
  });
  expect(starts.map(({ heldFor }) => heldFor)).toEqual([null, "concurrency", "concurrency"]);
  for (const { lateMs } of starts.slice(1)) expect(lateMs).toBeGreaterThanOrEqual(2_000);
});

test("a run that waited for an operator's hold says so", async () => {
  const target = startTarget();
  const [start] = await findUndisturbed(cell, async () => {
    const project = await cell.addProject();
    const hold = (held: boolean) =>
      cell.db.run("hold", "UPDATE flows SET held = $2 WHERE project_no = $1", [project.no, held]);
    await hold(true);
    const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url }], { tell: true });
    await Bun.sleep(2_500);
    await hold(false);
    return startsOf(project, id);
  });
  expect(start).toMatchObject({ heldFor: "hold" });
  expect(start?.lateMs).toBeGreaterThanOrEqual(2_000);
  await target.stop();
});

test("the end of a job is told as an event, and how each endpoint took it", async () => {
  const target = startTarget();
  const [well, gone] = [startTarget(), startTarget(() => new Response("no", { status: 410 }))];
  const project = await cell.addProject();
  const [heard, refused] = [
    await cell.addEndpoint(project, { url: well.url }),
    await cell.addEndpoint(project, { url: gone.url }),
  ];
  const [id = ""] = await cell.addJobs(project, [{ targetUrl: target.url }], { tell: true });
  const told = await until(async () => {
    const job = await explained(project, id);
    const timeline = timelineOf({ ...job, createdAt: idTimeMs(id) }, job.asOf);
    const entries = timeline.filter(({ event }) => event.startsWith("event_"));
    return entries.length === 3 && entries;
  });
  const eventId = well.arrivals[0]?.headers["webhook-id"] ?? "";
  expect(told[0]).toMatchObject({ event: "event_created", eventId, type: "job.succeeded" });
  expect(told.slice(1).toSorted((a, b) => a.event.localeCompare(b.event))).toMatchObject([
    { event: "event_delivered", eventId, webhookId: heard.id, responseStatus: 200 },
    { event: "event_failed", eventId, webhookId: refused.id, responseStatus: 410 },
  ]);
  await Promise.all([target.stop(), well.stop(), gone.stop()]);
});
