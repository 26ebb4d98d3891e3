import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { idToUuid } from "../../domain/ids.ts";
import { noteClock } from "../database/clock-watch.ts";
import { settleAttempts } from "../queue/settle.ts";
import { settlementOf, startStore, type TestStore } from "../test-support.ts";
import { joinCell, NameTaken } from "./membership.ts";
import { beatNode, declareNodeDead, findLivingNode, listLostAttempts, listNodes } from "./nodes.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

const join = (
  name: string,
  {
    leaseMs = 60_000,
    dead = [],
    kind = "worker",
  }: { leaseMs?: number; dead?: string[]; kind?: "worker" | "delivery" } = {},
  process = "mine",
) =>
  joinCell(
    store.db,
    { kind, name, regions: ["us-west", "eu-central"], process },
    { leaseMs, isProvedDead: (candidate) => dead.includes(candidate) },
  );
const silence = (id: number, ms: number) =>
  store.query("UPDATE nodes SET seen_at = now() - $2::float8 * interval '1 ms' WHERE id = $1", [id, ms]);

describe("joining the cell", () => {
  test("answers a new incarnation, and a name is taken per kind of node", async () => {
    const worker = await join("a");
    expect(await findLivingNode(store.db, "worker", "a")).toMatchObject({
      id: worker,
      regions: ["us-west", "eu-central"],
      process: "mine",
      dead: false,
    });
    expect(await join("a", { kind: "delivery" })).not.toBe(worker);
  });

  test("under the name of a process that is proved dead declares that node dead at once", async () => {
    const first = await join("b", {}, "old");
    const second = await join("b", { dead: ["old"] });
    expect(second).not.toBe(first);
    expect(await beatNode(store.db, first, 0)).toEqual({ kind: "dead" });
    expect(await beatNode(store.db, second, 0)).toEqual({ kind: "alive", beats: 1 });
  });

  test("under the name of a node that has been silent for a lease declares that node dead", async () => {
    const first = await join("c");
    await silence(first, 5_000);
    const second = await join("c", { leaseMs: 4_000 });
    expect(await findLivingNode(store.db, "worker", "c")).toMatchObject({ id: second });
    expect((await listNodes(store.db)).find((node) => node.id === first)?.dead ?? true).toBe(true);
  });

  test("under the name of a living node waits, and is then refused", async () => {
    const first = await join("d");
    // The time of its last beat stands for beats that a slow machine does not delay.
    await silence(first, -3_600_000);
    const leaseMs = 3_000;
    const startedAt = performance.now();
    await expect(join("d", { leaseMs })).rejects.toBeInstanceOf(NameTaken);
    expect(performance.now() - startedAt).toBeGreaterThan(leaseMs);
    expect(await beatNode(store.db, first, 0)).toMatchObject({ kind: "alive" });
  });

  test("by many processes at once under one name gives the name to one at a time", async () => {
    const ids = await Promise.all(Array.from({ length: 6 }, () => join("e", { dead: ["mine"] })));
    expect(new Set(ids).size).toBe(6);
    const living = (await listNodes(store.db)).filter((node) => node.name === "e" && !node.dead);
    expect(living).toHaveLength(1);
    expect(ids).toContain(living[0]?.id ?? 0);
  });

  test("under a name that comes free while the call waits succeeds", async () => {
    const first = await join("f");
    const joining = join("f");
    expect(await declareNodeDead(store.db, first)).toBe(true);
    expect(await declareNodeDead(store.db, first)).toBe(false);
    expect(await joining).not.toBe(first);
  });
});

describe("listLostAttempts", () => {
  test("lists the attempts of dead nodes and those past their deadline, the oldest first, and no others", async () => {
    const project = await store.addProject();
    const [dead, living] = [await store.addNode(), await store.addNode()];
    const [a = "", b = "", c = "", unsent = ""] = await store.addJobs(project, 4, {
      maxAttempts: 3,
      shard: 5,
    });
    const ofDead = await store.start(dead, project, a);
    const overdue = await store.start(living, project, b);
    const young = await store.start(living, project, c);
    await store.query("UPDATE open_jobs SET started_at = now() - interval '1 h' WHERE run_id = $1", [
      idToUuid(overdue.granted.runId),
    ]);
    // A manual retry that was not sent yet has a run but no node: it waits, and no node has died.
    await store.query(
      `UPDATE open_jobs SET run_id = gen_random_uuid(), started_at = now() - interval '1 h'
        WHERE project_no = $1 AND job_id = $2`,
      [project, idToUuid(unsent)],
    );
    await declareNodeDead(store.db, dead);
    await noteClock(store.db, null);
    const afterMs = 1_800_000;
    const began = { beganBefore: Date.now() - afterMs, afterMs };
    const lost = await listLostAttempts(store.db, began, 10);
    expect(lost).toMatchObject([
      { jobId: b, runId: overdue.granted.runId, attempt: 1, attemptsAllowed: 3, shard: 5, nodeDead: false },
      { jobId: a, runId: ofDead.granted.runId, attempt: 1, attemptsAllowed: 3, shard: 5, nodeDead: true },
    ]);
    expect(lost[0]?.elapsedMs).toBeGreaterThan(3_590_000);
    expect(await listLostAttempts(store.db, began, 1)).toHaveLength(1);
    // A caller whose clock is a day ahead or behind ends no attempt that is not overdue.
    expect(await listLostAttempts(store.db, { ...began, beganBefore: Date.now() + 86_400_000 }, 10)).toEqual(
      lost.map((attempt) => ({ ...attempt, elapsedMs: expect.any(Number) })),
    );
    const behind = await listLostAttempts(store.db, { ...began, beganBefore: Date.now() - 86_400_000 }, 10);
    expect(behind.map(({ jobId }) => jobId)).toEqual([a]);
    // The clock was set back to before the start of the attempt.
    await store.query("UPDATE open_jobs SET started_at = now() + interval '30 days' WHERE run_id = $1", [
      idToUuid(ofDead.granted.runId),
    ]);
    expect((await listLostAttempts(store.db, began, 10)).map(({ elapsedMs }) => elapsedMs)).toEqual([
      expect.any(Number),
      0,
    ]);
    // None is overdue by a clock that has leapt since, for whoever has not seen the leap.
    await noteClock(store.db, Date.now());
    expect((await listLostAttempts(store.db, began, 10)).map(({ jobId }) => jobId)).toEqual([a]);
    await settleAttempts(
      store.db,
      [ofDead, overdue, young].map((attempt) => settlementOf(attempt)),
    );
    expect(await listLostAttempts(store.db, { beganBefore: Date.now(), afterMs: 0 }, 10)).toEqual([]);
  });
});
