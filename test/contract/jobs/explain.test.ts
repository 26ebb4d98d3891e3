import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Client } from "../../../shared/client/index.ts";
import { JobExplanation } from "../../../shared/contract/explanation.ts";
import { idToUuid } from "../../../shared/domain/ids.ts";
import { REGIONS } from "../../../shared/domain/scope.ts";
import { regionCode } from "../../../shared/store/database/codes.ts";
import { clientOf } from "../../support/client.ts";
import {
  type JobView,
  readAs,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;
let client: Client;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  client = clientOf(gateway, project.production);
  // These nodes own all shards and serve all regions for as long as the test lasts.
  const regions = `{${REGIONS.map(regionCode).join(",")}}`;
  await gateway.query(
    `INSERT INTO nodes (kind, name, regions, process, seen_at) VALUES ('delivery', 'd', $1, 'test', 'infinity')`,
    [regions],
  );
  await gateway.query(
    `WITH owner AS (INSERT INTO nodes (kind, name, regions, process) VALUES ('worker', 'w', $1, 'test') RETURNING id)
     INSERT INTO shards (region, shard, owner, lease_until)
     SELECT region, shard, owner.id, 'infinity' FROM owner, unnest($1::smallint[]) AS region, generate_series(0, 255) AS shard
         ON CONFLICT (region, shard) DO UPDATE SET owner = excluded.owner, lease_until = excluded.lease_until`,
    [regions],
  );
});
afterAll(() => gateway.stop());

const ask = (id: string, key = project.production) => gateway.call("GET", `/v2/jobs/${id}/explain`, { key });
const explain = async (job: JobView, key = project.production) =>
  readAs(JobExplanation, await ask(job.id, key));
/** Sets the runs' durations to 0. The test gateway's own are so long that the runs would end after later steps. */
const endAtOnce = (job: JobView) =>
  gateway.query("UPDATE runs SET duration_ms = 0 WHERE job_id = $1", [idToUuid(job.id)]);
const hour = () => new Date(Date.now() + 3_600_000).toISOString();

describe("GET /v2/jobs/{id}/explain", () => {
  test("says that a job waits for its time, and what has happened until now", async () => {
    const runAt = hour();
    const job = await gateway.createJob(project, { run_at: runAt });
    const explained = await explain(job);
    expect(explained).toEqual({
      job_id: job.id,
      status: "queued",
      as_of: explained.as_of,
      waiting: {
        for: "due_time",
        since: job.created_at,
        until: runAt,
        ahead: null,
        message: `The job is due at ${runAt}.`,
      },
      timeline: [{ at: job.created_at, event: "created" }],
    });
    expect(Math.abs(Date.parse(explained.as_of) - Date.now())).toBeLessThan(60_000);
    expect(await client.jobs.explain(job.id)).toMatchObject({ job_id: job.id, waiting: explained.waiting });
  });

  test("says that a due job has its turn, and counts those of its lane that go before it", async () => {
    const own = await gateway.addProject();
    const [first, second, third] = [
      await gateway.createJob(own),
      await gateway.createJob(own),
      await gateway.createJob(own),
    ];
    await gateway.createJob(own, { run_at: hour() });
    await gateway.createJob(own, { region: "eu-central" });
    const ahead = [];
    for (const job of [first, second, third]) {
      const { waiting, timeline } = await explain(job, own.production);
      expect(waiting).toMatchObject({ for: "turn", since: job.run_at, until: null });
      expect(timeline.map(({ event }) => event)).toEqual(["created", "due"]);
      ahead.push(waiting?.ahead);
    }
    expect(ahead).toEqual([0, 1, 2]);
    // Among jobs of one instant, the job whose id was made first goes first.
    await gateway.query(
      "UPDATE open_jobs SET due_at = now() - interval '1 s' WHERE project_no = $1 AND region = 0",
      [own.no],
    );
    expect((await explain(second, own.production)).waiting?.ahead).toBe(1);
    await gateway.query(
      `INSERT INTO open_jobs (project_no, environment, region, job_id, attempts_allowed, due_at)
       SELECT project_no, environment, region, gen_random_uuid(), 1, due_at - interval '1 s'
         FROM open_jobs, generate_series(1, 999) WHERE project_no = $1 AND region = 0 AND job_id = (
           SELECT min(job_id::text)::uuid FROM open_jobs WHERE project_no = $1 AND region = 0)`,
      [own.no],
    );
    expect((await explain(second, own.production)).waiting).toMatchObject({ ahead: 1_000 });
    expect((await explain(third, own.production)).waiting).toMatchObject({
      ahead: null,
      message: "The attempt is due and nothing is in its way; more than 1000 attempts go before this one.",
    });
  });

  test("says that a flow key or a host that is down is in the way, the host first, and who goes before", async () => {
    const own = await gateway.addProject();
    const { flows, hosts, jobs } = clientOf(gateway, own.production);
    const flow = { key: "a/b", concurrency: 1 };
    const [first, second, third] = [
      await gateway.createJob(own, { flow }),
      await gateway.createJob(own, { flow, region: "eu-central" }),
      await gateway.createJob(own, { flow }),
    ];
    expect((await explain(first, own.production)).waiting).toMatchObject({ for: "turn", ahead: 0 });
    await gateway.claim(own, first, 1);
    for (const [ahead, job] of [second, third].entries()) {
      expect((await explain(job, own.production)).waiting).toEqual({
        ...{ for: "flow", since: job.run_at, until: null, ahead, limit: 1, in_use: 1, flow_key: "a/b" },
        message: `The flow key a/b has 1 place taken and may have 1; ${ahead === 0 ? "no" : 1} attempt goes before this one.`,
      });
    }
    await flows.update("a/b", { paused: true });
    expect((await explain(third, own.production)).waiting).toMatchObject({
      for: "flow",
      limit: 0,
      in_use: 1,
    });
    await hosts.park("example.com");
    expect((await explain(third, own.production)).waiting).toMatchObject({
      ...{ for: "host", host: "example.com", until: null },
      message: expect.stringContaining("A request has parked what is sent to example.com."),
    });
    await jobs.cancel(second.id);
    expect((await jobs.explain(second.id)).waiting).toBeNull();
  });

  test("says that all permits of the project are in use, and who goes before", async () => {
    const own = await gateway.addProject("hobby");
    const limit = (
      await gateway.query<{ concurrency: number }>("SELECT concurrency FROM flows WHERE project_no = $1", [
        own.no,
      ])
    )[0];
    await gateway.query("UPDATE flows SET concurrency = 1 WHERE project_no = $1", [own.no]);
    const [running, waiting] = [await gateway.createJob(own), await gateway.createJob(own)];
    const { runId } = await gateway.claim(own, running, 1);
    expect(limit?.concurrency).toBeGreaterThan(1);
    expect((await explain(waiting, own.production)).waiting).toEqual({
      for: "concurrency",
      since: waiting.run_at,
      until: null,
      ahead: 0,
      limit: 1,
      in_use: 1,
      message: "The project has 1 attempt in progress and may have 1; no attempt goes before this one.",
    });
    const sent = await explain(running, own.production);
    expect(sent).toMatchObject({ status: "running", waiting: null });
    expect(sent.timeline.at(-1)).toMatchObject({
      event: "started",
      run_id: runId,
      attempt: 1,
      held_for: null,
    });
  });

  test("says that the project, or its region, is held, before anything else", async () => {
    const own = await gateway.addProject();
    const job = await gateway.createJob(own, { run_at: hour() });
    await gateway.query("UPDATE flows SET held = true WHERE project_no = $1", [own.no]);
    expect((await explain(job, own.production)).waiting).toMatchObject({
      for: "hold",
      since: job.run_at,
      message: expect.stringContaining("holds this project"),
    });
    await gateway.query("UPDATE flows SET held = false WHERE project_no = $1", [own.no]);
    const other = await gateway.createJob(own, { region: "ap-southeast" });
    await gateway.query("INSERT INTO held_regions (region) VALUES ($1)", [regionCode("ap-southeast")]);
    expect((await explain(other, own.production)).waiting).toMatchObject({
      for: "hold",
      message: expect.stringContaining("holds the region ap-southeast"),
    });
    expect((await explain(job, own.production)).waiting?.for).toBe("due_time");
    await gateway.query("DELETE FROM held_regions");
  });

  test("says that the month's quota is used up, until the month ends", async () => {
    const own = await gateway.addProject("hobby");
    const job = await gateway.createJob(own);
    await gateway.query(
      "UPDATE flows SET month_runs = month_runs_max, month = date_trunc('month', now())::date WHERE project_no = $1",
      [own.no],
    );
    const { waiting } = await explain(job, own.production);
    expect(waiting).toMatchObject({ for: "quota", since: job.run_at, ahead: 0 });
    expect(waiting?.limit).toBe(waiting?.in_use as number);
    expect(waiting?.until).toMatch(/^\d{4}-\d{2}-01T00:00:00\.000Z$/);
    await gateway.query("UPDATE flows SET month = month - interval '1 month' WHERE project_no = $1", [
      own.no,
    ]);
    expect((await explain(job, own.production)).waiting?.for).toBe("turn");
  });

  test("says that nobody of the service looks after the job", async () => {
    const job = await gateway.createJob(project, { region: "us-west" });
    await gateway.query("UPDATE shards SET lease_until = now() - interval '1 s' WHERE region = $1", [
      regionCode("us-west"),
    ]);
    expect((await explain(job)).waiting).toMatchObject({
      for: "no_worker",
      message: expect.stringContaining("No worker"),
    });
    await gateway.query("UPDATE shards SET lease_until = 'infinity'");
    await gateway.query("UPDATE nodes SET seen_at = now() - interval '1 min' WHERE kind = 'delivery'");
    expect((await explain(job)).waiting).toMatchObject({
      for: "no_worker",
      message: expect.stringContaining("No delivery node"),
    });
    await gateway.query("UPDATE nodes SET seen_at = 'infinity' WHERE kind = 'delivery'");
    expect((await explain(job)).waiting?.for).toBe("turn");
  });

  test("says that a host takes no more, and what of its own lane is parked there before the job", async () => {
    const own = await gateway.addProject();
    const jobs = [await gateway.createJob(own), await gateway.createJob(own)] as const;
    await gateway.query("INSERT INTO host_limits (host, requests) VALUES ('example.com', 0)");
    expect((await explain(jobs[1], own.production)).waiting).toMatchObject({
      for: "host",
      host: "example.com",
      limit: 0,
      ahead: 1,
    });
    await gateway.query("UPDATE host_limits SET requests = 3");
    expect((await explain(jobs[1], own.production)).waiting?.for).toBe("turn");
    await gateway.query(
      "UPDATE open_jobs SET parked_due_at = due_at, parked_host = 'example.com', due_at = NULL WHERE project_no = $1",
      [own.no],
    );
    expect((await explain(jobs[1], own.production)).waiting).toMatchObject({
      for: "host",
      since: jobs[1].run_at,
      host: "example.com",
      limit: 3,
      ahead: 1,
    });
    await gateway.query("DELETE FROM host_limits");
  });

  test("tells of failures, planned retries, a retry by hand and the end", async () => {
    const job = await gateway.createJob(project, { retry_policy: { max_attempts: 2 } });
    const one = await gateway.attempt(project, job, 1, { status: "failed", leaves: "queued" });
    const dueAt = hour();
    await gateway.query("UPDATE open_jobs SET due_at = $2 WHERE job_id = $1", [idToUuid(job.id), dueAt]);
    await gateway.query("UPDATE runs SET next_retry_at = $2 WHERE id = $1", [idToUuid(one.runId), dueAt]);
    const between = await explain(job);
    expect(between.waiting).toMatchObject({ for: "backoff", until: dueAt });
    expect(between.waiting?.since).toBe(between.timeline.at(-1)?.at as string);
    expect(between.timeline.at(-1)).toMatchObject({ event: "retry_planned", attempt: 2, due_at: dueAt });
    const nowDue = new Date().toISOString();
    await gateway.query("UPDATE open_jobs SET due_at = $2 WHERE job_id = $1", [idToUuid(job.id), nowDue]);
    await gateway.query("UPDATE runs SET next_retry_at = $2 WHERE id = $1", [idToUuid(one.runId), nowDue]);
    await gateway.attempt(project, job, 2, { status: "timed_out", leaves: "failed" });
    await endAtOnce(job);
    const asked = await client.runs.retry(one.runId);
    const pending = await explain(job);
    expect(pending).toMatchObject({ status: "running", waiting: { for: "turn", ahead: 0 } });
    expect(pending.timeline.at(-1)).toMatchObject({ event: "retry_requested", run_id: asked.id, attempt: 3 });
    await gateway.attempt(project, job, 3, { status: "succeeded", leaves: "succeeded" });
    await endAtOnce(job);
    const { waiting, status, timeline } = await explain(job);
    expect({ waiting, status }).toEqual({ waiting: null, status: "succeeded" });
    expect(timeline.map(({ event }): string => event)).toEqual([
      "created",
      ...["due", "started", "ended", "retry_planned"],
      ...["due", "started", "ended"],
      ...["due", "retry_requested", "started", "ended"],
    ]);
    const instants = timeline.map(({ at }) => at);
    expect(instants).toEqual(instants.toSorted());
    const ended = timeline.filter((entry) => entry.event === "ended");
    expect(ended.map(({ attempt, status }) => [attempt, status])).toEqual([
      [1, "failed"],
      [2, "timed_out"],
      [3, "succeeded"],
    ]);
  });

  test("tells of a cancel, also of a run that was asked for by hand and never sent", async () => {
    const job = await gateway.createJob(project, { retry_policy: { max_attempts: 1 } });
    const { runId } = await gateway.attempt(project, job, 1, { status: "failed", leaves: "failed" });
    await endAtOnce(job);
    const asked = await client.runs.retry(runId);
    await gateway.query("UPDATE open_jobs SET started_at = started_at - interval '1 h' WHERE job_id = $1", [
      idToUuid(job.id),
    ]);
    await client.jobs.cancel(job.id);
    const { status, waiting, timeline } = await explain(job);
    expect({ status, waiting }).toEqual({ status: "canceled", waiting: null });
    const atOf = (name: string) => timeline.findLast(({ event }) => event === name)?.at;
    expect(atOf("ended")).toBe(atOf("cancel_requested") as string);
    expect(
      timeline.filter((entry) => "run_id" in entry && entry.run_id === asked.id).map(({ event }) => event),
    ).toEqual(["retry_requested", "ended"]);
    expect(timeline.filter(({ event }) => event === "cancel_requested")).toHaveLength(1);
  });

  test("tells of the event of a cancel, where an endpoint hears of it", async () => {
    const own = await gateway.addProject();
    const its = clientOf(gateway, own.production);
    const endpoint = await its.webhooks.create({
      url: "https://example.com/events",
      events: ["job.canceled"],
    });
    const job = await gateway.createJob(own, { run_at: hour() });
    await its.jobs.cancel(job.id);
    const told = (await explain(job, own.production)).timeline.filter(
      ({ event }) => event === "event_created",
    );
    const [delivery] = (await its.webhooks.deliveries(endpoint.id)).data;
    expect(told).toMatchObject([{ type: "job.canceled", event_id: delivery?.event_id as string }]);
  });

  test("finds no job of others, and takes no parameter", async () => {
    const stranger = await gateway.addProject();
    const job = await gateway.createJob(project);
    for (const [id, key] of [
      ["job_00000000000000000000000000", project.production],
      ["batch", project.production],
      [job.id, project.development],
      [job.id, stranger.production],
    ] as const) {
      readRefusal(await ask(id, key), "resource_not_found");
    }
    readRefusal(
      await gateway.call("GET", `/v2/jobs/${job.id}/explain?verbose=1`, { key: project.production }),
      "invalid_request",
      "verbose",
    );
    const { key } = await gateway.addKey(project, { scope: "read" });
    expect((await ask(job.id, key)).status).toBe(200);
  });
});
