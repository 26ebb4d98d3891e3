import { expect, test } from "bun:test";
import { checkHistory, listUnchecked, RULES, type Rule } from "./check-history.ts";
import type { FinalBulk, FinalJob, FinalRun, FinalState, History, HistoryEvent, Terms } from "./history.ts";

const JOB = "job_0000000000000000000000000a";
const RUN = "run_0000000000000000000000000b";
const SECOND_RUN = "run_0000000000000000000000000c";
const EVENT = "evt_0000000000000000000000000c";

const terms: Terms = {
  limits: new Map([[1, 1]]),
  withQuota: new Set(),
  attemptTimeoutMs: 4_000,
  webhookTimeoutMs: 3_000,
  graceMs: 30_000,
  healedAt: 10_000,
  catchesUpWithinMs: 20_000,
  quietFrom: 20_000,
  startsWithinMs: 1_000,
  toleranceMs: 100,
  isDrained: true,
};

const clockAt = (at: number) => ({ nowAt: at, latestAt: at });
const arrived = { kind: "request arrived", what: "job", project: 1, id: JOB, body: "{}" } as const;
/** A job whose first attempt failed and whose second succeeded, with its event; and a schedule that fired once. */
const events = [
  { kind: "epoch granted", at: 0, shard: "0/0", epoch: 1, node: 1 },
  { kind: "epoch used", at: 10, shard: "0/0", epoch: 1 },
  { kind: "job asked", at: 100, job: JOB, project: 1, maxAttempts: 3, baseSeconds: 1, capSeconds: 4 },
  { kind: "job accepted", at: 110, job: JOB, dueAt: 1_000_105 },
  { ...arrived, at: 120, clock: clockAt(1_000_120), request: 1, run: RUN, attempt: 1 },
  { kind: "request left", at: 170, request: 1, status: 500 },
  { ...arrived, at: 700, clock: clockAt(1_000_700), request: 2, run: SECOND_RUN, attempt: 2 },
  { kind: "request left", at: 760, request: 2, status: 200 },
  {
    ...arrived,
    what: "delivery",
    at: 800,
    clock: clockAt(1_000_800),
    request: 3,
    id: `${EVENT} https://endpoint.example/`,
    run: EVENT,
    attempt: null,
  },
  { kind: "request left", at: 810, request: 3, status: 200 },
  { kind: "schedule set", at: 3_000, clock: clockAt(1_003_500), schedule: "sch", isActive: false },
] satisfies HistoryEvent[];

const job: FinalJob = {
  ...{
    job: JOB,
    project: 1,
    maxAttempts: 3,
    baseSeconds: 1,
    capSeconds: 4,
    status: "succeeded",
    attempts: 2,
  },
  ...{ environment: "production", schedule: null, runAt: 1_000_105 },
};
const run: FinalRun = {
  ...{ run: RUN, job: JOB, attempt: 1, status: "failed", responseStatus: 500, error: "no" },
  ...{ startedAt: 1_000_115, durationMs: 55, nextRetryAt: 1_000_690 },
};
const second: FinalRun = {
  ...run,
  ...{ run: SECOND_RUN, attempt: 2, status: "succeeded", responseStatus: 200, error: null },
  ...{ startedAt: 1_000_695, nextRetryAt: null },
};
const fired: FinalJob = {
  ...{ ...job, job: "job_fired", schedule: "sch", runAt: 1_002_000, attempts: 0, status: "canceled" },
};
const final: FinalState = {
  jobs: [job, fired],
  runs: [run, second],
  events: [{ id: EVENT, job: JOB, project: 1, type: "job.succeeded" }],
  deliveries: [{ id: "dlv", event: EVENT, endpoint: "whk", status: "succeeded", attempts: 1 }],
  endpoints: [
    {
      ...{
        id: "whk",
        url: "https://endpoint.example/",
        project: 1,
        environment: "production",
        wasAlwaysEnabled: true,
      },
      types: ["job.succeeded", "job.failed"],
    },
  ],
  schedules: [{ id: "sch", instants: [1_002_000, 1_004_000], spreadMs: 0 }],
  firings: [{ schedule: "sch", firedFor: 1_002_000, job: "job_fired", replaced: 1 }],
  permits: [{ project: 1, inUse: 0, onWire: 0 }],
  usage: [{ project: 1, counted: 2, runs: 2 }],
};
const good: History = { terms, events, final };

const withEvents = (...more: HistoryEvent[]): History => ({ ...good, events: [...events, ...more] });
const withFinal = (change: Partial<FinalState>): History => ({ ...good, final: { ...final, ...change } });
const firstRequest = events[4] as Extract<HistoryEvent, { kind: "request arrived" }>;
const later = (change: Partial<typeof firstRequest>) =>
  withEvents({ ...firstRequest, at: 900, clock: clockAt(1_000_900), request: 9, ...change });
const replaced = (index: number, change: object): History => ({
  ...good,
  events: events.map((event, at) => (at === index ? ({ ...event, ...change } as HistoryEvent) : event)),
});

/** A history in which the request asked for so many jobs, and these stand at the end. */
function requestedAs(request: string, jobs: FinalJob[], count: number): History {
  const asked = events[2] as Extract<HistoryEvent, { kind: "job asked" }>;
  return {
    ...withFinal({ jobs: [...jobs.map((made) => ({ ...made, request })), fired] }),
    events: [...events, ...Array.from({ length: count }, () => ({ ...asked, request }))],
  };
}

/** A history in which a project with a limit of two requests a minute was answered at these times. */
function requestsOf(times: number[], change: Partial<Terms> = {}): History {
  const accepted = times.map((at) => ({
    kind: "request accepted" as const,
    askedAt: at,
    at: at + 10,
    project: 1,
  }));
  return {
    ...withEvents(...accepted),
    terms: { ...terms, requestsPerMinute: new Map([[1, 2]]), ...change },
  };
}

const BULK = "blk_0000000000000000000000000d";
const bulk: FinalBulk = {
  ...{ bulk: BULK, scope: "1/1", isDry: false, perSecond: 2, status: "done" },
  ...{ matched: 3, done: 2, skipped: 1, failed: 0, left: 0 },
};
type Judged = Extract<HistoryEvent, { kind: "bulk judged" }>;
const judged = (judgedAt: number, outcomes: Judged["members"][number]["outcome"][], change = {}): Judged => ({
  ...{ kind: "bulk judged", at: judgedAt, judgedAt, bulk: BULK },
  members: outcomes.map((outcome, index) => ({ member: `job_${judgedAt}_${index}`, outcome })),
  ...change,
});

/** A history in which the members of a bulk operation, or of two, were judged on these pages. */
function bulkOf(
  change: Partial<FinalBulk>,
  pages = [judged(100, ["done", "skipped"]), judged(1_100, ["done"])],
): History {
  const other = { ...bulk, bulk: "blk_other", matched: 1, done: 1, skipped: 0 };
  const bulks = pages.some((page) => page.bulk === other.bulk)
    ? [{ ...bulk, ...change }, other]
    : [{ ...bulk, ...change }];
  return { ...withEvents(...pages), final: { ...final, bulks } };
}

test("a history in which all is well has no violation", () => {
  expect(checkHistory(bulkOf({}))).toEqual([]);
  const other = { bulk: "blk_other" };
  expect(
    checkHistory(
      bulkOf({}, [judged(100, ["done", "skipped"]), judged(1_100, ["done"]), judged(1_200, ["done"], other)]),
    ),
  ).toEqual([]);
  // The clock was set back.
  expect(checkHistory(bulkOf({}, [judged(100, ["done", "skipped"]), judged(50, ["done"])]))).toEqual([]);
  expect(checkHistory(withFinal({ insights: [{ project: 1, counted: 2, runs: 2 }] }))).toEqual([]);
  expect(checkHistory(good)).toEqual([]);
});

const broken: [Rule, string, History][] = [
  ["lost", "an accepted job does not exist", withFinal({ jobs: [fired] })],
  ["lost", "a refused job exists", withEvents({ kind: "job refused", at: 1, job: JOB })],
  ["lost", "a job has not ended", withFinal({ jobs: [{ ...job, status: "queued" }, fired] })],
  ["lost", "not everything has ended", { ...good, terms: { ...terms, isDrained: false } }],
  ["doubled", "an attempt is sent twice", later({})],
  ["doubled", "an attempt is sent that has no run", later({ attempt: 3, run: "run_unknown" })],
  ["doubled", "a job is sent that does not exist", later({ id: "job_unknown" })],
  ["overlapping", "an attempt begins before the one before has ended", replaced(5, { at: 720 })],
  ["early", "an attempt is sent before it is due", replaced(4, { clock: clockAt(1_000_104) })],
  ["early", "a retry is sent before it is due", replaced(6, { clock: clockAt(1_000_689) })],
  [
    "late",
    "an attempt is sent long after all had healed",
    replaced(6, { at: 31_000, clock: clockAt(1_031_000) }),
  ],
  [
    "late",
    "a job of quiet times waits",
    {
      ...good,
      terms: { ...terms, quietFrom: 50 },
      events: events.map((event, at) => (at === 4 ? { ...firstRequest, clock: clockAt(1_001_200) } : event)),
    },
  ],
  [
    "late",
    "a job of quiet times is never sent",
    {
      ...good,
      terms: { ...terms, quietFrom: 50 },
      events: events.filter(({ kind }) => kind !== "request arrived"),
    },
  ],
  ["permits", "a project has two requests in flight", replaced(7, { at: 805 })],
  [
    "permits",
    "a permit is in use for nothing",
    withFinal({ permits: [{ project: 1, inUse: 1, onWire: 0 }] }),
  ],
  [
    "cancel",
    "an attempt follows a cancel",
    withEvents({ kind: "job canceled", at: 200, job: JOB, attempts: 1 }),
  ],
  ["runs", "a run is missing", withFinal({ runs: [second] })],
  ["runs", "an attempt has two runs", withFinal({ runs: [run, second, { ...second, run: "run_other" }] })],
  ["runs", "there are more than allowed", withFinal({ jobs: [{ ...job, maxAttempts: 1 }, fired] })],
  ["runs", "a run says that it succeeded, and its target does not", replaced(7, { status: 500 })],
  ["runs", "a run says that it failed, and its target answered well", replaced(5, { status: 200 })],
  [
    "runs",
    "the job ended otherwise than its last run",
    withFinal({ jobs: [{ ...job, status: "failed" }, fired] }),
  ],
  [
    "backoff",
    "a retry waits for too long",
    withFinal({ runs: [{ ...run, nextRetryAt: 1_099_000 }, second] }),
  ],
  [
    "backoff",
    "a retry is due before its attempt has ended",
    withFinal({ runs: [{ ...run, nextRetryAt: 1_000_000 }, second] }),
  ],
  ["events", "an end has no event", withFinal({ events: [], deliveries: [] })],
  [
    "events",
    "an event has no end",
    withFinal({ events: [...final.events, { ...final.events[0], id: `evt_${RUN.slice(4)}` } as never] }),
  ],
  [
    "deliveries",
    "an endpoint is owed an event twice",
    withFinal({ deliveries: [...final.deliveries, ...final.deliveries] }),
  ],
  [
    "deliveries",
    "an unknown event is owed",
    withFinal({ deliveries: [{ ...final.deliveries[0], event: "evt_x" } as never] }),
  ],
  [
    "deliveries",
    "a disabled endpoint hears of an event",
    {
      ...good,
      events: [
        { kind: "endpoint set", at: 5, endpoint: "whk", isEnabled: false },
        ...replaced(8, { at: 3_200 }).events,
      ],
    },
  ],
  [
    "deliveries",
    "an event is sent in other bytes",
    later({
      what: "delivery",
      id: `${EVENT} https://endpoint.example/`,
      run: EVENT,
      attempt: null,
      body: "{ }",
    }),
  ],
  ["firings", "an instant has two firings", withFinal({ firings: [...final.firings, ...final.firings] })],
  [
    "firings",
    "a firing is of no instant",
    withFinal({ firings: [{ schedule: "sch", firedFor: 1, job: null, replaced: 1 }] }),
  ],
  ["firings", "a job has no firing", withFinal({ firings: [] })],
  [
    "firings",
    "a job was canceled that no firing has replaced",
    withFinal({ firings: final.firings.map((firing) => ({ ...firing, replaced: 0 })) }),
  ],
  [
    "firings",
    "an instant of quiet times is missed",
    { ...withFinal({ jobs: [job], firings: [] }), terms: { ...terms, quietFrom: 50 } },
  ],
  ["paused", "a schedule fires after its pause", replaced(10, { clock: clockAt(1_001_000) })],
  [
    "epochs",
    "an earlier epoch is used",
    withEvents(
      { kind: "epoch granted", at: 20, shard: "0/0", epoch: 2, node: 2 },
      { kind: "epoch used", at: 30, shard: "0/0", epoch: 1 },
    ),
  ],
  [
    "epochs",
    "an epoch is granted twice",
    withEvents({ kind: "epoch granted", at: 20, shard: "0/0", epoch: 1, node: 2 }),
  ],
  ["usage", "a run is not counted", withFinal({ usage: [{ project: 1, counted: 1, runs: 2 }] })],
  [
    "idempotency",
    "a key is answered with two jobs",
    withEvents(
      { kind: "key answered", at: 110, key: "key", made: JOB },
      { kind: "key answered", at: 120, key: "key", made: "job_other" },
    ),
  ],
  ["idempotency", "a request has made two jobs", requestedAs("one", [job, { ...job, job: "job_again" }], 1)],
  ["idempotency", "a batch has made one of its two jobs", requestedAs("two", [job], 2)],
  ["bytes", "a request has other bytes than were asked for", replaced(4, { fault: "another body" })],
  ["rate", "a minute accepts more than the limit", requestsOf([0, 20_000, 59_000])],
  [
    "bulk",
    "a second has more members than the pace",
    bulkOf({}, [judged(100, ["done", "skipped"]), judged(1_099, ["done"])]),
  ],
  [
    "bulk",
    "a member is judged twice",
    bulkOf({}, [judged(100, ["done", "skipped"]), { ...judged(100, ["done"]), at: 1_100, judgedAt: 1_100 }]),
  ],
  ["bulk", "an outcome is not counted", bulkOf({ done: 1, skipped: 2 })],
  ["bulk", "it is done before all members are", bulkOf({ matched: 4 })],
  ["bulk", "members are left", bulkOf({ left: 1 })],
  ["bulk", "a dry run judges", bulkOf({ isDry: true })],
  ["bulk", "it does not end", bulkOf({ status: "running" })],
  [
    "bulk",
    "two run at once",
    bulkOf({}, [
      judged(100, ["done", "skipped"]),
      judged(1_100, ["done"], { bulk: "blk_other" }),
      judged(1_200, ["done"]),
    ]),
  ],
  ["insights", "a run is told twice", withFinal({ insights: [{ project: 1, counted: 3, runs: 2 }] })],
  [
    "firings",
    "a backfilled job is due at another time",
    withFinal({
      firings: [{ schedule: "sch", firedFor: 1_004_000, job: "job_fired", replaced: 1, isBackfilled: true }],
    }),
  ],
];

test.each(broken)("%s: it sees that %s", (rule, _what, history) => {
  expect(checkHistory(history).map((violation) => violation.rule)).toContain(rule);
});

test("the rate of a minute is judged neither across two minutes nor across the loss of its counts", () => {
  expect(checkHistory(requestsOf([0, 20_000, 60_000]))).toEqual([]);
  expect(checkHistory(requestsOf([0, 20_000, 59_000], { countsLostAt: [30_000] }))).toEqual([]);
});

test("a rule of which a history tells nothing is named", () => {
  expect(listUnchecked(good)).toEqual(["cancel", "idempotency", "bytes", "rate", "bulk", "insights"]);
  expect(listUnchecked({ ...good, events: [] })).toContain("doubled");
});

test("every rule has a history that breaks it", () => {
  expect([...new Set(broken.map(([rule]) => rule))].sort()).toEqual([...RULES].sort());
});
