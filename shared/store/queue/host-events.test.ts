import { afterAll, beforeAll, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import { DELIVERY_PREFIX, idToUuid, uuidToId } from "../../domain/ids.ts";
import { ENVIRONMENTS, type Environment, type ProjectNo } from "../../domain/scope.ts";
import { environmentCode, environmentOf, eventTypeOf } from "../database/codes.ts";
import { addEndpoint, deliveryClaimOf } from "../delivery-test-support.ts";
import { updateProject } from "../resources/projects.ts";
import { openHost, parkHost } from "../resources/target-hosts.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { claimDeliveries } from "./delivery-claim.ts";
import { settleAttempts } from "./settle.ts";

/** host.down and host.up are told once for each environment, in the statement that makes them true. */

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const HOST = "api.example.com";
const JOB = { targetUrl: `https://${HOST}/hook` };
const SHARD = 5;

/** A project with an endpoint in each environment that hears of hosts. */
async function addProject(): Promise<ProjectNo> {
  const project = await store.addProject();
  for (const environment of ENVIRONMENTS)
    await addEndpoint(store, project, { events: ["host.down", "host.up"], environment });
  return project;
}

async function addWatchedProject(): Promise<ProjectNo> {
  const project = await addProject();
  await updateProject(store.db, project, { parksFailingHosts: true }, keyCause());
  return project;
}

/** Starts a job at the host in each environment of the projects. */
async function startJobs(projects: readonly ProjectNo[]) {
  const started = [];
  for (const project of projects) {
    for (const environment of ENVIRONMENTS) {
      const [id = ""] = await store.addJobs(project, 1, { ...JOB, environment });
      started.push(await store.start(nodeId, project, id, { environment }));
    }
  }
  return started;
}

/** Settles the attempts in one statement, and all are retried far later. */
const settle = (started: Awaited<ReturnType<typeof startJobs>>, nobody: boolean) =>
  settleAttempts(
    store.db,
    started.map((each) =>
      settlementOf(each, {
        ...failedWith({ dueAt: 4_000_000_000_000 }),
        isPlain: false,
        met: { host: HOST, nobody },
      }),
    ),
  );

/** Claims what is owed to the project's endpoints, in one statement. Answers the environment and the type of each event. */
async function toldOf(project: ProjectNo): Promise<string[]> {
  const rows = await store.query<{ id: string; environment: number }>(
    "SELECT id, environment FROM open_deliveries WHERE project_no = $1 AND node_id IS NULL",
    [project],
  );
  const claims = rows.map(({ id, environment }) =>
    deliveryClaimOf({
      projectNo: project,
      environment: environmentOf(environment),
      region: "us-east",
      id: uuidToId(DELIVERY_PREFIX, id),
    }),
  );
  const answers = await claimDeliveries(store.db, nodeId, claims);
  return answers
    .map((answer) =>
      answer.kind === "granted"
        ? `${answer.attempt.event.environment} ${answer.attempt.event.type}`
        : answer.kind,
    )
    .sort();
}
const eventsOf = async (project: ProjectNo): Promise<string[]> =>
  (
    await store.query<{ environment: number; type: number }>(
      "SELECT environment, type FROM events WHERE project_no = $1",
      [project],
    )
  )
    .map(({ environment, type }) => `${environmentOf(environment)} ${eventTypeOf(type)}`)
    .sort();

const DOWN = ["development host.down", "production host.down"];
const UP = ["development host.up", "production host.up"];

test("a host that is parked and opened by hand is told of once in each environment, where the project never had a job", async () => {
  const project = await addProject();
  const act = async (change: typeof parkHost | typeof openHost, environment: Environment) =>
    change(store.db, { projectNo: project, environment }, HOST, keyCause(), null, SHARD);
  for (const environment of [...ENVIRONMENTS, ...ENVIRONMENTS]) await act(parkHost, environment);
  expect(await toldOf(project)).toEqual(DOWN);
  const lanes = await store.query(
    "SELECT environment, region, shard, has_deliveries FROM lanes WHERE project_no = $1 ORDER BY environment",
    [project],
  );
  expect(lanes).toEqual(
    [0, 1].map((environment) => ({ environment, region: 0, shard: SHARD, has_deliveries: true })),
  );
  for (const environment of [...ENVIRONMENTS, ...ENVIRONMENTS]) await act(openHost, environment);
  expect(await toldOf(project)).toEqual(UP);
  expect(await eventsOf(project)).toEqual([...DOWN, ...UP].sort());
});

test("a host that was parked before anybody asked for events is told of when it is opened, where the project never had a job", async () => {
  const project = await store.addProject();
  const scope = { projectNo: project, environment: "production" as const };
  await parkHost(store.db, scope, HOST, keyCause(), null, SHARD);
  await addEndpoint(store, project, { events: ["host.up"] });
  await openHost(store.db, scope, HOST, keyCause(), null, SHARD);
  expect(await toldOf(project)).toEqual(["production host.up"]);
});

test("a host that is down in both environments is told of once in each when the project does not ask for it any more", async () => {
  const project = await addWatchedProject();
  for (const environment of ENVIRONMENTS) {
    await store.addJobs(project, 1, { ...JOB, environment });
    await store.query(
      "INSERT INTO target_hosts (project_no, environment, host, state, by) VALUES ($1, $2, $3, 0, 0)",
      [project, environmentCode(environment), HOST],
    );
  }
  for (let times = 0; times < 2; times++)
    await updateProject(store.db, project, { parksFailingHosts: false }, keyCause());
  expect(await eventsOf(project)).toEqual(UP);
  expect(await toldOf(project)).toEqual(UP);
});

test("a host that one settlement finds down for two projects in both environments is told of once in each", async () => {
  const projects = [await addWatchedProject(), await addWatchedProject()];
  const started = await startJobs(projects);
  await store.query(
    `INSERT INTO target_hosts (project_no, environment, host, failures, failing_since)
     SELECT p, e, $2, 19, now() - interval '40 s' FROM unnest($1::int[]) p, generate_series(0, 1) e`,
    [projects, HOST],
  );
  await settle(started, true);
  for (const project of projects) {
    expect(await eventsOf(project)).toEqual(DOWN);
    expect(await toldOf(project)).toEqual(DOWN);
  }
});

test("a host that one settlement finds up for two projects in both environments is told of once in each", async () => {
  const projects = [await addWatchedProject(), await addWatchedProject()];
  const started = await startJobs(projects);
  for (const { claim } of started) {
    await store.query(
      `INSERT INTO target_hosts (project_no, environment, host, state, by, next_probe_at, probe)
       VALUES ($1, $2, $3, 0, 0, now(), $4)`,
      [claim.projectNo, environmentCode(claim.environment), HOST, idToUuid(claim.jobId)],
    );
  }
  await settle(started, false);
  for (const project of projects) {
    expect(await eventsOf(project)).toEqual(UP);
    expect(await toldOf(project)).toEqual(UP);
  }
});
