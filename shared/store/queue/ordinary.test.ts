import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import fc from "fast-check";
import { idToUuid } from "../../domain/ids.ts";
import { ENVIRONMENTS, type ProjectNo, REGIONS } from "../../domain/scope.ts";
import { regionCode } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import {
  claimShortFirst,
  comesToWait,
  failedWith,
  settlementOf,
  settleShortFirst,
  startStore,
  type TestStore,
} from "../test-support.ts";
import { type Claim, type Claimed, claimAttempts } from "./claim.ts";
import { claimOrdinary } from "./claim-ordinary.ts";
import { type Settled, settleAttempts } from "./settle.ts";
import { type LastSettlement, settleOrdinary } from "./settle-ordinary.ts";

setDefaultTimeout(600_000);

let store: TestStore;
let nodeId: number;
let otherNodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
  otherNodeId = await store.addNode();
});
afterAll(() => store.stop());

/** The states that a job may be in when it is claimed, as assignments to its row. */
const STATES = {
  due: "due_at = now() - interval '3 s'",
  retry: "due_at = now() - interval '2 s', attempt = 2",
  released: "due_at = now() - interval '1 s', parked_due_at = now() - interval '9 s'",
  early: "due_at = now() + interval '1 day'",
  parked: "due_at = NULL, parked_host = 'h.example', parked_due_at = now()",
  "of another attempt": "due_at = now() - interval '3 s', attempt = 3",
  "asked for by hand": "due_at = now() - interval '3 s', run_id = gen_random_uuid()",
  ours: "due_at = NULL, run_id = gen_random_uuid(), node_id = $ours, started_at = now()",
  "of another node": "due_at = NULL, run_id = gen_random_uuid(), node_id = $other, started_at = now()",
  gone: null,
} as const;
type State = keyof typeof STATES;
const ORDINARY: State[] = ["due", "retry", "released"];

const arbitraryJob = fc.record({
  environment: fc.constantFrom(...ENVIRONMENTS),
  region: fc.constantFrom(...REGIONS.slice(0, 2)),
  state: fc.oneof(
    { weight: 4, arbitrary: fc.constantFrom(...ORDINARY) },
    { weight: 1, arbitrary: fc.constantFrom(...(Object.keys(STATES) as State[])) },
  ),
  end: fc.constantFrom("succeeded", "failed", "retried"),
  isCanceled: fc.boolean().filter((yes) => yes),
});
/** A call that is dated so much later stands for one that was made just now, however slow the test is until then. */
const CALL_HOLDS_MS = 4_000;
const CALLS = [
  "'-infinity'",
  "now() - interval '9 s'",
  `now() + interval '${CALL_HOLDS_MS} ms'`,
  "now() + interval '9 s'",
];
const rarely = <T>(usual: T, rare: fc.Arbitrary<T>) =>
  fc.oneof({ weight: 4, arbitrary: fc.constant(usual) }, { weight: 1, arbitrary: rare });
const arbitraryFlow = fc.record({
  concurrency: rarely(100, fc.integer({ min: 1, max: 8 })),
  in_use: fc.tuple(fc.nat(3), fc.nat(3), fc.nat(3), fc.nat(3)),
  calls: fc.tuple(
    ...Array.from({ length: 4 }, () =>
      rarely(0, fc.nat(CALLS.length - 1)).map((call) => CALLS[call] as string),
    ),
  ),
  lastClass: fc.nat(3),
  waiting: rarely(0, fc.integer({ min: 1, max: 0xffff })),
  held: rarely(false, fc.constant(true)),
  left: rarely<number | null>(null, fc.integer({ min: -1, max: 6 })),
  isMonthOver: rarely(false, fc.constant(true)),
  subscriptions: rarely(0, fc.integer({ min: 1, max: 15 })),
});
type Flow = typeof arbitraryFlow extends fc.Arbitrary<infer T> ? T : never;
type Job = Omit<typeof arbitraryJob extends fc.Arbitrary<infer T> ? T : never, "isCanceled"> & {
  isCanceled: boolean;
};

/** A project in this state, with such jobs. Answers the claims of them. */
async function makeProject(
  flow: Flow,
  jobs: readonly Job[],
): Promise<{ project: ProjectNo; claims: Claim[] }> {
  const project = await store.addProject();
  const claims: Claim[] = [];
  for (const { environment, region, state } of jobs) {
    const [jobId = ""] = await store.addJobs(project, 1, { environment, region, runAt: 1_700_000_000_000 });
    const assignments = STATES[state]
      ?.replace("$ours", String(nodeId))
      .replace("$other", String(otherNodeId));
    await store.query(
      assignments === undefined
        ? "DELETE FROM open_jobs WHERE job_id = $1"
        : `UPDATE open_jobs SET ${assignments} WHERE job_id = $1`,
      [idToUuid(jobId)],
    );
    claims.push(store.claimOf(project, jobId, { environment, region, attempt: state === "retry" ? 2 : 1 }));
  }
  await store.query(
    `UPDATE flows SET concurrency = $2, development_jobs = $3, production_jobs = $4, development_webhooks = $5,
            production_webhooks = $6, called_at = ARRAY[${flow.calls.join(", ")}]::timestamptz[], last_class = $7,
            waiting = $8, held = $9, month_runs = 5, month_runs_max = 5 + $10::int, subscriptions = $11,
            month = (month - CASE WHEN $12 THEN interval '1 month' ELSE interval '0' END)::date
      WHERE project_no = $1`,
    [
      project,
      flow.concurrency,
      ...flow.in_use,
      flow.lastClass,
      flow.waiting,
      flow.held,
      flow.left,
      flow.subscriptions,
      flow.isMonthOver,
    ],
  );
  return { project, claims };
}

const NEXT_DUE_AT = 4_000_000_000_000;
/** Waits count from each statement's own instant. */
const isAsAsked = (at: number | null) => at !== null && Math.abs(at - NEXT_DUE_AT) < 60_000;

/** All rows of the project that claims and settlements write, in the order of the jobs. Instants of the statements are left out. */
async function rowsOf(project: ProjectNo, jobs: readonly Claim[], isLastClassOpen: boolean) {
  const isRecent = (column: string) => `${column} > now() - interval '5 min'`;
  const uuids = jobs.map(({ jobId }) => idToUuid(jobId));
  const list = (text: string) => store.query(text, [project, uuids]);
  return {
    flow: await store.query(
      // A run that was asked for by hand is granted by the long way, behind the others, so the last class may be another.
      `SELECT to_jsonb(f) - '{project_no,called_at}'::text[] - CASE WHEN $2 THEN 'last_class' ELSE '' END AS flow,
              ARRAY (SELECT CASE WHEN c = '-infinity' THEN 'never' ELSE date_trunc('minute', c - now())::text END
                       FROM unnest(called_at) WITH ORDINALITY u (c, n) ORDER BY n) AS called
         FROM flows f WHERE project_no = $1`,
      [project, isLastClassOpen],
    ),
    open: await list(
      `SELECT array_position($2::uuid[], job_id) AS job, environment, region, attempt, attempts_allowed, canceled,
              due_at IS NOT NULL AS is_owed, parked_host, ${isRecent("parked_due_at")} AS parked, run_id IS NULL AS is_uncounted,
              node_id, ${isRecent("started_at")} AS started
         FROM open_jobs WHERE project_no = $1 ORDER BY 1`,
    ),
    ended: await list(
      `SELECT array_position($2::uuid[], job_id) AS job, environment, region, status, attempts
         FROM ended_jobs WHERE project_no = $1 ORDER BY 1`,
    ),
    runs: await list(
      `SELECT array_position($2::uuid[], job_id) AS job, environment, retention_class, attempt, status, response_status, error,
              duration_ms, abs(extract(epoch FROM next_retry_at) * 1000 - ${NEXT_DUE_AT}) < 60000 AS is_as_asked, ${isRecent("started_at")} AS started, late_ms, held_for
         FROM runs WHERE project_no = $1 ORDER BY 1`,
    ),
    usage: await store.query("SELECT region, runs::int FROM usage_days WHERE project_no = $1 ORDER BY 1, 2", [
      project,
    ]),
  };
}

/** An answer without the parts that are new in each project: ids and instants of the statement. */
const toldBy = (answers: readonly Claimed[]) =>
  answers.map((answer) => {
    if (answer.kind === "early") return answer.kind;
    if (answer.kind === "blocked") return answer.kind;
    if (answer.kind !== "granted") return answer;
    const { jobId, runId, startedAt, scheduledAt, ...rest } = answer.attempt;
    return { ...rest, isByPlan: scheduledAt === 1_700_000_000_000, isLater: startedAt >= scheduledAt };
  });

test("whatever is asked of a project in whatever state, the short way first and the long way alone answer the same and leave the same rows", async () => {
  const taken = { short: 0, granted: 0, settledShort: 0 };
  const counting = (db: Database, name: "short" | "settledShort", statement: string): Database => ({
    ...db,
    run: async <Row>(named: string, text: string, values: unknown[]) => {
      const rows = await db.run<Row>(named, text, values);
      if (named.startsWith(statement)) taken[name] += rows.length;
      return rows;
    },
  });
  await fc.assert(
    fc.asyncProperty(
      arbitraryFlow,
      fc.array(arbitraryJob, { minLength: 1, maxLength: 6 }),
      fc.infiniteStream(fc.boolean()),
      async (flow, drawn, cancels) => {
        const jobs: Job[] = drawn.map((job) => ({ ...job, isCanceled: cancels.next().value === true }));
        const begunAt = performance.now();
        const [long, short] = [await makeProject(flow, jobs), await makeProject(flow, jobs)];
        const answers = {
          long: await claimAttempts(store.db, nodeId, long.claims),
          short: await claimShortFirst(counting(store.db, "short", "claim_ordinary"), nodeId, short.claims),
        };
        fc.pre(performance.now() - begunAt < CALL_HOLDS_MS);
        expect(toldBy(answers.short)).toEqual(toldBy(answers.long));
        const isLastClassOpen = jobs.some(({ state }) => state === "asked for by hand");
        const expectSameRows = async () =>
          expect(await rowsOf(short.project, short.claims, isLastClassOpen)).toEqual(
            await rowsOf(long.project, long.claims, isLastClassOpen),
          );
        await expectSameRows();

        const settled: Settled[] = [];
        for (const [side, answered] of [
          [long, answers.long],
          [short, answers.short],
        ] as const) {
          const settlements = [];
          for (const [index, answer] of answered.entries()) {
            const [claim, job] = [side.claims[index], jobs[index]];
            if (answer.kind !== "granted" || claim === undefined || job === undefined) continue;
            if (job.isCanceled)
              await store.query("UPDATE open_jobs SET canceled = true WHERE job_id = $1", [
                idToUuid(claim.jobId),
              ]);
            const wish =
              job.end === "succeeded"
                ? {}
                : failedWith(job.end === "failed" ? "over" : { dueAt: NEXT_DUE_AT });
            settlements.push(
              settlementOf(
                { claim, granted: answer.attempt },
                { ...wish, lateMs: 2_000, waitedFor: "quota" },
              ),
            );
          }
          taken.granted += settlements.length;
          if (settlements.length === 0) continue;
          const settle = side === long ? settleAttempts : settleShortFirst;
          settled.push(await settle(counting(store.db, "settledShort", "settle_ordinary"), settlements));
          // The settlement is repeated, as after an answer that was lost.
          const again = await settle(store.db, settlements);
          expect(again.items.every((item) => item === null)).toBe(true);
        }
        const told = settled.map(({ items, freed, owed }) => ({
          items: items.map(
            (item) => item && { ...item, jobId: "", nextRetryAt: isAsAsked(item.nextRetryAt) },
          ),
          freed: freed.map((calls) => ({ ...calls, projectNo: 0 })),
          owed: owed.map((item) => ({ ...item, projectNo: 0, id: "", dueAt: isAsAsked(item.dueAt) })),
        }));
        if (told.length > 0) expect(told[1]).toEqual(told[0] as (typeof told)[number]);
        await expectSameRows();
      },
    ),
    { numRuns: 75 },
  );
  // Both ways were taken.
  expect(taken.short).toBeGreaterThan(taken.granted / 8);
  expect(taken.short).toBeLessThan(taken.granted / 2);
  expect(taken.settledShort).toBeGreaterThan(0);
});

describe("a job that is changed while the short way waits for it", () => {
  /** Runs `act` while another session holds the job's row with `change`, and commits that once `act` waits. */
  async function meanwhile<T>(jobId: string, change: string, act: () => Promise<T>): Promise<T> {
    const session = await store.session();
    await session.query("BEGIN");
    await session.query(`${change} WHERE job_id = $1`, [idToUuid(jobId)]);
    const acting = act();
    expect(await comesToWait(store, acting)).toBe(true);
    await session.query("COMMIT");
    return acting;
  }

  for (const [change, isTaken] of [
    ["DELETE FROM open_jobs", false],
    ["UPDATE open_jobs SET due_at = NULL, parked_host = 'h', parked_due_at = now()", false],
    ["UPDATE open_jobs SET due_at = now() + interval '1 h'", false],
    ["UPDATE open_jobs SET attempt = 2", false],
    ["UPDATE open_jobs SET run_id = gen_random_uuid()", false],
    ["UPDATE open_jobs SET attempts_allowed = 9, trace = '\\x01'", true],
  ] as const) {
    test(`is claimed as it is then, or left with nothing counted: ${change}`, async () => {
      const project = await store.addProject();
      const jobs = await store.addJobs(project, 3);
      const claims = jobs.map((jobId) => store.claimOf(project, jobId));
      const answers = await meanwhile(jobs[1] as string, change, () =>
        claimOrdinary(store.db, nodeId, claims),
      );
      expect(answers.map((answer) => answer !== null)).toEqual([true, isTaken, true]);
      if (isTaken) expect(answers[1]?.attemptsAllowed).toBe(9);
      const count = isTaken ? 3 : 2;
      expect(await store.onWire(project)).toBe(count);
      expect(await store.flow(project)).toMatchObject({ production_jobs: count, month_runs: count });
    });
  }

  test("is settled as canceled if it is by then, and left if its attempt was settled by another", async () => {
    const project = await store.addProject();
    const jobs = await store.addJobs(project, 3);
    const settlements: LastSettlement[] = [];
    for (const jobId of jobs) {
      const started = await store.start(nodeId, project, jobId);
      settlements.push({ ...settlementOf(started), next: { status: "succeeded" } });
    }
    const [canceled, settledBefore, plain] = settlements as [LastSettlement, LastSettlement, LastSettlement];
    const items = [
      ...(await meanwhile(canceled.jobId, "UPDATE open_jobs SET canceled = true", () =>
        settleOrdinary(store.db, [canceled, plain]),
      )),
      ...(await meanwhile(
        settledBefore.jobId,
        "UPDATE open_jobs SET node_id = NULL, run_id = NULL, started_at = NULL, due_at = now(), attempt = 2",
        () => settleOrdinary(store.db, [settledBefore]),
      )),
    ];
    expect(items.map((item) => item?.status ?? null)).toEqual(["canceled", "succeeded", null]);
    const ended = await store.query("SELECT job_id FROM ended_jobs WHERE project_no = $1", [project]);
    expect(ended).toEqual([{ job_id: idToUuid(plain.jobId) }]);
    expect(await store.query("SELECT FROM runs WHERE project_no = $1", [project])).toHaveLength(2);
  });
});

describe("a flow that is changed while the short way waits for it", () => {
  test("is judged as it is then: by a limit, a hold, a quota and a class that waits", async () => {
    for (const change of [
      "concurrency = 1",
      "held = true",
      "month_runs_max = month_runs + 1",
      "called_at[1] = now() + interval '1 h'",
    ]) {
      const project = await store.addProject();
      const jobs = await store.addJobs(project, 2);
      const session = await store.session();
      await session.query("BEGIN");
      await session.query(`UPDATE flows SET ${change} WHERE project_no = $1`, [project]);
      const claiming = claimOrdinary(
        store.db,
        nodeId,
        jobs.map((jobId) => store.claimOf(project, jobId)),
      );
      expect(await comesToWait(store, claiming)).toBe(true);
      await session.query("COMMIT");
      expect({ change, answers: await claiming }).toEqual({ change, answers: [null, null] });
      expect(await store.onWire(project)).toBe(0);
    }
  });

  test("keeps a settlement for the long way if a class waits or an endpoint has come by then", async () => {
    for (const change of ["waiting = 1", "subscriptions = 1"]) {
      const project = await store.addProject();
      const [jobId = ""] = await store.addJobs(project, 1);
      const settlement = settlementOf(await store.start(nodeId, project, jobId));
      const session = await store.session();
      await session.query("BEGIN");
      await session.query(`UPDATE flows SET ${change} WHERE project_no = $1`, [project]);
      const settling = settleOrdinary(store.db, [{ ...settlement, next: { status: "succeeded" } }]);
      expect(await comesToWait(store, settling)).toBe(true);
      await session.query("COMMIT");
      expect({ change, items: await settling }).toEqual({ change, items: [null] });
      expect(await store.onWire(project)).toBe(1);
    }
  });
});

test("a dead node, a held region and a project that does not exist are left to the long way", async () => {
  const project = await store.addProject();
  const jobs = await store.addJobs(project, 2);
  const claims = jobs.map((jobId) => store.claimOf(project, jobId));
  const [first, second] = claims as [Claim, Claim];
  const dead = await store.addNode();
  await store.query("UPDATE nodes SET dead = true WHERE id = $1", [dead]);
  expect(await claimOrdinary(store.db, dead, claims)).toEqual([null, null]);
  await store.query("INSERT INTO held_regions (region) VALUES ($1)", [regionCode("ap-southeast")]);
  expect(await claimOrdinary(store.db, nodeId, claims)).toEqual([null, null]);
  await store.query("DELETE FROM held_regions");
  const missing = { ...first, projectNo: 0 };
  const answers = await claimOrdinary(store.db, nodeId, [missing, second]);
  expect(answers.map((answer) => answer !== null)).toEqual([false, true]);
});
