import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { until } from "../flow/support.ts";
import { askAdmin, runAdmin } from "../support/admin-program.ts";
import {
  countOf,
  declareDeadAlive,
  expectAllEnded,
  HOST_OF_GAMMA,
  LEASE_TTL_MS,
  latestOf,
  type OperatedCell,
  SOON_MS,
  STREAMS,
  startOperatedCell,
} from "./operated-cell.ts";

setDefaultTimeout(600_000);

let cell: OperatedCell;
beforeAll(async () => {
  cell = await startOperatedCell();
  await cell.untilOnly(STREAMS);
});
afterAll(() => cell.stop());

const admin = <T>(...words: string[]) => askAdmin<T>(cell.url, ...words);
const held = async () =>
  (await admin<{ data: { kind: string; name: string }[] }>("hold", "list")).data.map(({ name }) => name);

describe("hold and resume, under load", () => {
  test("hold a project, a region and a host, each until it is resumed itself, whatever else is held, killed or lost", async () => {
    const { projects, services, target } = cell;
    const { alpha } = projects;
    const schedule = { name: "by hand", cron: "0 0 1 1 *", target_url: target.url };
    const { id: scheduleId } = await cell.ask<{ id: string }>("alpha", "POST", "/v2/schedules", {
      ...schedule,
      payload: { stream: "alpha us-east", fired: true },
    });
    const failing = await cell.ask<{ id: string }>("alpha", "POST", "/v2/jobs", {
      target_url: target.url,
      payload: { stream: "alpha us-east", fails: true },
      retry_policy: { max_attempts: 1 },
    });
    const failedRun = await until(async () => {
      const { data } = await cell.ask<{ data: { id: string; status: string }[] }>(
        "alpha",
        "GET",
        `/v2/runs?job_id=${failing.id}`,
      );
      return data[0]?.status === "failed" && data[0].id;
    });
    // The attempts on the wire when the hold comes go on to their end.
    const release = cell.hold(({ body }) => body.includes('"alpha us-east"'));
    await until(() => target.open > 5);

    expect(await admin<object>("hold", "--project", alpha.id)).toEqual({ project: alpha.id, held: true });
    expect(await admin<object>("hold", "--region", "eu-central")).toEqual({
      regions: ["eu-central"],
      held: true,
    });
    expect(await admin<object>("hold", "--host", HOST_OF_GAMMA)).toEqual({ host: HOST_OF_GAMMA, held: true });
    release();
    await cell.ask("alpha", "POST", `/v2/runs/${failedRun}/retry`);
    const fired = await cell.ask<{ job_id?: string; id?: string }>(
      "alpha",
      "POST",
      `/v2/schedules/${scheduleId}/run`,
    );
    await cell.untilOnly(["beta us-east"]);
    // The last attempts may be settled a moment after their answers.
    const onWire = "open_jobs WHERE project_no = $1 AND node_id IS NOT NULL";
    await until(async () => (await countOf(cell, onWire, [alpha.no])) === 0);
    expect(
      await countOf(cell, "open_jobs WHERE project_no = $1 AND due_at <= now()", [alpha.no]),
    ).toBeGreaterThan(10);

    await Promise.all([...Object.values(services).map((service) => service.end("SIGKILL")), cell.loseNats()]);
    await Promise.all(Object.values(services).map((service) => service.startAgain()));
    await cell.untilOnly(["beta us-east"]);
    expect((await held()).sort()).toEqual([alpha.id, "eu-central", HOST_OF_GAMMA].sort());

    await admin("resume", "--region", "eu-central");
    await cell.untilOnly(["beta us-east", "beta eu-central"]);
    await admin("resume", "--project", alpha.id);
    await cell.untilOnly(STREAMS.filter((stream) => stream !== "gamma us-east"));
    await admin("resume", "--host", HOST_OF_GAMMA);
    await cell.untilOnly(STREAMS);
    const isSent = (jobId: string | undefined, attempt: number) =>
      target.arrivals.filter((arrival) => arrival.jobId === jobId && arrival.attempt === attempt).length ===
      1;
    await until(() => isSent(failing.id, 2) && isSent(fired.job_id ?? fired.id, 1), SOON_MS);
  });
});

describe("node dead, under load", () => {
  test("brings back a killed node's attempts at once, although no other node can prove its death", async () => {
    const release = cell.hold(({ jobId }) => jobId !== "");
    const { id } = await latestOf(cell, "delivery-b");
    const wire = () => countOf(cell, "open_jobs WHERE node_id = $1", [id]);
    // Earlier jobs may have been answered, and a killed node's last settlements may still take effect.
    const [newest] = await cell.db.run<{ id: string }>(
      "newest",
      "SELECT id FROM jobs ORDER BY id DESC LIMIT 1",
      [],
    );
    const later = "open_jobs WHERE node_id = $1 AND job_id > $2";
    await until(async () => (await countOf(cell, later, [id, newest?.id])) > 5);
    // A pod cannot see the processes of other pods.
    await cell.db.run("elsewhere", "UPDATE nodes SET process = 'in another pod' WHERE id = $1", [id]);
    await cell.services["delivery-b"].end("SIGKILL");
    await until(async () => (await latestOf(cell, "delivery-b")).silentMs > LEASE_TTL_MS);
    const lostCount = await wire();
    expect(lostCount).toBeGreaterThan(0);
    const answer = await admin<object>("node", "dead", "delivery-b");
    expect(answer).toMatchObject({ declared_dead: [{ id, kind: "delivery" }] });
    await until(async () => (await wire()) === 0, SOON_MS);
    const lost = await countOf(cell, "runs WHERE error LIKE 'The node that sent this attempt died%'");
    expect(lost).toBeGreaterThanOrEqual(lostCount);
    release();
    await cell.services["delivery-b"].startAgain();
    await cell.untilOnly(STREAMS);
  });

  test("makes a living node end itself, and it starts again under a new id", () =>
    declareDeadAlive(cell, "delivery-a"));
});

test("commands for a node, project, region or host that does not exist are refused, and change nothing", async () => {
  const tables = [
    "held_regions",
    "host_limits",
    "flows WHERE held",
    "nodes WHERE dead",
    "audit_entries WHERE operator <> ''",
  ];
  const state = () => Promise.all(tables.map((table) => countOf(cell, table)));
  const before = await state();
  const refused = [
    ["hold", "--project", `prj_${"0".repeat(26)}`],
    ["resume", "--project", `prj_${"0".repeat(26)}`],
    ["hold", "--region", "mars"],
    ["resume", "--region", "mars"],
    ["hold", "--host", "https://x.example/"],
    ["node", "dead", "nobody"],
  ];
  const answers = await Promise.all(refused.map((words) => runAdmin(cell.url, ...words)));
  expect(answers.map(({ code }) => code)).toEqual(refused.map(() => 1));
  expect(await state()).toEqual(before);
});

test("after all of this every job has ended, no attempt arrived twice, no permit is in use, and the audit names every change", async () => {
  await expectAllEnded(cell);
  const { data } = await admin<{ data: { action: string }[] }>("audit", "list", "--by", "operator");
  const actions = data.map(({ action }) => action);
  expect(actions.reverse().filter((action) => /hold|resume|^host|^node/.test(action))).toEqual([
    ...["project.hold", "region.hold", "host.limit", "region.resume", "project.resume", "host.clear"],
    ...["node.declare_dead", "node.declare_dead"],
  ]);
});
