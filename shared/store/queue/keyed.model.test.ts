import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import fc from "fast-check";
import { createIdSource, idToUuid, RUN_PREFIX } from "../../domain/ids.ts";
import type { OwedAttempt, Placed } from "../../domain/owed.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { type Claim, type Claimed, claimAttempts, type GrantedAttempt } from "./claim.ts";
import { claimKeyed } from "./claim-keyed.ts";
import { type Settled, settleAttempts } from "./settle.ts";
import { findStarted, settleKeyed } from "./settle-keyed.ts";
import { isLast, type LastSettlement } from "./settle-ordinary.ts";

setDefaultTimeout(600_000);

const STILL_AT = new Date().toISOString();
const ids = createIdSource(randomBytes);
let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  await stopClock(STILL_AT);
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

/**
 * Lets time stand still at `at` for the statements of sessions that begin from now on. Otherwise an attempt that one way puts
 * off by 100 ms would be due for the other way, which is played some moments later.
 */
async function stopClock(at: string) {
  const session = await store.session();
  await session.query("CREATE SCHEMA still");
  for (const clock of ["now", "clock_timestamp", "statement_timestamp", "transaction_timestamp"])
    await session.query(
      `CREATE FUNCTION still.${clock}() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT timestamptz '${at}' $$`,
    );
  await session.query(
    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, still, pg_catalog', current_database()); END $$",
  );
}

/** The states that a job of a key may be in when it is claimed, as assignments to its row. $due is an instant in the past. */
const STATES = {
  due: "due_at = $due, parked_due_at = $due",
  called: "due_at = $due + interval '1 s', parked_due_at = $due",
  retry: "due_at = $due, parked_due_at = $due, attempt = 2",
  parked: "due_at = NULL, parked_due_at = $due",
  early: "due_at = $due + interval '1 day', parked_due_at = $due + interval '1 day'",
  "with its place": "due_at = $due, parked_due_at = $due, gate = NULL, has_place = true, attempt = 2",
  "of another attempt": "due_at = $due, parked_due_at = $due, attempt = 3",
  "asked for by hand": "due_at = $due, parked_due_at = $due, run_id = gen_random_uuid()",
  "released by a host": "due_at = $due + interval '1 s', parked_due_at = $due, parked_host = 'h.example'",
  gone: null,
} as const;
type State = keyof typeof STATES;
const ORDINARY: State[] = ["due", "called", "retry"];
const SECOND_ATTEMPTS: State[] = ["retry", "with its place"];

const rarely = <T>(usual: T, rare: fc.Arbitrary<T>) =>
  fc.oneof({ weight: 5, arbitrary: fc.constant(usual) }, { weight: 1, arbitrary: rare });
const arbitraryKey = fc.record({
  concurrency: fc.constantFrom(null, 1, 2, 3, 40),
  elsewhere: fc.nat(2),
  hasMark: fc.boolean(),
  paused: rarely(false, fc.constant(true)),
  rate: rarely<number | null>(null, fc.integer({ min: 1, max: 3 })),
});
const arbitraryJob = fc.record({
  key: rarely(0, fc.constantFrom(1, null)),
  region: fc.constantFrom("us-east" as const, "eu-central" as const),
  state: fc.oneof(
    { weight: 5, arbitrary: fc.constantFrom(...ORDINARY) },
    { weight: 1, arbitrary: fc.constantFrom(...(Object.keys(STATES) as State[])) },
  ),
  secondsAgo: fc.integer({ min: 2, max: 4 }),
  tags: rarely<string[] | null>(null, fc.constant(["red"])),
  hold: fc.constantFrom("attempt" as const, "job" as const),
  end: fc.constantFrom("succeeded", "succeeded", "failed", "retried"),
  isCanceled: rarely(false, fc.constant(true)),
  isShifted: rarely(false, fc.constant(true)),
});
const arbitraryProject = fc.record({
  concurrency: rarely(100, fc.integer({ min: 1, max: 3 })),
  subscriptions: rarely(0, fc.integer({ min: 1, max: 63 })),
  waiting: rarely(0, fc.integer({ min: 1, max: 0xffff })),
});
const QUEUE: [Of<typeof arbitraryProject>, [Key, Key], Job[], boolean[]] = [
  { concurrency: 100, subscriptions: 0, waiting: 0 },
  [
    { concurrency: 1, elsewhere: 0, hasMark: true, paused: false, rate: null },
    { concurrency: 2, elsewhere: 0, hasMark: false, paused: false, rate: null },
  ],
  [4, 3, 2].map((secondsAgo) => ({
    ...{ key: 0, region: "us-east", state: "due", secondsAgo, tags: null, hold: "attempt" },
    ...{ end: "succeeded", isCanceled: false, isShifted: false },
  })),
  Array(7).fill(true),
];
type Of<A> = A extends fc.Arbitrary<infer T> ? T : never;
type Key = Of<typeof arbitraryKey>;
type Job = Of<typeof arbitraryJob>;
interface Started {
  claim: Claim;
  granted: GrantedAttempt;
}

/** A project in this state with such keys and jobs, which were due some seconds ago. Answers the claims of these. */
async function makeProject(
  flow: Of<typeof arbitraryProject>,
  keys: readonly Key[],
  jobs: readonly Job[],
): Promise<{ project: ProjectNo; claims: Claim[] }> {
  const project = await store.addProject();
  const claims: Claim[] = [];
  for (const { key, region, state, secondsAgo, tags, hold } of jobs) {
    const [jobId = ""] = await store.addJobs(project, 1, {
      ...{ region, tags, runAt: 4_000_000_000_000 },
      ...(key === null ? {} : { flow: { key: `key ${key}`, hold } }),
    });
    const assignments = key === null ? "due_at = $due" : STATES[state];
    await store.query(
      assignments === null
        ? "DELETE FROM open_jobs WHERE job_id = $1"
        : `UPDATE open_jobs SET ${assignments.replaceAll("$due", `(timestamptz '${STILL_AT}' - interval '${secondsAgo} s')`)} WHERE job_id = $1`,
      [idToUuid(jobId)],
    );
    const attempt = SECOND_ATTEMPTS.includes(state) && key !== null ? 2 : 1;
    claims.push(
      store.claimOf(project, jobId, { region, attempt, runId: ids.next(RUN_PREFIX, Date.parse(STILL_AT)) }),
    );
  }
  for (const [index, { concurrency, elsewhere, hasMark, paused, rate }] of keys.entries())
    await store.query(
      `UPDATE flow_keys k
          SET concurrency = $3, paused = $5, rate_count = $6, rate_seconds = CASE WHEN $6::int IS NOT NULL THEN 3600 END,
              queue_since = CASE WHEN $7 THEN (SELECT coalesce(min(o.parked_due_at), '-infinity') FROM open_jobs o
                                                WHERE o.project_no = $1 AND o.gate = 'k' || $2) ELSE '-infinity' END,
              in_use = $4 + (SELECT count(*) FROM open_jobs o WHERE o.project_no = $1 AND o.flow_key = $2 AND o.has_place),
              waiting = ARRAY (SELECT (SELECT count(*) FROM open_jobs o WHERE o.project_no = $1 AND o.flow_key = $2 AND o.region = r AND o.due_at IS NULL)
                                 FROM generate_series(0, 3) AS r ORDER BY r)
        WHERE project_no = $1 AND flow_key = $2`,
      [project, `key ${index}`, concurrency, elsewhere, paused, rate, hasMark],
    );
  await store.query(
    "UPDATE flows SET concurrency = $2, subscriptions = $3, waiting = $4 WHERE project_no = $1",
    [project, flow.concurrency, flow.subscriptions, flow.waiting],
  );
  return { project, claims };
}

/** All rows of the project that claims and settlements of keys write, in the order of the jobs. */
async function rowsOf(project: ProjectNo, jobs: readonly Claim[]) {
  const uuids = jobs.map(({ jobId }) => idToUuid(jobId));
  const place = "array_position($2::uuid[], job_id) AS job";
  const list = (text: string) => store.query(text, [project, uuids]);
  return {
    flow: await store.query("SELECT to_jsonb(f) - 'project_no' AS flow FROM flows f WHERE project_no = $1", [
      project,
    ]),
    keys: await store.query(
      "SELECT to_jsonb(k) - '{project_no,used_at,queue_since}'::text[] AS key FROM flow_keys k WHERE project_no = $1 ORDER BY flow_key",
      [project],
    ),
    open: await list(
      `SELECT ${place}, region, attempt, canceled, due_at, started_at, parked_host, parked_due_at, run_id IS NULL AS is_uncounted, node_id, gate, has_place
         FROM open_jobs WHERE project_no = $1 ORDER BY 1`,
    ),
    ended: await list(
      `SELECT ${place}, region, status, attempts, ended_at FROM ended_jobs WHERE project_no = $1 ORDER BY 1`,
    ),
    runs: await list(
      `SELECT ${place}, attempt, status, response_status, error, duration_ms, late_ms, held_for FROM runs WHERE project_no = $1 ORDER BY 1`,
    ),
    words: await list(`SELECT ${place}, tag, state FROM job_tag_states WHERE project_no = $1 ORDER BY 1, 2`),
    shifted: await store.query("SELECT status FROM shifted_runs WHERE project_no = $1", [project]),
    calls: await store.query("SELECT gate, region, waiting_change FROM gate_calls WHERE project_no = $1", [
      project,
    ]),
    usage: await store.query("SELECT region, runs::int FROM usage_days WHERE project_no = $1 ORDER BY 1", [
      project,
    ]),
  };
}

/** An answer without the parts that are new in each project: ids and instants of the statement. */
const toldBy = (answers: readonly Claimed[]) =>
  answers.map((answer) => {
    if (answer.kind !== "granted") return answer.kind;
    // Only the short way tells of the key's places.
    const { jobId, runId, startedAt, scheduledAt, key, ...rest } = answer.attempt;
    return { ...rest, isLater: startedAt >= scheduledAt };
  });

const withoutWait = (told: object | string) =>
  typeof told === "string" ? told : { ...told, waitedFor: undefined };

/** Which of the claimed jobs these attempts belong to, by its place among the claims. */
const placesOf = (attempts: readonly { id: string; attempt: number }[], claims: readonly Claim[]): string[] =>
  attempts.map(({ id, attempt }) => `${claims.findIndex(({ jobId }) => jobId === id)}/${attempt}`).sort();

const NEXT_DUE_AT = 4_000_000_000_000;

/** The items of a list that have an answer. */
const given = <T>(list: readonly T[], answers: readonly unknown[]) =>
  list.filter((_, index) => (answers[index] ?? null) !== null);
const left = <T>(list: readonly T[], answers: readonly unknown[]) =>
  list.filter((_, index) => (answers[index] ?? null) === null);

test("what the short ways take of jobs of keys in whatever state, the long way alone answers the same and leaves the same rows", async () => {
  const taken = { granted: 0, short: 0, refused: 0, settled: 0, settledShort: 0, called: 0, next: 0 };
  await fc.assert(
    fc.asyncProperty(
      arbitraryProject,
      fc.tuple(arbitraryKey, arbitraryKey),
      fc.array(arbitraryJob, { minLength: 2, maxLength: 7 }),
      fc.array(fc.boolean(), { minLength: 7, maxLength: 7 }),
      async (flow, keys, jobs, takesNext) => {
        const long = await makeProject(flow, keys, jobs);
        const short = await makeProject(flow, keys, jobs);
        const expectSameRows = async () =>
          expect(await rowsOf(short.project, short.claims)).toEqual(await rowsOf(long.project, long.claims));
        await expectSameRows();

        const called: { short: Placed<OwedAttempt>[]; long: Placed<OwedAttempt>[] } = { short: [], long: [] };
        const first = await claimKeyed(store.db, nodeId, short.claims, (owed) => called.short.push(...owed));
        const firstOfLong = await claimAttempts(store.db, nodeId, given(long.claims, first), (owed) =>
          called.long.push(...owed),
        );
        expect(toldBy(first.filter((answer) => answer !== null))).toEqual(toldBy(firstOfLong));
        expect(placesOf(called.short, short.claims)).toEqual(placesOf(called.long, long.claims));
        await expectSameRows();
        const started: { short: Started; long: Started; job: Job }[] = [];
        const noteStarted = (places: number[], ofShort: readonly Claimed[], ofLong: readonly Claimed[]) => {
          for (const [index, place] of places.entries()) {
            const [granted, answer] = [ofShort[index], ofLong[index]];
            if (granted?.kind !== "granted" || answer?.kind !== "granted") continue;
            started.push({
              short: { claim: short.claims[place] as Claim, granted: granted.attempt },
              long: { claim: long.claims[place] as Claim, granted: answer.attempt },
              job: jobs[place] as Job,
            });
          }
        };
        const places = jobs.map((_, place) => place);
        const answered = first.filter((answer) => answer !== null);
        noteStarted(given(places, first), answered, firstOfLong);
        taken.short += started.length;
        taken.refused += answered.length - started.length;
        const [rest, restOfLong] = [
          await claimAttempts(store.db, nodeId, left(short.claims, first)),
          await claimAttempts(store.db, nodeId, left(long.claims, first)),
        ];
        expect(toldBy(rest)).toEqual(toldBy(restOfLong));
        noteStarted(left(places, first), rest, restOfLong);
        taken.granted += started.length;

        const settlements = [];
        for (const { job, ...sides } of started) {
          for (const { claim } of [sides.short, sides.long])
            await store.query(
              "UPDATE open_jobs SET canceled = $2, started_at = started_at + CASE WHEN $3 THEN interval '1 min' ELSE interval '0' END WHERE job_id = $1",
              [idToUuid(claim.jobId), job.isCanceled, job.isShifted],
            );
          const wish =
            job.end === "succeeded" ? {} : failedWith(job.end === "failed" ? "over" : { dueAt: NEXT_DUE_AT });
          settlements.push({
            short: settlementOf(sides.short, { ...wish, isPlain: false }),
            long: settlementOf(sides.long, { ...wish, isPlain: false }),
          });
        }
        const ends = settlements.filter((sides) => isLast(sides.short));
        if (ends.length === 0) return;
        const asked = ends.map(({ short }, index) => ({
          ...(short as LastSettlement),
          nextRunId: takesNext[index] ? ids.next(RUN_PREFIX, Date.parse(STILL_AT)) : null,
        }));
        const settled = await settleKeyed(store.db, nodeId, asked);
        const same = given(ends, settled.items).map((sides) => sides.long);
        const settledLong: Settled =
          same.length === 0 ? { items: [], owed: [], freed: [] } : await settleAttempts(store.db, same);
        const itemsOf = (items: Settled["items"]) => items.flatMap((item) => item && { ...item, jobId: "" });
        expect(itemsOf(given(settled.items, settled.items))).toEqual(itemsOf(settledLong.items));
        // What the short way has started, the long way claims next.
        const next = settled.next.filter((attempt) => attempt !== null);
        const claimsOfNext = next.map(({ attempt, granted: { jobId, runId } }) => {
          const place = short.claims.findIndex((claim) => claim.jobId === jobId);
          return { ...(long.claims[place] as Claim), attempt, runId };
        });
        // Called attempts are due some microseconds later, and time stands still.
        await store.query("UPDATE open_jobs SET due_at = least(due_at, $2) WHERE job_id = ANY ($1::uuid[])", [
          claimsOfNext.map(({ jobId }) => idToUuid(jobId)),
          STILL_AT,
        ]);
        const nextOfLong =
          claimsOfNext.length === 0 ? [] : await claimAttempts(store.db, nodeId, claimsOfNext);
        const asClaimed = next.map(({ granted }): Claimed => ({ kind: "granted", attempt: granted }));
        expect(toldBy(asClaimed).map(withoutWait)).toEqual(toldBy(nextOfLong).map(withoutWait));
        expect(next.every(({ granted }) => granted.waitedFor === "flow")).toBe(true);
        // The long way has called others of other regions for the places that are handed on. They are parked again.
        const isCalled = new Set(placesOf(settled.owed, short.claims));
        const isNext = new Set(claimsOfNext.map(({ jobId }) => jobId));
        const inVain = settledLong.owed.filter(
          (owed) => !isNext.has(owed.id) && !isCalled.has(placesOf([owed], long.claims)[0] as string),
        );
        await store.query("UPDATE open_jobs SET due_at = $2 WHERE job_id = ANY ($1::uuid[])", [
          inVain.map(({ id }) => idToUuid(id)),
          STILL_AT,
        ]);
        const claimsInVain = inVain.map(({ id, attempt }) => ({
          ...(long.claims.find(({ jobId }) => jobId === id) as Claim),
          ...{ attempt, runId: ids.next(RUN_PREFIX, Date.parse(STILL_AT)) },
        }));
        if (claimsInVain.length > 0)
          expect(toldBy(await claimAttempts(store.db, nodeId, claimsInVain))).toEqual(
            claimsInVain.map(() => "gone"),
          );
        expect(isCalled.isSubsetOf(new Set(placesOf(settledLong.owed, long.claims)))).toBe(true);
        await expectSameRows();
        taken.settled += ends.length;
        taken.settledShort += same.length;
        taken.called += settled.owed.length;
        taken.next += next.length;
        // The settlement is repeated, as after an answer that was lost.
        const again = await settleKeyed(store.db, nodeId, asked);
        expect([...given(again.items, again.items), ...given(again.next, again.next)]).toEqual([]);
        await expectSameRows();
        for (const [index, attempt] of settled.next.entries()) {
          const runId = asked[index]?.nextRunId;
          if (runId == null) continue;
          const place = { projectNo: short.project, environment: "production", runId } as const;
          expect(await findStarted(store.db, nodeId, [place])).toEqual([attempt]);
          expect(await findStarted(store.db, nodeId + 1, [place])).toEqual([null]);
        }
      },
    ),
    // Random queues seldom hand a place on. This one does.
    { numRuns: 120, examples: [QUEUE] },
  );
  // Both ways were taken.
  expect(taken.short).toBeGreaterThan(taken.granted / 8);
  expect(taken.short).toBeLessThan(taken.granted);
  expect(taken.settledShort).toBeGreaterThan(taken.settled / 8);
  expect(taken.settledShort).toBeLessThan(taken.settled);
  for (const count of [taken.refused, taken.called, taken.next]) expect(count).toBeGreaterThan(0);
});
