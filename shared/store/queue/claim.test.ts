import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import type { Flow } from "../../domain/flow-key.ts";
import { declareNodeDead } from "../cell/nodes.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import {
  failedWith,
  kindsOf,
  orRefused,
  settlementOf,
  startStore,
  type TestStore,
  WAYS,
  type Way,
} from "../test-support.ts";
import { type Claim, type Claimed, NodeDeclaredDead } from "./claim.ts";
import type { Settlement } from "./settle.ts";

let store: TestStore;
let way: Way;
let nodeId: number;
beforeAll(async () => {
  store = await startStore({ connections: 12 });
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const claimAll = (claims: Claim[], node = nodeId) => way.claim(store.db, node, claims);

/** The flow of jobs: without a key, and with one that lets several of them start. */
const KEYS: [string, Flow | null][] = [
  ["of a job without a flow key", null],
  ["of a job with a flow key", { key: "twice", concurrency: 5 }],
];

describe.each(WAYS)("a claim, %s", (_name, theirs) => {
  beforeAll(() => {
    way = theirs;
  });

  test("that is granted comes with all that sending takes, and is on record", async () => {
    const project = await store.addProject();
    const runAt = Math.floor(Date.now()) - 5_000;
    const wish = { payload: `{"n":9007199254740993,"z":"\\u0000"}`, runAt, maxAttempts: 3 };
    const [jobId = ""] = await store.addJobs(project, 1, wish);
    const askedAt = Date.now();
    const { claim, granted } = await store.start(nodeId, project, jobId);
    expect(granted.startedAt).toBeWithin(askedAt - 1_000, Date.now() + 1_000);
    expect(granted).toMatchObject({
      jobId,
      runId: claim.runId,
      attemptsAllowed: 3,
      scheduledAt: runAt,
      targetUrl: "https://target.example/hook",
      payload: wish.payload,
      scheduleId: null,
      maxAttempts: 3,
    });
    expect(await store.flow(project)).toMatchObject({
      production_jobs: 1,
      development_jobs: 0,
      month_runs: 1,
    });
    expect(
      await store.query("SELECT runs::int, region FROM usage_days WHERE project_no = $1", [project]),
    ).toEqual([{ runs: 1, region: 0 }]);
  });

  test("before its time is answered with what is left, and takes nothing", async () => {
    const project = await store.addProject();
    const [jobId = ""] = await store.addJobs(project, 1, { runAt: Date.now() + 60_000 });
    const [answer] = await claimAll([store.claimOf(project, jobId)]);
    expect(answer?.kind).toBe("early");
    const waitMs = answer?.kind === "early" ? answer.waitMs : 0;
    expect(waitMs).toBeGreaterThan(50_000);
    expect(waitMs).toBeLessThanOrEqual(60_000);
    expect(await store.flow(project)).toMatchObject({ production_jobs: 0, month_runs: 0 });
  });

  test("of what is not owed is gone: other attempt, other scope, other project, taken by another node, never there", async () => {
    const project = await store.addProject();
    const stranger = await store.addProject();
    const [owed = "", taken = ""] = await store.addJobs(project, 2);
    await store.start(await store.addNode(), project, taken);
    const answers = await claimAll([
      store.claimOf(project, owed, { attempt: 2 }),
      store.claimOf(project, taken),
      store.claimOf(project, store.newJob(project).id),
    ]);
    const elsewhere = [
      store.claimOf(project, owed, { environment: "development" }),
      store.claimOf(project, owed, { region: "us-west" }),
      store.claimOf(stranger, owed),
    ];
    for (const claim of elsewhere) answers.push(...(await claimAll([claim])));
    expect(kindsOf(answers)).toEqual(Array(6).fill("gone"));
    expect(await store.flow(project)).toMatchObject({ production_jobs: 1, month_runs: 1 });
    expect(await store.flow(stranger)).toMatchObject({ production_jobs: 0, month_runs: 0 });
  });

  test("is answered in the order of the claims, whatever they come to", async () => {
    const [small, large] = [await store.addProject({ concurrency: 1 }), await store.addProject()];
    const due = await store.addJobs(small, 2);
    const other = await store.addJobs(large, 2);
    const [later = ""] = await store.addJobs(large, 1, { runAt: Date.now() + 60_000 });
    const answers = await claimAll([
      store.claimOf(large, other[1] ?? ""),
      store.claimOf(small, due[1] ?? ""),
      store.claimOf(large, later),
      store.claimOf(small, due[0] ?? ""),
      store.claimOf(large, store.newJob(large).id),
      store.claimOf(large, other[0] ?? ""),
    ]);
    expect(kindsOf(answers)).toEqual(["granted", "granted", "early", "no_permit", "gone", "granted"]);
    expect(answers[0]).toMatchObject({ attempt: { jobId: other[1] } });
    expect(answers[5]).toMatchObject({ attempt: { jobId: other[0] } });
  });

  test.each(KEYS)(
    "%s, that is sent again after an unknown outcome is granted once more and counted once",
    async (_, flow) => {
      const project = await store.addProject({ concurrency: 2 });
      const jobs = await store.addJobs(project, 2, { flow });
      const claims = jobs.map((jobId) => store.claimOf(project, jobId));
      const first = await claimAll(claims);
      const again = await claimAll(claims.map((claim) => ({ ...claim, runId: store.newRunId() })));
      expect(kindsOf(again)).toEqual(["granted", "granted"]);
      expect(again.map(runIdOf)).toEqual(first.map(runIdOf));
      expect(again.map(startedAtOf)).toEqual(first.map(startedAtOf));
      expect(await store.query("SELECT in_use FROM flow_keys WHERE project_no = $1", [project])).toEqual(
        flow === null ? [] : [{ in_use: 2 }],
      );
      expect(await store.flow(project)).toMatchObject({ production_jobs: 2, month_runs: 2 });
      expect(await store.query("SELECT runs::int FROM usage_days WHERE project_no = $1", [project])).toEqual([
        { runs: 2 },
      ]);
    },
  );

  test.each(KEYS)(
    "%s, of a retry that is sent again after an unknown outcome names the due time that the first answer named",
    async (_, flow) => {
      const project = await store.addProject();
      const [automatic = "", manual = ""] = await store.addJobs(project, 2, { flow });
      // The automatic attempt is due when the plan says, the manual one when it was requested.
      const first = await store.start(nodeId, project, automatic);
      const dueAt = Math.floor(Date.now()) - 5_000;
      const [plan] = (await way.settle(store.db, [settlementOf(first, failedWith({ dueAt }))])).items;
      const failed = await store.start(nodeId, project, manual);
      await way.settle(store.db, [settlementOf(failed, failedWith("over"))]);
      const scope = { projectNo: project, environment: "production", sinceAt: 0 } as const;
      const retried = await retryRun(store.db, scope, failed.granted.runId, store.newRunId(), keyCause());
      const requestedAt = retried.kind === "retried" ? retried.run.startedAt : 0;

      const claims = [automatic, manual].map((jobId) => store.claimOf(project, jobId, { attempt: 2 }));
      const answers = [await claimAll(claims), await claimAll(claims)];
      for (const answer of answers)
        expect(answer.map(scheduledAtOf)).toEqual([plan?.nextRetryAt ?? null, requestedAt]);
      expect(answers[1]?.map(toldBy)).toEqual(answers[0]?.map(toldBy) ?? []);
    },
  );

  test("of a held project is blocked for a moment; a release lets it through", async () => {
    const project = await store.addProject();
    const [jobId = ""] = await store.addJobs(project, 1);
    await store.query("UPDATE flows SET held = true WHERE project_no = $1", [project]);
    const askedAt = Date.now();
    const [answer] = await claimAll([store.claimOf(project, jobId)]);
    expect(answer?.kind).toBe("blocked");
    if (answer?.kind === "blocked") {
      expect(answer.untilAt).toBeGreaterThan(askedAt);
      expect(answer.untilAt).toBeLessThan(Date.now() + 5_000);
    }
    await store.query("UPDATE flows SET held = false WHERE project_no = $1", [project]);
    await store.start(nodeId, project, jobId);
  });
});

describe.each(WAYS)("the month's quota, %s", (_name, theirs) => {
  beforeAll(() => {
    way = theirs;
  });

  test("is exact over concurrent claims: the run beyond it does not start, and what waits is told until when", async () => {
    const project = await store.addProject({ plan: "hobby", concurrency: 1_000 });
    await store.query("UPDATE flows SET month_runs_max = 100 WHERE project_no = $1", [project]);
    const jobs = await store.addJobs(project, 150);
    const batches = Array.from({ length: 15 }, (_, n) => jobs.slice(10 * n, 10 * n + 10));
    const answers = await Promise.all(
      batches.map((ids) => claimAll(ids.map((id) => store.claimOf(project, id)))),
    );
    const kinds = kindsOf(answers.flat());
    expect(kinds.filter((kind) => kind === "granted")).toHaveLength(100);
    expect(kinds.filter((kind) => kind === "blocked")).toHaveLength(50);
    const blocked = answers.flat().find((answer) => answer.kind === "blocked");
    const now = new Date();
    const rollover = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1);
    expect(blocked).toEqual({ kind: "blocked", untilAt: rollover });
    expect(await store.flow(project)).toMatchObject({ month_runs: 100, production_jobs: 100 });
  });

  test("begins anew with the UTC month", async () => {
    const project = await store.addProject({ plan: "hobby" });
    await store.query(
      `UPDATE flows SET month_runs_max = 2, month_runs = 2, month = (date_trunc('month', now()) - interval '1 month')::date
        WHERE project_no = $1`,
      [project],
    );
    const jobs = await store.addJobs(project, 3);
    const answers = await claimAll(jobs.map((id) => store.claimOf(project, id)));
    expect(kindsOf(answers)).toEqual(["granted", "granted", "blocked"]);
    expect(
      await store.query(
        "SELECT month_runs::int, month = date_trunc('month', now())::date AS current FROM flows WHERE project_no = $1",
        [project],
      ),
    ).toEqual([{ month_runs: 2, current: true }]);
  });

  test("is not named as the reason while permits are what is missing", async () => {
    const project = await store.addProject({ plan: "hobby", concurrency: 2 });
    await store.query("UPDATE flows SET month_runs_max = 3 WHERE project_no = $1", [project]);
    const jobs = await store.addJobs(project, 5);
    const answers = await claimAll(jobs.map((id) => store.claimOf(project, id)));
    expect(kindsOf(answers)).toEqual(["granted", "granted", "no_permit", "no_permit", "no_permit"]);
  });

  test("does not stop a manual retry that was counted when it was asked for, nor do blocked mates take its permit", async () => {
    const project = await store.addProject({ plan: "hobby", concurrency: 1 });
    const [failed = "", ...waiting] = await store.addJobs(project, 4, { maxAttempts: 1 });
    const attempt = await store.start(nodeId, project, failed);
    await way.settle(store.db, [settlementOf(attempt, failedWith("over"))]);
    const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
    const retried = await retryRun(store.db, scope, attempt.granted.runId, store.newRunId(), keyCause());
    expect(retried.kind).toBe("retried");
    await store.query("UPDATE flows SET month_runs_max = month_runs WHERE project_no = $1", [project]);
    const claims = [
      ...waiting.map((id) => store.claimOf(project, id)),
      store.claimOf(project, failed, { attempt: 2 }),
    ];
    expect(kindsOf(await claimAll(claims))).toEqual(["blocked", "blocked", "blocked", "granted"]);
    expect(await store.flow(project)).toMatchObject({ month_runs: 2, production_jobs: 1 });
  });
});

describe.each(WAYS)("a refusal for want of a permit, %s", (_name, theirs) => {
  beforeAll(() => {
    way = theirs;
  });

  test("is noted, and the settlement that frees one tells each waiting shard how many ever came back", async () => {
    const project = await store.addProject({ concurrency: 1 });
    const [running = "", east = ""] = await store.addJobs(project, 2, { shard: 3 });
    const [west = ""] = await store.addJobs(project, 1, { shard: 5, region: "us-west" });
    await store.addJobs(project, 1, { shard: 6, region: "eu-central" });
    const attempt = await store.start(nodeId, project, running);
    const refusals = await claimAll([
      store.claimOf(project, east),
      store.claimOf(project, west, { region: "us-west" }),
    ]);
    expect(refusals).toEqual([
      { kind: "no_permit", returned: 0 },
      { kind: "no_permit", returned: 0 },
    ]);
    expect(await store.flow(project)).toMatchObject({ waiting: 0b11_0000 });

    const { freed } = await way.settle(store.db, [settlementOf(attempt)]);
    expect(freed.sort((one, other) => one.shard - other.shard)).toEqual([
      { projectNo: project, region: "us-east", shard: 3, returned: 1 },
      { projectNo: project, region: "us-west", shard: 5, returned: 1 },
    ]);
    expect(await store.flow(project)).toMatchObject({ waiting: 0, returned: 1, production_jobs: 0 });

    const second = await store.start(nodeId, project, east);
    expect((await way.settle(store.db, [settlementOf(second)])).freed).toEqual([]);
  });
});

describe.each(WAYS)("a dead node, %s", (_name, theirs) => {
  beforeAll(() => {
    way = theirs;
  });

  test("claims nothing", async () => {
    const project = await store.addProject();
    const [jobId = ""] = await store.addJobs(project, 1);
    const dead = await store.addNode();
    await declareNodeDead(store.db, dead);
    await expect(claimAll([store.claimOf(project, jobId)], dead)).rejects.toBeInstanceOf(NodeDeclaredDead);
    await expect(claimAll([store.claimOf(project, jobId)], 2 ** 30)).rejects.toBeInstanceOf(NodeDeclaredDead);
    expect(await store.flow(project)).toMatchObject({ production_jobs: 0, month_runs: 0 });
  });

  test("is declared dead only after its claim that is under way, and what that took is there to be seen", async () => {
    const project = await store.addProject();
    const [jobId = ""] = await store.addJobs(project, 1);
    const dying = await store.addNode();
    const holder = await store.session();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM flows WHERE project_no = $1 FOR UPDATE", [project]);
    const claiming = claimAll([store.claimOf(project, jobId)], dying);
    await store.untilBlocked();
    let isDeclared = false;
    const declaring = declareNodeDead(store.db, dying).then((answer) => {
      isDeclared = true;
      return answer;
    });
    await store.untilBlocked(2);
    expect(isDeclared).toBe(false);
    await holder.query("COMMIT");
    expect(kindsOf(await claiming)).toEqual(["granted"]);
    expect(await declaring).toBe(true);
    expect(await store.onWire(project)).toBe(1);
  });

  test("lets a claim that came while it was being declared dead take nothing", async () => {
    const project = await store.addProject();
    const [jobId = ""] = await store.addJobs(project, 1);
    const dying = await store.addNode();
    const declaring = await store.session();
    await declaring.query("BEGIN");
    await declaring.query("UPDATE nodes SET dead = true WHERE id = $1", [dying]);
    const claiming = claimAll([store.claimOf(project, jobId)], dying);
    const outcome = claiming.then(
      () => null,
      (error: unknown) => error,
    );
    await store.untilBlocked();
    await declaring.query("COMMIT");
    expect(await outcome).toBeInstanceOf(NodeDeclaredDead);
    expect(await store.onWire(project)).toBe(0);
  });

  test("does not make the heartbeats of the living wait for claims", async () => {
    const beating = await store.addNode();
    const claiming = await store.session();
    await claiming.query("BEGIN");
    await claiming.query("SELECT FROM nodes WHERE id = $1 AND NOT dead FOR KEY SHARE", [beating]);
    await store.db.run(
      "beat_node",
      "UPDATE nodes SET seen_at = now() WHERE id = $1 AND NOT dead RETURNING id",
      [beating],
    );
    await claiming.query("ROLLBACK");
  });
});

describe.each(WAYS)(
  "limits under concurrent claims, settlements, cancels and manual retries, %s",
  (_name, theirs) => {
    beforeAll(() => {
      way = theirs;
    });

    const ROUNDS = 30;
    const LOOPS = 6;
    const LIMITS = [1, 3, 10];

    test("hold at every look, count what is there, and nothing is sent twice", async () => {
      const projects = await Promise.all(LIMITS.map((concurrency) => store.addProject({ concurrency })));
      const jobs = await Promise.all(
        projects.map((projectNo) => store.addJobs(projectNo, 60, { maxAttempts: 3 })),
      );
      const known = projects.flatMap((projectNo, index) =>
        (jobs[index] ?? []).map((jobId) => ({ projectNo, jobId })),
      );
      const attempts = new Map<string, number>(known.map(({ jobId }) => [jobId, 1]));
      const sent = new Set<string>();
      const failedRuns: { projectNo: number; runId: string; jobId: string }[] = [];
      let isOver = false;
      let lookCount = 0;

      const loop = async () => {
        const node = await store.addNode();
        const wire: Settlement[] = [];
        for (let round = 0; round < ROUNDS; round++) {
          const onWire = new Set(wire.map(({ jobId }) => jobId));
          const wanted = sample(known, 12).filter(({ jobId }) => !onWire.has(jobId));
          const claims = wanted.map(({ projectNo, jobId }) =>
            store.claimOf(projectNo, jobId, { attempt: attempts.get(jobId) ?? 1 }),
          );
          const answers = await claimAll(claims, node);
          for (const [index, answer] of answers.entries()) {
            const claim = claims[index];
            if (answer.kind !== "granted" || claim === undefined) continue;
            const name = `${claim.jobId} ${claim.attempt}`;
            expect(sent.has(name)).toBe(false);
            sent.add(name);
            const wish =
              Math.random() < 0.5
                ? {}
                : failedWith(claim.attempt < answer.attempt.attemptsAllowed ? { dueAt: Date.now() } : "over");
            wire.push(settlementOf({ claim, granted: answer.attempt }, wish));
          }
          const ending = wire.splice(0, Math.ceil(wire.length * Math.random()));
          const settled = await way.settle(store.db, ending);
          for (const [index, item] of settled.items.entries()) {
            const ended = ending[index];
            expect(item).not.toBeNull();
            if (item === null || ended === undefined) continue;
            if (item.status === "queued") attempts.set(item.jobId, item.attempt + 1);
            if (ended.status === "failed")
              failedRuns.push({ projectNo: ended.projectNo, runId: ended.runId, jobId: ended.jobId });
          }
          if (round % 5 === 0) {
            const [victim] = sample(known, 1);
            if (victim !== undefined) {
              const scope = { projectNo: victim.projectNo, environment: "production" as const };
              await orRefused(cancelJob(store.db, scope, victim.jobId, keyCause()));
            }
          }
          const [failed] = sample(failedRuns, 1);
          if (failed !== undefined) {
            const scope = { projectNo: failed.projectNo, environment: "production" as const, sinceAt: 0 };
            const retried = await orRefused(
              retryRun(store.db, scope, failed.runId, store.newRunId(), keyCause()),
            );
            if (retried.kind === "retried") attempts.set(failed.jobId, retried.run.attempt);
          }
        }
        await way.settle(store.db, wire);
      };
      const look = async () => {
        while (!isOver) {
          const rows = await store.query<{ limit: number; in_use: number; on_wire: number }>(
            `SELECT f.concurrency AS limit, f.production_jobs AS in_use,
                  (SELECT count(*)::int FROM open_jobs o WHERE o.project_no = f.project_no AND o.node_id IS NOT NULL) AS on_wire
             FROM flows f WHERE f.project_no = ANY ($1)`,
            [projects],
          );
          for (const row of rows) {
            expect(row.in_use).toBe(row.on_wire);
            expect(row.in_use).toBeLessThanOrEqual(row.limit);
          }
          lookCount++;
        }
      };
      const looking = look();
      await Promise.all(Array.from({ length: LOOPS }, loop)).finally(() => {
        isOver = true;
      });
      await looking;
      expect(lookCount).toBeGreaterThan(20);
      expect(sent.size).toBeGreaterThan(100);

      for (const projectNo of projects) {
        const flow = await store.flow(projectNo);
        expect(flow.production_jobs).toBe(0);
        const [counts] = await store.query<{ runs: number; twice: number; astray: number }>(
          `SELECT (SELECT count(*)::int FROM runs WHERE project_no = $1)
              + (SELECT count(*)::int FROM open_jobs WHERE project_no = $1 AND run_id IS NOT NULL) AS runs,
                (SELECT count(*)::int FROM open_jobs o JOIN ended_jobs e USING (project_no, environment, region, job_id)
                  WHERE o.project_no = $1) AS twice,
                (SELECT count(*)::int FROM jobs j WHERE j.project_no = $1
                    AND NOT EXISTS (SELECT FROM open_jobs o WHERE o.project_no = $1 AND o.environment = j.environment AND o.region = j.region AND o.job_id = j.id)
                    AND NOT EXISTS (SELECT FROM ended_jobs e WHERE e.project_no = $1 AND e.environment = j.environment AND e.region = j.region AND e.job_id = j.id)) AS astray`,
          [projectNo],
        );
        // Every run that was ever counted is recorded, and a job is either open or over.
        expect(counts).toEqual({ runs: flow.month_runs, twice: 0, astray: 0 });
      }
    });
  },
);

const runIdOf = (answer: Claimed) => (answer.kind === "granted" ? answer.attempt.runId : null);
const startedAtOf = (answer: Claimed) => (answer.kind === "granted" ? answer.attempt.startedAt : null);

/** Up to `countMax` of the members, in a random order. */
function sample<T>(members: readonly T[], countMax: number): T[] {
  const rest = [...members];
  const taken: T[] = [];
  while (taken.length < countMax && rest.length > 0) {
    taken.push(...rest.splice(Math.floor(Math.random() * rest.length), 1));
  }
  return taken;
}
const scheduledAtOf = (answer: Claimed) => (answer.kind === "granted" ? answer.attempt.scheduledAt : null);

/** The answer without the places of its key, of which only a short way tells. */
function toldBy(answer: Claimed): Claimed {
  if (answer.kind !== "granted") return answer;
  const { key, ...attempt } = answer.attempt;
  return { ...answer, attempt };
}
