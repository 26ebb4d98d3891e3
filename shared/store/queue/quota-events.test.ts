import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { keyCause, testCause } from "../../../test/support/cause.ts";
import { eventText } from "../../contract/event-text.ts";
import { DELIVERY_PREFIX, PROJECT_PREFIX, uuidToId } from "../../domain/ids.ts";
import { PLAN_TERMS, PLANS, type Plan } from "../../domain/plan.ts";
import { ENVIRONMENTS, type Environment } from "../../domain/scope.ts";
import { StoreUnavailable } from "../database/database.ts";
import { addEndpoint, startDelivery } from "../delivery-test-support.ts";
import { retryRun } from "../resources/jobs-by-hand.ts";
import { changeProject } from "../resources/projects.ts";
import { failedWith, settlementOf, startStore, type TestStore, WAYS } from "../test-support.ts";
import { claimAttempts } from "./claim.ts";
import { claimOrdinary } from "./claim-ordinary.ts";
import { settleAttempts } from "./settle.ts";

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore({ connections: 12 });
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const QUOTA = { events: ["quota.reached" as const] };

/** A project whose month has `runs` runs, with an endpoint in each environment unless told otherwise. */
async function addProject(plan: Plan, runs: number, environments: readonly Environment[] = ENVIRONMENTS) {
  const project = await store.addProject({ plan, concurrency: 1_000 });
  for (const environment of environments) await addEndpoint(store, project, { ...QUOTA, environment });
  await setRuns(project, runs);
  return project;
}

const setRuns = (project: number, runs: number) =>
  store.query("UPDATE flows SET month_runs = $2 WHERE project_no = $1", [project, runs]);

async function claimsOf(project: number, count: number) {
  return (await store.addJobs(project, count)).map((jobId) => store.claimOf(project, jobId));
}

/** The environment, the percentage, the runs and the included runs of each event that is owed. */
async function toldOf(project: number): Promise<string[]> {
  const rows = await store.query<{ text: string }>(
    `SELECT concat_ws(' ', o.environment, e.data->>'percent', e.data->>'runs', e.data->>'runs_included') AS text
       FROM open_deliveries o JOIN events e ON e.project_no = o.project_no AND e.environment = o.environment AND e.id = o.event_id
      WHERE o.project_no = $1 ORDER BY 1`,
    [project],
  );
  return rows.map(({ text }) => text);
}

test.each(["before", "after"])(
  "quota.reached is told once, and nothing is counted twice, if a claim is cut off %s its second statement",
  async (when) => {
    const [near, far] = [await addProject("hobby", 7_999, ["production"]), await addProject("hobby", 10, [])];
    const claims = [...(await claimsOf(far, 1)), ...(await claimsOf(near, 1))];
    const run = async <Row>(name: string, text: string, values: unknown[]) => {
      if (name !== "claim_whole") return store.db.run<Row>(name, text, values);
      if (when === "after") await store.db.run<Row>(name, text, values);
      throw new StoreUnavailable("cut off");
    };
    await expect(claimAttempts({ ...store.db, run }, nodeId, claims)).rejects.toBeInstanceOf(
      StoreUnavailable,
    );
    const answers = await claimAttempts(store.db, nodeId, claims);
    expect(answers.map(({ kind }) => kind)).toEqual(["granted", "granted"]);
    expect([(await store.flow(near)).month_runs, (await store.flow(far)).month_runs]).toEqual([8_000, 11]);
    expect(await toldOf(near)).toEqual(["1 80 8000 10000"]);
  },
);

describe.each(WAYS)("quota.reached, %s", (_name, { claim }) => {
  test.each([
    [80, 7_998],
    [100, 9_998],
  ])("is told to both environments by the very claim that counts the run of %i %%", async (percent, runs) => {
    const project = await addProject("hobby", runs);
    const [first, second, third] = await claimsOf(project, 3);
    if (first === undefined || second === undefined || third === undefined)
      throw new Error("a job is missing");
    expect((await claim(store.db, nodeId, [first]))[0]?.kind).toBe("granted");
    expect(await toldOf(project)).toEqual([]);
    expect((await claim(store.db, nodeId, [second]))[0]?.kind).toBe("granted");
    const told = [`0 ${percent} ${runs + 2} 10000`, `1 ${percent} ${runs + 2} 10000`];
    expect(await toldOf(project)).toEqual(told);
    // A claim of unknown outcome is made again, and the next one is another's.
    await claim(store.db, nodeId, [second]);
    const [last] = await claim(store.db, nodeId, [third]);
    expect(last?.kind).toBe(percent === 100 ? "blocked" : "granted");
    expect(await toldOf(project)).toEqual(told);
  });

  test("is told once by many claims at once, of which some share a statement", async () => {
    const project = await addProject("hobby", 7_960, ["production"]);
    const claims = await claimsOf(project, 80);
    const answers = await Promise.all(
      Array.from({ length: 16 }, (_, n) => claim(store.db, nodeId, claims.slice(n * 5, n * 5 + 5))),
    );
    expect(answers.flat().filter((answer) => answer?.kind === "granted").length).toBe(80);
    expect((await store.flow(project)).month_runs).toBe(8_040);
    expect((await toldOf(project)).length).toBe(1);
    expect((await toldOf(project))[0]).toMatch(/^1 80 80\d\d 10000$/);
  });

  test("is told together with the claims of projects that are far from it", async () => {
    const [near, far] = [await addProject("hobby", 7_999), await addProject("hobby", 10)];
    const claims = [...(await claimsOf(far, 2)), ...(await claimsOf(near, 2)), ...(await claimsOf(far, 1))];
    const answers = await claim(store.db, nodeId, claims);
    expect(answers.map((answer) => answer?.kind)).toEqual(Array.from({ length: 5 }, () => "granted"));
    expect(answers.map((answer) => answer?.kind === "granted" && answer.attempt.jobId)).toEqual(
      claims.map(({ jobId }) => jobId),
    );
    expect([(await toldOf(near)).length, await toldOf(far)]).toEqual([2, []]);
  });

  test.each([...PLANS])("goes by the runs that the plan includes: %s", async (plan) => {
    const included = PLAN_TERMS[plan].runsIncluded;
    const project = await addProject(plan, included - 1);
    await claim(store.db, nodeId, await claimsOf(project, 1));
    expect(await toldOf(project)).toEqual([`0 100 ${included} ${included}`, `1 100 ${included} ${included}`]);
  });
});

describe("quota.reached", () => {
  test("shows the month, and what is used of it", async () => {
    const project = await addProject("hobby", 7_999);
    await store.start(nodeId, project, (await store.addJobs(project, 1))[0] ?? "");
    const [row] = await store.query<{ id: string }>(
      "SELECT id FROM open_deliveries WHERE project_no = $1 AND environment = 1",
      [project],
    );
    const id = uuidToId(DELIVERY_PREFIX, row?.id ?? "");
    const owed = { projectNo: project, environment: "production", region: "us-east", id } as const;
    const { granted } = await startDelivery(store, nodeId, owed);
    expect(JSON.parse(eventText(granted.event))).toMatchObject({
      type: "quota.reached",
      environment: "production",
      data: {
        quota: {
          period: new Date().toISOString().slice(0, 7),
          percent: 80,
          runs: 8_000,
          runs_included: 10_000,
        },
      },
    });
  });

  test("is not told again after an upgrade, and again in the next month", async () => {
    const project = await addProject("hobby", 7_999);
    await store.start(nodeId, project, (await store.addJobs(project, 1))[0] ?? "");
    const [row] = await store.query<{ id: string }>("SELECT id FROM projects WHERE no = $1", [project]);
    await changeProject(store.db, uuidToId(PROJECT_PREFIX, row?.id ?? ""), { plan: "pro" }, testCause());
    await setRuns(project, 199_999);
    await store.start(nodeId, project, (await store.addJobs(project, 1))[0] ?? "");
    const told = ["0 80 8000 10000", "1 80 8000 10000"];
    expect(await toldOf(project)).toEqual(told);
    await setRuns(project, 249_999);
    await store.start(nodeId, project, (await store.addJobs(project, 1))[0] ?? "");
    expect((await toldOf(project)).length).toBe(4);
    // The rows are as if those events had been told a month ago.
    await store.query("UPDATE flows SET month_runs = 199999 WHERE project_no = $1", [project]);
    await store.query("DELETE FROM events WHERE project_no = $1", [project]);
    await store.query("DELETE FROM open_deliveries WHERE project_no = $1", [project]);
    await store.start(nodeId, project, (await store.addJobs(project, 1))[0] ?? "");
    expect(await toldOf(project)).toEqual(["0 80 200000 250000", "1 80 200000 250000"]);
  });

  test("is told of a run that a manual retry counts", async () => {
    const project = await addProject("hobby", 0, ["production"]);
    const [id = ""] = await store.addJobs(project, 1, { maxAttempts: 1 });
    const first = await store.start(nodeId, project, id);
    await settleAttempts(store.db, [settlementOf(first, failedWith("over"))]);
    await setRuns(project, 7_999);
    const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
    await retryRun(store.db, scope, first.granted.runId, store.newRunId(), keyCause());
    expect(await toldOf(project)).toEqual(["1 80 8000 10000"]);
  });

  test("costs a project whose endpoints ask for nothing of it no second statement", async () => {
    const project = await store.addProject({ plan: "hobby", concurrency: 100 });
    await addEndpoint(store, project, { events: ["job.canceled", "webhook.disabled"] });
    await setRuns(project, 7_999);
    const [first, second] = await claimsOf(project, 2);
    if (first === undefined || second === undefined) throw new Error("a job is missing");
    expect((await claimOrdinary(store.db, nodeId, [first]))[0]).not.toBeNull();
    const asked: string[] = [];
    const recorder = {
      ...store.db,
      run: <Row>(...[name, text, values]: Parameters<TestStore["db"]["run"]>): Promise<Row[]> => {
        asked.push(name);
        return store.db.run(name, text, values);
      },
    };
    expect((await claimAttempts(recorder, nodeId, [second]))[0]?.kind).toBe("granted");
    expect(asked).toEqual(["claim"]);
    expect(await store.query("SELECT FROM events WHERE project_no = $1", [project])).toEqual([]);
  });

  test("takes the long way only where a threshold may be reached", async () => {
    const project = await addProject("hobby", 7_998);
    const claims = await claimsOf(project, 4);
    const ordinary = async (...some: typeof claims) =>
      (await claimOrdinary(store.db, nodeId, some)).map((granted) => granted !== null);
    expect(await ordinary(...claims.slice(0, 2))).toEqual([false, false]);
    expect(await ordinary(...claims.slice(0, 1))).toEqual([true]);
    expect(await ordinary(...claims.slice(1, 2))).toEqual([false]);
    await claimAttempts(store.db, nodeId, claims.slice(1, 2));
    expect(await ordinary(...claims.slice(2))).toEqual([true, true]);
  });
});
