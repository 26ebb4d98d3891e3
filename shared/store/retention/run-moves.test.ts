import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { keyCause, testCause } from "../../../test/support/cause.ts";
import { idToUuid, PROJECT_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { Plan } from "../../domain/plan.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { settleAttempts } from "../queue/settle.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import { changeProject } from "../resources/projects.ts";
import { listRuns } from "../resources/run-list.ts";
import { findRun } from "../resources/runs.ts";
import {
  comesToWait,
  failedWith,
  inTime,
  settlementOf,
  startStore,
  type TestStore,
} from "../test-support.ts";
import { dropExpiredPartitions } from "./retention.ts";
import { endRunMove, listRunMoves, moveRuns } from "./run-moves.ts";

const SECOND_MS = 1_000;
const DAY_MS = 86_400_000;
/** A drop gives up after waiting this long for a lock. */
const DROP_WAITS_MS = 500;
/** A time at which every table of a hobby project's runs of today has expired. */
const laterOn = () => Date.now() + 6 * DAY_MS;

let store: TestStore;
let nodeId: number;
let project: ProjectNo;
beforeEach(async () => {
  store = await startStore();
  nodeId = await store.addNode();
  project = await store.addProject({ plan: "hobby" });
});
afterEach(() => store.stop());

const scope = () => ({ projectNo: project, environment: "production" as const, sinceAt: 0 });
const find = (runId: string) => findRun(store.db, scope(), runId);

async function setPlan(plan: Plan): Promise<void> {
  const [row] = await store.query<{ id: string }>("SELECT id FROM projects WHERE no = $1", [project]);
  await changeProject(store.db, uuidToId(PROJECT_PREFIX, row?.id ?? ""), { plan }, testCause());
}

async function startOne() {
  const [jobId = ""] = await store.addJobs(project, 1);
  return store.start(nodeId, project, jobId);
}

async function settleOne(wish: Parameters<typeof settlementOf>[1] = {}): Promise<string> {
  const attempt = await startOne();
  await settleAttempts(store.db, [settlementOf(attempt, wish)]);
  return attempt.granted.runId;
}

async function classTableOf(runId: string): Promise<string> {
  const [row] = await store.query<{ name: string }>(
    "SELECT inhparent::regclass::text AS name FROM runs JOIN pg_inherits ON inhrelid = runs.tableoid WHERE id = $1",
    [idToUuid(runId)],
  );
  return row?.name ?? "none";
}

/** Drops what has expired later on. An empty table of the day before does not count, if the tables were made on that day. */
async function dropLaterOn() {
  const dropped = await dropExpiredPartitions(store.db, laterOn());
  const dayBefore = new Date(Date.now() - DAY_MS).toISOString().slice(0, 10).replaceAll("-", "");
  return { ...dropped, names: dropped.names.filter((name) => !name.endsWith(dayBefore)) };
}

/** Does what the duty does for a project, without its waiting. */
async function moveAll(): Promise<number> {
  let movedCount = 0;
  for (const move of await listRunMoves(store.db, 10)) {
    for (let count = 1; count > 0; movedCount += count) count = (await moveRuns(store.db, move, 2)) ?? 0;
  }
  return movedCount;
}

describe("an upgrade", () => {
  test("saves the project's earlier runs from the drop of their old class", async () => {
    const runIds = [await settleOne(), await settleOne(failedWith("over")), await settleOne()];
    const stranger = await store.addProject({ plan: "hobby" });
    const [jobId = ""] = await store.addJobs(stranger, 1);
    const other = await store.start(nodeId, stranger, jobId);
    await settleAttempts(store.db, [settlementOf(other)]);
    const before = await Promise.all(runIds.map(find));

    await setPlan("scale");
    // The table stays while its runs wait to be moved.
    expect(await dropLaterOn()).toEqual({ names: [], gaveWayCount: 0 });
    for (const runId of runIds) expect(await classTableOf(runId)).toBe("runs_hobby");
    expect(await moveAll()).toBe(3);
    expect((await dropExpiredPartitions(store.db, laterOn())).names).not.toEqual([]);

    expect(await Promise.all(runIds.map(find))).toEqual(before);
    for (const runId of runIds) expect(await classTableOf(runId)).toBe("runs_scale");
    expect(await classTableOf(other.granted.runId)).toBe("none");
  });

  test("is noted with the plan, while a downgrade and other changes are not noted and move nothing", async () => {
    const runId = await settleOne();
    await setPlan("pro");
    const [first] = await listRunMoves(store.db, 10);
    expect(first).toMatchObject({ projectNo: project, isSettled: false });
    await moveAll();
    if (first !== undefined) await endRunMove(store.db, first);
    expect(await listRunMoves(store.db, 10)).toEqual([]);

    await setPlan("pro");
    await setPlan("hobby");
    expect(await listRunMoves(store.db, 10)).toEqual([]);
    expect(await classTableOf(runId)).toBe("runs_pro");
    expect(await classTableOf(await settleOne())).toBe("runs_hobby");
  });

  test("that follows another is not ended by the end of the earlier one", async () => {
    await settleOne();
    await setPlan("pro");
    const [first] = await listRunMoves(store.db, 10);
    await moveAll();
    await setPlan("scale");
    if (first !== undefined) await endRunMove(store.db, first);
    expect(await listRunMoves(store.db, 10)).toMatchObject([{ projectNo: project }]);
    expect(await moveAll()).toBe(1);
  });

  test("counts as settled only when no earlier statement can still write into the old class", async () => {
    await setPlan("pro");
    const isSettled = async (age: string) => {
      await store.query(`UPDATE run_moves SET noted_at = clock_timestamp() - interval '${age}'`);
      return (await listRunMoves(store.db, 1))[0]?.isSettled;
    };
    await inTime(SECOND_MS, async () => expect(await isSettled("59 s")).toBe(false));
    expect(await isSettled("60 s")).toBe(true);
  });

  test("waits for the settlement that holds the flow, and that settlement's run is moved afterwards", async () => {
    const attempt = await startOne();
    const holder = await store.session();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM open_jobs WHERE job_id = $1 FOR UPDATE", [idToUuid(attempt.claim.jobId)]);
    const settling = settleAttempts(store.db, [settlementOf(attempt)]);
    await store.untilBlocked();
    const upgrading = setPlan("scale");
    await store.untilBlocked(2);
    expect(await listRunMoves(store.db, 10)).toEqual([]);
    await holder.query("COMMIT");
    await Promise.all([settling, upgrading]);

    expect(await classTableOf(attempt.granted.runId)).toBe("runs_hobby");
    expect(await moveAll()).toBe(1);
    expect(await classTableOf(attempt.granted.runId)).toBe("runs_scale");
  });

  test.each(["run_moves", "audit_entries"])(
    "holds up no claim of its project while it waits for %s, since it takes the flow last",
    async (table) => {
      const session = await store.session();
      await session.query("BEGIN");
      await session.query(`LOCK TABLE ${table} IN SHARE MODE`);
      const upgrading = setPlan("scale");
      await store.untilBlocked();
      await session.query("SELECT FROM flows WHERE project_no = $1 FOR UPDATE NOWAIT", [project]);
      await session.query("COMMIT");
      await upgrading;
      expect(await listRunMoves(store.db, 10)).toMatchObject([{ projectNo: project, retentionClass: 2 }]);
    },
  );

  test("waits for a drop that has begun, and its runs are saved from the next drop", async () => {
    const runId = await settleOne();
    const operator = await store.session();
    await inTime(DROP_WAITS_MS, async (begin) => {
      await store.query("DELETE FROM run_moves");
      await operator.query("BEGIN");
      await operator.query("UPDATE flows SET retention_class = 2 WHERE project_no = $1", [project]);
      await operator.query("INSERT INTO run_moves (project_no) VALUES ($1)", [project]);
      begin();
      // The drop waits for the commit of the noted move, and then sees it.
      const dropping = dropLaterOn();
      const isWaiting = await comesToWait(store, dropping);
      await operator.query("COMMIT");
      expect(isWaiting).toBe(true);
      expect(await dropping).toEqual({ names: [], gaveWayCount: 0 });
      expect(await classTableOf(runId)).toBe("runs_hobby");
    });
  });
});

describe("a run that is being moved", () => {
  async function moving() {
    const mover = await store.session();
    await mover.query("BEGIN");
    await mover.query("UPDATE runs SET retention_class = 2 WHERE project_no = $1", [project]);
    return mover;
  }

  test.each(["retry", "cancel"] as const)(
    "loses its planned retry to a %s that meets it on its way",
    async (act) => {
      const attempt = await startOne();
      await settleAttempts(store.db, [settlementOf(attempt, failedWith({ dueAt: Date.now() + 60_000 }))]);
      const { runId } = attempt.granted;
      expect((await find(runId))?.nextRetryAt).not.toBeNull();
      const mover = await moving();
      const acting =
        act === "retry"
          ? retryRun(store.db, scope(), runId, store.newRunId(), keyCause())
          : cancelJob(store.db, scope(), attempt.claim.jobId, keyCause());
      await store.untilBlocked();
      await mover.query("COMMIT");
      expect((await acting).kind).toBe(act === "retry" ? "retried" : "canceled");
      expect((await find(runId))?.nextRetryAt).toBeNull();
      expect(await classTableOf(runId)).toBe("runs_scale");
    },
  );

  test("is listed exactly once, both before and after the move commits", async () => {
    const runId = await settleOne();
    const listed = async () =>
      (
        await listRuns(store.db, { ...scope(), jobId: null, status: null, beforeId: null, limit: 10 })
      ).rows.map(({ id }) => id);
    const mover = await moving();
    expect(await listed()).toEqual([runId]);
    await mover.query("COMMIT");
    expect(await listed()).toEqual([runId]);
  });
});

test("a retry that is canceled before it was sent leaves its run in the project's class", async () => {
  await setPlan("pro");
  const runId = await settleOne(failedWith("over"));
  const newRunId = store.newRunId();
  const retried = await retryRun(store.db, scope(), runId, newRunId, keyCause());
  await cancelJob(store.db, scope(), retried.kind === "retried" ? retried.run.jobId : "", keyCause());
  expect(await find(newRunId)).toMatchObject({ status: "failed" });
  expect(await classTableOf(newRunId)).toBe("runs_pro");
});
