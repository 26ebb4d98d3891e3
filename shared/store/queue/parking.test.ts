import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import { idToUuid } from "../../domain/ids.ts";
import { REGIONS } from "../../domain/scope.ts";
import { addEndpoint, endJobs } from "../delivery-test-support.ts";
import { findJob } from "../resources/jobs.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import { comesToWait, failedWith, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { claimAttempts } from "./claim.ts";
import {
  forgetIdleLeftHosts,
  listLeftHosts,
  listParkedHosts,
  type ParkedLane,
  releaseLeft,
  releaseParked,
} from "./parked.ts";
import { type Parked, parkAttempts } from "./parking.ts";
import { settleAttempts } from "./settle.ts";
import { sweepShards } from "./sweep.ts";
import { findEndpointUrls } from "./target-urls.ts";

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const scopeOf = (projectNo: number) => ({ projectNo, environment: "production" }) as const;
function park(projectNo: number, ids: readonly string[], host: string, wish: Partial<Parked> = {}) {
  const url = `https://${host}/hook`;
  const common = { projectNo, environment: "production", region: "us-east", attempt: 1, host, url } as const;
  return parkAttempts(
    store.db,
    "jobs",
    ids.map((id) => ({ ...common, id, ...wish })),
  );
}
const release = (host: string, count: number, after: ParkedLane | null = null, countMin = 0) =>
  releaseParked(store.db, "jobs", { host, regions: REGIONS, after, count, countMin });
async function idsReleased(host: string, count: number): Promise<string[]> {
  return (await release(host, count)).attempts.map(({ id }) => id);
}
const sweptIds = async () =>
  (
    await sweepShards(
      store.db,
      [{ region: "us-east", shard: 0, sinceAt: Number.NEGATIVE_INFINITY }],
      [],
      1_500,
    )
  ).rows.map(({ id }) => id);

describe("a parked attempt", () => {
  test("is neither swept nor claimed until its release, and is due from then on", async () => {
    const project = await store.addProject();
    const [id = ""] = await store.addJobs(project, 1);
    expect(await park(project, [id], "once.example")).toEqual(["parked"]);
    expect(await park(project, [id], "once.example")).toEqual(["gone"]);
    expect(await listParkedHosts(store.db, "jobs")).toContain("once.example");
    expect(await sweptIds()).not.toContain(id);
    expect(await claimAttempts(store.db, nodeId, [store.claimOf(project, id)])).toEqual([{ kind: "gone" }]);
    const releasedFrom = Date.now() - 1_000;
    const { attempts } = await release("once.example", 10);
    expect(attempts).toMatchObject([{ id, shard: 0, flowClass: "production jobs", attempt: 1 }]);
    expect(attempts[0]?.dueAt).toBeGreaterThan(releasedFrom);
    expect(await sweptIds()).toContain(id);
    expect(await claimAttempts(store.db, nodeId, [store.claimOf(project, id)])).toMatchObject([
      { kind: "granted" },
    ]);
    expect(await park(project, [id], "once.example")).toEqual(["gone"]);
  });

  test("keeps the planned time of its retry until the attempt is settled", async () => {
    const project = await store.addProject();
    const [id = ""] = await store.addJobs(project, 1);
    const first = await store.start(nodeId, project, id);
    const failed = failedWith({ dueAt: Date.now() });
    const { items } = await settleAttempts(store.db, [settlementOf(first, failed)]);
    const plannedAt = items[0]?.nextRetryAt ?? Number.NaN;
    expect(await park(project, [id], "retry.example", { attempt: 2 })).toEqual(["parked"]);
    await release("retry.example", 1);
    expect(await park(project, [id], "retry.example", { attempt: 2 })).toEqual(["parked"]);
    await release("retry.example", 1);
    const second = await store.start(nodeId, project, id, { attempt: 2 });
    expect(second.granted.scheduledAt).toBe(plannedAt);
    await settleAttempts(store.db, [settlementOf(second, failed)]);
    const third = await store.start(nodeId, project, id, { attempt: 3 });
    expect(third.granted.scheduledAt).toBeGreaterThan(plannedAt);
  });

  test("can be canceled and retried by hand like any other", async () => {
    const project = await store.addProject();
    const [canceled = "", retried = ""] = await store.addJobs(project, 2);
    const first = await store.start(nodeId, project, retried);
    await settleAttempts(store.db, [settlementOf(first, failedWith({ dueAt: Date.now() }))]);
    await park(project, [canceled], "hand.example");
    await park(project, [retried], "hand.example", { attempt: 2 });
    expect(await cancelJob(store.db, scopeOf(project), canceled, keyCause())).toMatchObject({
      kind: "canceled",
    });
    const runId = store.newRunId();
    const scope = { ...scopeOf(project), sinceAt: 0 };
    expect(await retryRun(store.db, scope, first.granted.runId, runId, keyCause())).toMatchObject({
      kind: "retried",
    });
    expect((await findJob(store.db, scopeOf(project), retried))?.status).toBe("running");
    expect(await idsReleased("hand.example", 10)).toEqual([]);
    const second = await store.start(nodeId, project, retried, { attempt: 2 });
    expect(second.granted.runId).toBe(runId);
  });
});

test("a delivery is parked only by the present URL of its endpoint", async () => {
  const project = await store.addProject();
  const webhookId = await addEndpoint(store, project);
  const [delivery] = await endJobs(store, nodeId, project, { count: 1 });
  if (delivery === undefined) throw new Error("nothing is owed");
  const { environment, region, id } = delivery;
  const url = (await findEndpointUrls(store.db, [delivery]))[0] ?? "";
  const common = { projectNo: project, environment, region, id, attempt: 1, host: "moved.example" };
  const parkBy = (seen: string) => parkAttempts(store.db, "webhooks", [{ ...common, url: seen }]);
  expect(await parkBy("https://moved.example/before")).toEqual(["elsewhere"]);
  expect(await parkBy(url)).toEqual(["parked"]);
  const left = { ...scopeOf(project), webhookId, host: "moved.example", url, leftAt: "-infinity" };
  expect((await releaseLeft(store.db, left, 10)).map((released) => released.id)).toEqual([id]);
});

test("left hosts at which nothing is parked are forgotten, except one that is left again meanwhile", async () => {
  const project = await store.addProject();
  const webhookId = await addEndpoint(store, project);
  const [delivery] = await endJobs(store, nodeId, project, { count: 1 });
  if (delivery === undefined) throw new Error("nothing is owed");
  const { environment, region, id } = delivery;
  const url = (await findEndpointUrls(store.db, [delivery]))[0] ?? "";
  const host = "behind-many.example";
  const parked = { projectNo: project, environment, region, id, attempt: 1, host, url };
  expect(await parkAttempts(store.db, "webhooks", [parked])).toEqual(["parked"]);
  const leave = (hosts: string) =>
    store.query(
      `INSERT INTO left_hosts (project_no, environment, webhook_id, host)
       SELECT $1, 1, $2, host FROM ${hosts} ON CONFLICT (webhook_id, host) DO UPDATE SET left_at = excluded.left_at`,
      [project, idToUuid(webhookId)],
    );
  let forgotten: Promise<void> | undefined;
  await leave("(SELECT 'h' || n || '.example' AS host FROM generate_series(1, 500) n) many");
  await leave(`(VALUES ('${host}')) one (host)`);
  await store.db.transact(async (tx) => {
    await tx.run(
      "leave_again",
      "UPDATE left_hosts SET left_at = clock_timestamp() WHERE host = 'h1.example'",
      [],
    );
    const forgetting = forgetIdleLeftHosts(store.db, 1_000);
    expect(await comesToWait(store, forgetting)).toBe(true);
    forgotten = forgetting;
  });
  await forgotten;
  const listed = await listLeftHosts(store.db, 20);
  expect(listed.map((left) => left.host).toSorted()).toEqual([host, "h1.example"]);
});

describe("a release of parked attempts", () => {
  test("takes as many of every lane, the oldest first, and the next one goes on after the last lane", async () => {
    const [large, small, last] = [
      await store.addProject(),
      await store.addProject(),
      await store.addProject(),
    ];
    const larges = await store.addJobs(large, 20);
    const smalls = await store.addJobs(small, 2);
    const lasts = await store.addJobs(last, 2);
    for (const [project, ids] of [
      [large, larges],
      [small, smalls],
      [last, lasts],
    ] as const)
      await park(project, ids, "turns.example");
    const first = await release("turns.example", 2);
    expect(first.attempts.map(({ id }) => id).toSorted()).toEqual(
      [larges[0], smalls[0]].toSorted() as string[],
    );
    expect(first.last?.projectNo).toBe(small);
    const second = await release("turns.example", 2, first.last);
    expect(second.attempts.map(({ id }) => id)).toEqual(lasts);
    expect((await release("turns.example", 3)).attempts.length).toBe(3);
  });

  test("takes no more than there are free permits, or the asked minimum, and nothing that is held", async () => {
    const project = await store.addProject({ concurrency: 3 });
    const ids = await store.addJobs(project, 10);
    await park(project, ids.slice(1), "permits.example");
    await store.start(nodeId, project, ids[0] ?? "");
    expect(await idsReleased("permits.example", 10)).toEqual(ids.slice(1, 3));
    await store.query("UPDATE flows SET concurrency = 1 WHERE project_no = $1", [project]);
    expect(await idsReleased("permits.example", 10)).toEqual([]);
    expect((await release("permits.example", 10, null, 2)).attempts.length).toBe(2);
    await store.query("UPDATE flows SET concurrency = 9, held = true WHERE project_no = $1", [project]);
    expect((await release("permits.example", 10, null, 2)).attempts).toEqual([]);
    await store.query("UPDATE flows SET held = false WHERE project_no = $1", [project]);
    await store.query("INSERT INTO held_regions (region) VALUES (0)");
    expect((await release("permits.example", 10, null, 2)).attempts).toEqual([]);
    await store.query("DELETE FROM held_regions");
    expect((await release("permits.example", 10)).attempts.length).toBe(5);
  });

  test("takes some of every lane, also where its count cannot be shared equally", async () => {
    const [late, ...early] = [await store.addProject(), await store.addProject(), await store.addProject()];
    for (const project of early) await park(project, await store.addJobs(project, 20), "shares.example");
    const lates = await store.addJobs(late, 20);
    await park(late, lates, "shares.example");
    expect(
      (await idsReleased("shares.example", 4)).filter((id) => lates.includes(id)).length,
    ).toBeGreaterThan(0);
  });

  test("takes no more than the month's quota leaves, or the asked minimum", async () => {
    const project = await store.addProject();
    await park(project, await store.addJobs(project, 5), "quota.example");
    await store.query(
      "UPDATE flows SET month = date_trunc('month', now()), month_runs_max = 9, month_runs = 8 WHERE project_no = $1",
      [project],
    );
    expect((await idsReleased("quota.example", 10)).length).toBe(1);
    await store.query("UPDATE flows SET month_runs = 9 WHERE project_no = $1", [project]);
    expect(await idsReleased("quota.example", 10)).toEqual([]);
    expect((await release("quota.example", 10, null, 2)).attempts.length).toBe(2);
    await store.query("UPDATE flows SET month = month - interval '1 month' WHERE project_no = $1", [project]);
    expect((await idsReleased("quota.example", 10)).length).toBe(2);
  });

  test("by two nodes at once releases each attempt once", async () => {
    const project = await store.addProject();
    const ids = await store.addJobs(project, 100);
    await park(project, ids, "two.example");
    const both = await Promise.all([idsReleased("two.example", 100), idsReleased("two.example", 100)]);
    expect(both.flat().toSorted()).toEqual(ids.toSorted());
  });
});
