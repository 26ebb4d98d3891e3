import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { keyCause } from "../../../test/support/cause.ts";
import { HOSTS_PARKED_BY_HAND_MAX } from "../../domain/host-state.ts";
import { idToUuid, JOB_PREFIX, RUN_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { ProjectNo, Region } from "../../domain/scope.ts";
import { addNode } from "../cell/nodes.ts";
import { addEndpoint } from "../delivery-test-support.ts";
import { explain, recordStatements } from "../plan-test-support.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import { updateProject } from "../resources/projects.ts";
import { listTargetHosts, openHost, parkHost } from "../resources/target-hosts.ts";
import {
  claimShortFirst,
  failedWith,
  inTime,
  settlementOf,
  settleShortFirst,
  startStore,
  type TestStore,
} from "../test-support.ts";
import type { Claim, GrantedAttempt } from "./claim.ts";
import { emptyGateCalls } from "./gate-calls.ts";
import { emptyHostCalls, lookAtHosts } from "./host-calls.ts";
import { settleAttempts } from "./settle.ts";

/** Less than the 5 s after which a host that is down is probed. */
const PROBE_MS = 4_000;

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const scopeOf = (projectNo: ProjectNo) => ({ projectNo, environment: "production" as const });
const newHost = () => `h-${randomBytes(6).toString("hex")}.example`;
const addJobs = (project: ProjectNo, host: string, count: number, wish = {}) =>
  store.addJobs(project, count, { targetUrl: `https://${host}/hook`, ...wish });

async function dueIn(project: ProjectNo): Promise<{ id: string; attempt: number }[]> {
  const rows = await store.query<{ job_id: string; attempt: number }>(
    "SELECT job_id, attempt FROM open_jobs WHERE project_no = $1 AND due_at <= now() ORDER BY due_at, job_id",
    [project],
  );
  return rows.map(({ job_id, attempt }) => ({ id: uuidToId(JOB_PREFIX, job_id), attempt }));
}

interface Running {
  claim: Claim;
  granted: GrantedAttempt;
}
async function start(project: ProjectNo): Promise<Running[]> {
  const claims = (await dueIn(project)).map(({ id, attempt }) => store.claimOf(project, id, { attempt }));
  const answers = await claimShortFirst(store.db, nodeId, claims);
  return answers.flatMap((answer, index) =>
    answer.kind === "granted" ? [{ claim: claims[index] as Claim, granted: answer.attempt }] : [],
  );
}
const idsOf = (running: readonly Running[]) => running.map(({ granted }) => granted.jobId);

const LATER = { dueAt: 4_000_000_000_000 };
/** Settles attempts that found nobody, or somebody; all are retried far later. */
const settle = (running: readonly Running[], host: string, nobody: boolean) =>
  settleShortFirst(
    store.db,
    running.map((each) =>
      settlementOf(each, { ...failedWith(LATER), isPlain: false, met: { host, nobody } }),
    ),
  );
const rowOf = async (project: ProjectNo, host: string) =>
  (
    await store.query<{
      state: number | null;
      failures: number;
      parked: string;
      probe: string | null;
      probe_seconds: number;
    }>(
      "SELECT state, failures, parked, probe, probe_seconds FROM target_hosts WHERE project_no = $1 AND host = $2",
      [project, host],
    )
  )[0];
const hostsOf = (project: ProjectNo) =>
  listTargetHosts(store.db, scopeOf(project), { after: null, limit: 10, state: null });
/** Moves the project's hosts as if so many seconds had passed. */
const pass = (project: ProjectNo, seconds: number) =>
  store
    .query(
      `UPDATE target_hosts SET since = since - $2 * interval '1 s', next_probe_at = next_probe_at - $2 * interval '1 s',
              failing_since = failing_since - $2 * interval '1 s' WHERE project_no = $1`,
      [project, seconds],
    )
    .then(() =>
      store.query(
        "UPDATE open_jobs SET due_at = due_at - $2 * interval '1 s' WHERE project_no = $1 AND due_at < now() + interval '10 min'",
        [project, seconds],
      ),
    );

/** Moves the project's only host to the begin of this second of its ramp. The time that the test took is left out. */
async function passToSecond(project: ProjectNo, second: number): Promise<void> {
  const [row] = await store.query<{ age: number }>(
    "SELECT extract(epoch FROM now() - since)::float8 AS age FROM target_hosts WHERE project_no = $1",
    [project],
  );
  await pass(project, second + 0.01 - (row?.age ?? expect.unreachable()));
}

/** Plans the next probe of the project's only host. */
async function probeIn(project: ProjectNo, interval: string): Promise<void> {
  await store.query(
    "UPDATE target_hosts SET next_probe_at = now() + $2::interval WHERE project_no = $1 AND state = 0",
    [project, interval],
  );
  await store.query(
    `UPDATE open_jobs o SET due_at = t.next_probe_at FROM target_hosts t
      WHERE o.project_no = $1 AND t.project_no = $1 AND o.job_id = t.probe AND o.due_at IS NOT NULL`,
    [project],
  );
}
async function lookAtLateProbes(): Promise<void> {
  await lookAtHosts(store.db);
  await emptyHostCalls(store.db);
}

/** Acts while only this region has delivery nodes. */
async function onlyIn(region: Region, act: () => Promise<void>): Promise<void> {
  const name = `node-${randomBytes(6).toString("hex")}`;
  const id = await addNode(store.db, { kind: "delivery", name, regions: [region], process: "test" });
  await store.query(
    "UPDATE nodes SET seen_at = now() + CASE WHEN id = $1 THEN interval '1 h' ELSE interval '-1 h' END",
    [id],
  );
  await act();
  await store.query("UPDATE nodes SET dead = true WHERE id = $1", [id]);
  await store.query("UPDATE nodes SET seen_at = now() WHERE NOT dead");
}

async function addWatchedProject(): Promise<ProjectNo> {
  const project = await store.addProject({ concurrency: 1_000 });
  await updateProject(store.db, project, { parksFailingHosts: true }, keyCause());
  return project;
}
/** A host that is down, with `parked` jobs parked there. */
async function addDownHost(project: ProjectNo, parked: number): Promise<{ host: string; jobs: string[] }> {
  const host = newHost();
  await addJobs(project, host, 19);
  await settle(await start(project), host, true);
  await pass(project, 40);
  await addJobs(project, host, 1);
  await settle(await start(project), host, true);
  expect(await rowOf(project, host)).toMatchObject({ state: 0 });
  return { host, jobs: await addJobs(project, host, parked) };
}

describe("a host of a project that parks what is due at failing hosts", () => {
  test("is down after 20 attempts in a row over 30 s that found nobody, and not before", async () => {
    const project = await addWatchedProject();
    await addEndpoint(store, project, { events: ["host.down", "host.up"] });
    const host = newHost();
    await addJobs(project, host, 25);
    const running = await start(project);
    expect(running.length).toBe(25);
    await settle(running.slice(0, 20), host, true);
    expect(await rowOf(project, host)).toMatchObject({ state: null, failures: 20 });
    await settle(running.slice(20, 21), host, false);
    expect(await rowOf(project, host)).toMatchObject({ state: null, failures: 0 });
    await settle(running.slice(21, 25), host, true);
    expect(await rowOf(project, host)).toMatchObject({ state: null, failures: 4 });
    await pass(project, 40);
    await addJobs(project, host, 16);
    const more = await start(project);
    await settle(more.slice(0, 15), host, true);
    expect(await rowOf(project, host)).toMatchObject({ state: null, failures: 19 });
    await settle(more.slice(15), host, true);
    expect(await hostsOf(project)).toMatchObject([{ host, state: "down", by: "breaker", parked: 0 }]);
    const events = await store.query("SELECT type, data->>'host' AS host FROM events WHERE project_no = $1", [
      project,
    ]);
    expect(events).toEqual([{ type: 7, host }]);
    const deliveries = await store.query("SELECT FROM open_deliveries WHERE project_no = $1", [project]);
    expect(deliveries.length).toBe(1);
  });

  test("has its 30 s counted anew once somebody was met, also where as many attempts found nobody after that as before", async () => {
    const project = await addWatchedProject();
    const host = newHost();
    await addJobs(project, host, 11);
    const running = await start(project);
    expect(running.length).toBe(11);
    const seriesOf = () =>
      store.query("SELECT failures, failing_since FROM target_hosts WHERE project_no = $1", [project]);
    await settle(running.slice(0, 5), host, true);
    // All attempts have started at one instant, which is the beginning of either series.
    const series = await seriesOf();
    expect(series).toMatchObject([{ failures: 5 }]);
    await pass(project, 40);
    const settlements = running
      .slice(5)
      .map((each, index) =>
        settlementOf(each, { ...failedWith(LATER), isPlain: false, met: { host, nobody: index > 0 } }),
      );
    await settleAttempts(store.db, settlements);
    expect(await seriesOf()).toEqual(series);
  });

  test("is not down where its 30 s were over only when the last attempt was settled", async () => {
    const project = await addWatchedProject();
    const host = newHost();
    await addJobs(project, host, 21);
    const running = await start(project);
    expect(running.length).toBe(21);
    const settleAfter = (some: readonly Running[], durationMs: number) =>
      settleAttempts(
        store.db,
        some.map((each) =>
          settlementOf(each, {
            ...failedWith(LATER),
            isPlain: false,
            durationMs,
            met: { host, nobody: true },
          }),
        ),
      );
    await settleAfter(running.slice(0, 19), 1_000);
    // All of them began 40 s ago, and the next one ended after 20 s.
    await pass(project, 40);
    const started = "UPDATE open_jobs SET started_at = started_at - interval '40 s' WHERE project_no = $1";
    await store.query(started, [project]);
    await settleAfter(running.slice(19, 20), 20_000);
    expect(await rowOf(project, host)).toMatchObject({ state: null, failures: 20 });
    await settleAfter(running.slice(20), 31_000);
    expect(await hostsOf(project)).toMatchObject([{ host, state: "down" }]);
  });

  test("is left alone where the project does not ask for it", async () => {
    const project = await store.addProject();
    const host = newHost();
    await addJobs(project, host, 20);
    await settle(await start(project), host, true);
    expect(await rowOf(project, host)).toBeUndefined();
  });

  test("that is down gets one probe at a time, the oldest, and the rest spends nothing", async () => {
    await inTime(PROBE_MS, async () => {
      const project = await addWatchedProject();
      const { host, jobs } = await addDownHost(project, 5);
      expect(await start(project)).toEqual([]);
      // The probe counts as parked until it is sent.
      expect(await hostsOf(project)).toMatchObject([{ parked: 5 }]);
      await pass(project, 6);
      const [probe, ...others] = await start(project);
      expect(probe?.granted.jobId).toBe(jobs[0] as string);
      expect(others).toEqual([]);
      await settle([probe as Running], host, true);
      const row = await rowOf(project, host);
      expect(row).toMatchObject({
        state: 0,
        parked: "3",
        probe: idToUuid(jobs[1] as string),
        probe_seconds: 10,
      });
      expect(await start(project)).toEqual([]);
      await pass(project, 6);
      expect(await start(project)).toEqual([]);
      await pass(project, 6);
      expect(idsOf(await start(project))).toEqual([jobs[1] as string]);
      const spent = await store.query<{ runs: number }>(
        "SELECT count(*)::int AS runs FROM runs WHERE project_no = $1 AND job_id = ANY ($2::uuid[])",
        [project, jobs.map(idToUuid)],
      );
      expect(spent).toEqual([{ runs: 1 }]);
    });
  });

  test("tells the claim of a probe that comes too soon that the probe waits for the host", async () => {
    await inTime(PROBE_MS, async () => {
      const project = await addWatchedProject();
      const { jobs } = await addDownHost(project, 1);
      const claims = jobs.map((id) => store.claimOf(project, id));
      for (let ask = 0; ask < 2; ask++) {
        const answers = await claimShortFirst(store.db, nodeId, claims);
        expect(answers).toMatchObject([{ kind: "early", putOffFor: "host" }]);
      }
    });
  });

  test("opens with the probe's success, at a rate that doubles each 10 s, in order, and is well when nothing is parked", async () => {
    const project = await addWatchedProject();
    await addEndpoint(store, project, { events: ["host.up"] });
    const { host, jobs } = await addDownHost(project, 12);
    await start(project);
    await pass(project, 6);
    await settle(await start(project), host, false);
    expect(await hostsOf(project)).toMatchObject([
      { host, state: "opening", by: "breaker", nextProbeAt: null },
    ]);
    const events = await store.query("SELECT type FROM events WHERE project_no = $1", [project]);
    expect(events).toEqual([{ type: 12 }]);
    const started: string[] = [];
    // By the host's clock, since two starts of one turn may be in two seconds of it.
    const startsPerSecond = new Map<number, number>();
    for (let second = 0; second < 30 && started.length < 11; second++) {
      const [late = ""] = second === 3 ? await addJobs(project, host, 1) : [];
      if (late !== "") jobs.push(late);
      // The host's clock goes on by a second each turn. All attempts that came due in it are started.
      const running = await start(project);
      const again = await start(project);
      const [row] = await store.query<{ since: number }>(
        "SELECT extract(epoch FROM since)::float8 * 1000 AS since FROM target_hosts WHERE project_no = $1",
        [project],
      );
      for (const { granted } of [...running, ...again]) {
        const at = Math.floor((granted.startedAt - (row?.since ?? expect.unreachable())) / 1_000);
        startsPerSecond.set(at, (startsPerSecond.get(at) ?? 0) + 1);
      }
      started.push(...idsOf([...running, ...again]));
      await settle([...running, ...again], host, false);
      await pass(project, 1);
    }
    for (const [second, count] of startsPerSecond)
      expect(count).toBeLessThanOrEqual(2 ** Math.floor(second / 10));
    expect(started).toEqual(jobs.slice(1, 1 + started.length));
    for (let second = 0; second < 10; second++) {
      await settle(await start(project), host, false);
      await pass(project, 1);
    }
    expect(await hostsOf(project)).toEqual([]);
    await addJobs(project, host, 3);
    expect((await start(project)).length).toBe(3);
  });

  test("lets nothing pass before the hundreds that wait, although its ramp has starts for more of them", async () => {
    const project = await addWatchedProject();
    const { host } = await addDownHost(project, 400);
    expect(await start(project)).toEqual([]);
    await store.query("UPDATE target_hosts SET state = 1, since = now() WHERE project_no = $1", [project]);
    await passToSecond(project, 95);
    const [young = ""] = await addJobs(project, host, 1);
    const claimYoung = () => claimShortFirst(store.db, nodeId, [store.claimOf(project, young)]);
    expect(await claimYoung()).toMatchObject([{ kind: "gone" }]);
    expect(await rowOf(project, host)).toMatchObject({ state: 1 });
  });

  test("goes on with another probe when the probe is canceled", async () => {
    const project = await addWatchedProject();
    const { host, jobs } = await addDownHost(project, 3);
    await start(project);
    await cancelJob(store.db, scopeOf(project), jobs[0] as string, keyCause());
    await emptyHostCalls(store.db);
    expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(jobs[1] as string), parked: "1" });
    await pass(project, 6);
    expect(idsOf(await start(project))).toEqual([jobs[1] as string]);
  });

  test("goes on with a probe of another region while that of the probe is held, and has one probe at a time after that", async () => {
    await inTime(PROBE_MS, async () => {
      const project = await addWatchedProject();
      const { host, jobs } = await addDownHost(project, 1);
      const [free = ""] = await addJobs(project, host, 1, { region: "eu-central" });
      const claimFree = () =>
        claimShortFirst(store.db, nodeId, [store.claimOf(project, free, { region: "eu-central" })]);
      expect(await start(project)).toEqual([]);
      expect(await claimFree()).toMatchObject([{ kind: "gone" }]);
      expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(jobs[0] as string), parked: "1" });
      await store.query("INSERT INTO held_regions (region) VALUES (0)");
      try {
        await pass(project, 12);
        expect(await start(project)).toEqual([]);
        await lookAtHosts(store.db);
        await emptyHostCalls(store.db);
        expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(free), parked: "0" });
      } finally {
        await store.query("DELETE FROM held_regions");
      }
      expect(await start(project)).toEqual([]);
      expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(free), parked: "1" });
      expect(await claimFree()).toMatchObject([{ kind: "granted" }]);
    });
  });

  test("goes on with a probe of another region while that of the probe has no delivery nodes", async () => {
    const project = await addWatchedProject();
    const { host, jobs } = await addDownHost(project, 1);
    await probeIn(project, "1 h");
    const [far = ""] = await addJobs(project, host, 1, { region: "eu-central" });
    const claimFar = () =>
      claimShortFirst(store.db, nodeId, [store.claimOf(project, far, { region: "eu-central" })]);
    expect(await start(project)).toEqual([]);
    expect(await claimFar()).toMatchObject([{ kind: "gone" }]);
    expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(jobs[0] as string), parked: "1" });
    await probeIn(project, "-10 s");
    await onlyIn("us-east", lookAtLateProbes);
    expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(jobs[0] as string), parked: "1" });
    await onlyIn("eu-central", lookAtLateProbes);
    expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(far), parked: "0" });
    // The region has nodes again. What was the probe is parked like all others.
    expect(await start(project)).toEqual([]);
    expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(far), parked: "1" });
    expect(await claimFar()).toMatchObject([{ kind: "granted" }]);
  });

  test("is probed by a retry by hand, whose run is counted already, while the month has no runs left for the probe", async () => {
    const project = await addWatchedProject();
    const { host } = await addDownHost(project, 0);
    await probeIn(project, "1 h");
    // Before the retry more jobs wait than are looked at.
    const [first = ""] = await addJobs(project, host, 12);
    expect(await start(project)).toEqual([]);
    const [failed] = await store.query<{ id: string; job_id: string }>(
      "SELECT id, job_id FROM runs WHERE project_no = $1 LIMIT 1",
      [project],
    );
    const [runId, jobId] = [failed?.id ?? "", failed?.job_id ?? ""];
    const scope = { ...scopeOf(project), sinceAt: 0 };
    await retryRun(store.db, scope, uuidToId(RUN_PREFIX, runId), store.newRunId(), keyCause());
    expect(await start(project)).toEqual([]);
    await store.query("UPDATE flows SET month_runs_max = month_runs WHERE project_no = $1", [project]);
    await probeIn(project, "-10 s");
    expect(await start(project)).toEqual([]);
    expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(first) });
    await onlyIn("us-east", lookAtLateProbes);
    expect(await rowOf(project, host)).toMatchObject({ probe: jobId });
    const probing = await start(project);
    expect(idsOf(probing)).toEqual([uuidToId(JOB_PREFIX, jobId)]);
    await settle(probing, host, false);
    expect(await hostsOf(project)).toMatchObject([{ state: "opening" }]);
  });

  test("is not probed sooner where a client retries the job of the probe", async () => {
    await inTime(PROBE_MS, async () => {
      const project = await addWatchedProject();
      await addDownHost(project, 0);
      const [failed] = await store.query<{ id: string; job_id: string }>(
        "SELECT id, job_id FROM runs WHERE project_no = $1 LIMIT 1",
        [project],
      );
      const [runId, jobId] = [failed?.id ?? "", failed?.job_id ?? ""];
      await store.query("UPDATE open_jobs SET due_at = now() WHERE project_no = $1 AND job_id = $2", [
        project,
        jobId,
      ]);
      expect(await start(project)).toEqual([]);
      const scope = { ...scopeOf(project), sinceAt: 0 };
      await retryRun(store.db, scope, uuidToId(RUN_PREFIX, runId), store.newRunId(), keyCause());
      expect(await start(project)).toEqual([]);
      await pass(project, 6);
      expect(idsOf(await start(project))).toEqual([uuidToId(JOB_PREFIX, jobId)]);
    });
  });

  test("is probed by the next that comes where the flow key of the probe is full", async () => {
    const project = await addWatchedProject();
    const flow = { key: "full", concurrency: 1 };
    await store.addJobs(project, 1, { flow });
    const holding = await start(project);
    expect(holding.length).toBe(1);
    const { host } = await addDownHost(project, 0);
    await pass(project, 6);
    // The job came due while its key was full.
    const [job = ""] = await addJobs(project, host, 1, { flow, runAt: Date.now() + 3_600_000 });
    const isDue = () =>
      store.query("UPDATE open_jobs SET due_at = now(), parked_due_at = now() WHERE job_id = $1", [
        idToUuid(job),
      ]);
    await isDue();
    expect(await start(project)).toEqual([]);
    expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(job) });
    // Its key refuses the job, which is the probe and is not sent. The next job that comes is the probe, at once.
    expect(await start(project)).toEqual([]);
    expect(await rowOf(project, host)).toMatchObject({ probe: null });
    expect(await dueIn(project)).toEqual([]);
    const [free = ""] = await addJobs(project, host, 1);
    expect(await start(project)).toEqual([]);
    expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(free), parked: "0" });
    expect(idsOf(await start(project))).toEqual([free]);
    // The job waits at its key until the key has a place.
    expect(await rowOf(project, host)).toMatchObject({ parked: "0" });
    await settle(holding, "target.example", false);
    expect(await start(project)).toEqual([]);
    expect(await rowOf(project, host)).toMatchObject({ parked: "1" });
  });

  test("spends no time of its probes on jobs whose flow key is held by one that waits behind them", async () => {
    await inTime(PROBE_MS, async () => {
      const project = await addWatchedProject();
      const { host } = await addDownHost(project, 0);
      const flow = { key: "held", concurrency: 1, hold: "job" } as const;
      const waiting = await addJobs(project, host, 6, { flow });
      // Each that is turned away lets the next of its key pass.
      for (const _ of waiting) {
        expect(await start(project)).toEqual([]);
        await emptyGateCalls(store.db);
      }
      expect(await rowOf(project, host)).toMatchObject({
        probe: idToUuid(waiting[0] as string),
        parked: "5",
      });
      // The first holds the key for as long as it is retried, and its retry stands behind the others.
      await pass(project, 6);
      const probing = await start(project);
      expect(idsOf(probing)).toEqual(waiting.slice(0, 1));
      await settleShortFirst(
        store.db,
        probing.map((each) =>
          settlementOf(each, {
            ...failedWith({ dueAt: Date.now() + 1 }),
            isPlain: false,
            met: { host, nobody: true },
          }),
        ),
      );
      await Bun.sleep(5);
      expect(await start(project)).toEqual([]);
      // Once the next probe is due, each of the others goes to the key's queue, and the first is sent. No time passes meanwhile.
      await pass(project, 11);
      const started: string[] = [];
      for (let turn = 0; turn < 7; turn++) started.push(...idsOf(await start(project)));
      expect(started).toEqual(waiting.slice(0, 1));
    });
  });

  test("is probed by a job whose flow key is free, and opens for such jobs in order and no faster than for others", async () => {
    await inTime(900, async (begin) => {
      const project = await addWatchedProject();
      const { host } = await addDownHost(project, 0);
      const jobs: string[] = [];
      for (let number = 0; number < 8; number++)
        jobs.push(...(await addJobs(project, host, 1, { flow: { key: `free-${number}`, concurrency: 1 } })));
      expect(await start(project)).toEqual([]);
      expect(await rowOf(project, host)).toMatchObject({ probe: idToUuid(jobs[0] as string), parked: "7" });
      await pass(project, 6);
      const probing = await start(project);
      expect(idsOf(probing)).toEqual([jobs[0] as string]);
      await settle(probing, host, false);
      const started: string[] = [];
      for (let second = 0; second < 8; second++) {
        begin();
        await passToSecond(project, second);
        const running = await start(project);
        expect([second, await start(project), running.length]).toEqual([second, [], second < 7 ? 1 : 0]);
        started.push(...idsOf(running));
        await settle(running, host, false);
      }
      expect(started).toEqual(jobs.slice(1));
      expect(await hostsOf(project)).toEqual([]);
    });
  });

  test("opens for a job whose flow key was full in its turn as soon as the key has a place, before those that came due later", async () => {
    const project = await addWatchedProject();
    const flow = { key: "full", concurrency: 1 };
    const { host, jobs } = await addDownHost(project, 1);
    const [keyed = ""] = await addJobs(project, host, 1, { flow });
    const others = await addJobs(project, host, 3);
    expect(await start(project)).toEqual([]);
    await store.addJobs(project, 1, { flow });
    const holding = await start(project);
    expect(holding.length).toBe(1);
    await pass(project, 6);
    const probing = await start(project);
    expect(idsOf(probing)).toEqual(jobs);
    await settle(probing, host, false);
    // The keyed job passes its host, and stands in the queue of its key.
    expect(await start(project)).toEqual([]);
    await pass(project, 1);
    expect(idsOf(await start(project))).toEqual([others[0] as string]);
    await pass(project, 1);
    await settle(holding, "target.example", false);
    expect(idsOf(await start(project))).toEqual([keyed]);
  });

  test("is not looked at while nothing waits for it", async () => {
    const project = await addWatchedProject();
    const { host } = await addDownHost(project, 0);
    await pass(project, 600);
    const calls = () => store.query("SELECT gate FROM gate_calls WHERE project_no = $1", [project]);
    await lookAtHosts(store.db);
    expect(await calls()).toEqual([]);
    await store.query("UPDATE target_hosts SET parked = 1 WHERE project_no = $1", [project]);
    await lookAtHosts(store.db);
    expect(await calls()).toEqual([{ gate: `h${host}` }]);
    await emptyHostCalls(store.db);
  });

  test("is looked at sooner or later, also where more hosts open than one look takes", async () => {
    const project = await store.addProject();
    await store.query(
      `INSERT INTO target_hosts (project_no, environment, host, state, by)
       SELECT $1, 1, 'h' || n || '.example', 1, 0 FROM generate_series(1, 1500) n`,
      [project],
    );
    let lookedAt = 0;
    for (let looks = 0; looks < 50 && lookedAt < 1_500; looks++) {
      await lookAtHosts(store.db);
      const [row] = await store.query<{ count: number }>(
        "SELECT count(DISTINCT gate)::int AS count FROM gate_calls WHERE project_no = $1",
        [project],
      );
      lookedAt = row?.count ?? 0;
    }
    expect(lookedAt).toBe(1_500);
    for (const table of ["gate_calls", "target_hosts"])
      await store.query(`DELETE FROM ${table} WHERE project_no = $1`, [project]);
  });

  test("costs settlements no more where its project has met ten thousand others", async () => {
    const project = await addWatchedProject();
    const host = newHost();
    const { db, statements } = recordStatements(store.db);
    await addJobs(project, host, 1);
    const [running] = await start(project);
    const settlement = settlementOf(running as Running, { isPlain: false, met: { host, nobody: true } });
    await settleAttempts(db, [settlement]);
    const { text, values } = statements.get("settle_whole") ?? expect.unreachable();
    const pages = async () =>
      (await explain(store, { mode: "force_generic_plan", text, values, tables: [] })).pagesRead;
    const before = await pages();
    await store.query(
      `INSERT INTO target_hosts (project_no, environment, host, failures)
       SELECT $1, 1, 'h' || n || '.example', 1 FROM generate_series(1, 10000) n`,
      [project],
    );
    await store.query("ANALYZE target_hosts");
    expect(await pages()).toBeLessThan(before + 50);
  });

  test("opens when the project does not ask for it any more", async () => {
    const project = await addWatchedProject();
    const { host } = await addDownHost(project, 3);
    await start(project);
    await updateProject(store.db, project, { parksFailingHosts: false }, keyCause());
    await emptyHostCalls(store.db);
    expect(await hostsOf(project)).toMatchObject([{ host, state: "opening" }]);
    expect((await start(project)).length).toBe(1);
  });
});

describe("by hand", () => {
  test("a host is parked without probes until it is opened, and both may be asked twice", async () => {
    await inTime(1_000, async (begin) => {
      const project = await store.addProject();
      const host = newHost();
      const scope = scopeOf(project);
      const parked = await parkHost(store.db, scope, host, keyCause(), null, 0);
      expect(parked).toMatchObject({
        kind: "parked",
        row: { host, state: "down", by: "hand", nextProbeAt: null },
      });
      const jobs = await addJobs(project, host, 3);
      const [other = ""] = await store.addJobs(project, 1);
      expect(idsOf(await start(project))).toEqual([other]);
      await lookAtHosts(store.db);
      await emptyHostCalls(store.db);
      await pass(project, 600);
      expect(await start(project)).toEqual([]);
      const again = await parkHost(store.db, scope, host, keyCause(), null, 0);
      expect(again).toMatchObject({ kind: "parked", row: { parked: 3 } });
      begin();
      const opened = await openHost(store.db, scope, host, keyCause(), null, 0);
      expect(opened).toMatchObject({ row: { host, state: "opening", by: "hand", parked: 3 } });
      await emptyHostCalls(store.db);
      const first = await start(project);
      expect(idsOf(first)).toEqual([jobs[0] as string]);
      expect(first[0]?.granted.waitedFor).toBe("host");
      expect(await start(project)).toEqual([]);
      const twice = await openHost(store.db, scope, host, keyCause(), null, 0);
      expect(twice).toMatchObject({ row: { state: "opening", parked: 1 } });
    });
  });

  test("as many are parked as an environment may have, and not one more of two that ask at once", async () => {
    const project = await store.addProject();
    await store.query(
      `INSERT INTO target_hosts (project_no, environment, host, state, by)
       SELECT $1, 1, 'h' || n || '.example', 0, 1 FROM generate_series(2, $2) n`,
      [project, HOSTS_PARKED_BY_HAND_MAX],
    );
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("SELECT FROM projects WHERE no = $1 FOR UPDATE", [project]);
    const asked = [newHost(), newHost()].map((host) =>
      parkHost(store.db, scopeOf(project), host, keyCause(), null, 0),
    );
    await store.untilBlocked(2);
    await session.query("COMMIT");
    const kinds = (await Promise.all(asked)).map(({ kind }) => kind);
    expect(kinds.sort()).toEqual(["parked", "too_many"]);
  });

  test("a host is parked without holding up the project's claims while it waits for the project's row", async () => {
    const project = await store.addProject();
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("SELECT FROM projects WHERE no = $1 FOR UPDATE", [project]);
    const parking = parkHost(store.db, scopeOf(project), newHost(), keyCause(), null, 0);
    await store.untilBlocked();
    // A creation of an endpoint locks the project, and then the flow.
    await session.query("SELECT FROM flows WHERE project_no = $1 FOR UPDATE NOWAIT", [project]);
    await session.query("COMMIT");
    expect(await parking).toMatchObject({ kind: "parked" });
  });

  test("what is canceled while it is parked is not counted any more, and a ramp with nothing left is over", async () => {
    const project = await store.addProject();
    const host = newHost();
    const scope = scopeOf(project);
    await parkHost(store.db, scope, host, keyCause(), null, 0);
    const jobs = await addJobs(project, host, 2);
    await start(project);
    for (const id of jobs) await cancelJob(store.db, scope, id, keyCause());
    await emptyHostCalls(store.db);
    expect(await hostsOf(project)).toMatchObject([{ parked: 0, state: "down" }]);
    await openHost(store.db, scope, host, keyCause(), null, 0);
    await emptyHostCalls(store.db);
    expect(await hostsOf(project)).toEqual([]);
  });

  test("a job with a flow key waits at its host, lets others of its key pass, and takes its place in the key's order again", async () => {
    const project = await store.addProject();
    const host = newHost();
    const scope = scopeOf(project);
    await parkHost(store.db, scope, host, keyCause(), null, 0);
    const flow = { key: "one-at-a-time", concurrency: 1 };
    const [away = ""] = await addJobs(project, host, 1, { flow });
    expect(await start(project)).toEqual([]);
    const [near = ""] = await store.addJobs(project, 1, { flow });
    const running = await start(project);
    expect(idsOf(running)).toEqual([near]);
    await openHost(store.db, scope, host, keyCause(), null, 0);
    await emptyHostCalls(store.db);
    expect(await start(project)).toEqual([]);
    await settle(running, "target.example", false);
    await store.query("UPDATE open_jobs SET due_at = now() WHERE job_id = $1 AND due_at IS NOT NULL", [
      idToUuid(away),
    ]);
    expect(idsOf(await start(project))).toEqual([away]);
  });
});
