import { expect, test } from "bun:test";
import { checkHistory, listUnchecked, RULES, type Rule } from "./check-history.ts";
import type {
  FinalBulk,
  FinalGate,
  FinalJob,
  FinalRun,
  FinalState,
  History,
  HistoryEvent,
  Terms,
} from "./history.ts";

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
const asked = { kind: "job asked", project: 1, maxAttempts: 3, baseSeconds: 1, capSeconds: 4 } as const;
const arrived = { kind: "request arrived", what: "job", project: 1, id: JOB, body: "{}" } as const;
/** A job whose first attempt failed and whose second succeeded, with its event; and a schedule that fired once. */
const events = [
  { kind: "epoch granted", at: 0, shard: "0/0", epoch: 1, node: 1 },
  { kind: "epoch used", at: 10, shard: "0/0", epoch: 1 },
  { ...asked, at: 100, job: JOB },
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
/** The event, so much later. */
const moved = (event: HistoryEvent, ms: number): HistoryEvent => ({
  ...event,
  at: event.at + ms,
  ...("clock" in event && event.clock !== undefined && { clock: clockAt(event.clock.nowAt + ms) }),
});
const later = (change: Partial<typeof firstRequest>) =>
  withEvents({ ...firstRequest, at: 900, clock: clockAt(1_000_900), request: 9, ...change });
const replaced = (index: number, change: object): History => ({
  ...good,
  events: events.map((event, at) => (at === index ? ({ ...event, ...change } as HistoryEvent) : event)),
});

/** A history in which the request asked for `count` jobs, and these jobs exist at the end. */
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

const KEY = { project: 1, environment: "production", gate: "key" };
const HOST = { project: 1, environment: "production", gate: "host.example" };
type FlowSet = Extract<HistoryEvent, { kind: "flow set" }>;
const set = (at: number, limits: Partial<FlowSet> = {}): FlowSet => ({
  ...{ kind: "flow set", at, clock: clockAt(1_000_000 + at) },
  ...{ ...KEY, concurrency: 1, rate: null, paused: false, ...limits },
});
/** An attempt of a job: when it arrived and left, and whether another one follows by itself. */
type Told = [job: string, from: number, until: number, isRetried?: boolean];

/**
 * A history of these attempts of jobs with a flow key, all of which were asked for and due at the beginning, unless
 * `dueAts` says otherwise. The events of `sets` are added.
 */
function keyedOf(
  attempts: readonly Told[],
  wish: {
    sets?: HistoryEvent[];
    hold?: "attempt" | "job";
    dueAts?: Record<string, number>;
    change?: Partial<FinalState>;
    terms?: Partial<Terms>;
    run?: Partial<FinalRun>;
    host?: string;
  } = {},
): History {
  const { sets = [set(0)], hold = "attempt", dueAts = {}, change = {}, host } = wish;
  const names = [...new Set(attempts.map(([name]) => name))];
  const numbered = attempts.map(([name, from, until, isRetried = false], index) => {
    const before = attempts.slice(0, index).filter(([other]) => other === name).length;
    return { name, from, until, isRetried, attempt: before + 1, request: index + 1, run: `run_${index}` };
  });
  const dueAtOf = (name: string) => 1_000_000 + (dueAts[name] ?? 0);
  const told = [
    ...sets,
    ...names.flatMap((name): HistoryEvent[] => {
      const at = dueAts[name] ?? 0;
      return [
        { ...asked, at, job: name },
        { kind: "job accepted", at, job: name, dueAt: dueAtOf(name), clock: clockAt(1_000_000 + at) },
      ];
    }),
    ...numbered.flatMap(({ name, from, until, attempt, request, run }): HistoryEvent[] => [
      { ...arrived, at: from, clock: clockAt(1_000_000 + from), id: name, run, attempt, request },
      { kind: "request left", at: until, request, status: 500 },
    ]),
  ];
  return {
    terms: { ...terms, limits: new Map([[1, 100]]), ...wish.terms },
    events: told.toSorted((one, other) => one.at - other.at),
    final: {
      ...{ ...final, events: [], deliveries: [], endpoints: [], schedules: [], firings: [] },
      usage: [{ project: 1, counted: numbered.length, runs: numbered.length }],
      jobs: names.map((name) => ({
        ...{ ...job, job: name, runAt: dueAtOf(name), status: "failed", flow: { key: "key", hold } },
        ...{ attempts: numbered.filter((one) => one.name === name).length, maxAttempts: 5 },
        ...(host !== undefined && { host }),
      })),
      runs: numbered.map(({ name, from, until, isRetried, attempt, run: id }) => ({
        ...{ ...run, run: id, job: name, attempt, startedAt: 1_000_000 + from, durationMs: until - from },
        nextRetryAt: isRetried ? 1_000_000 + until : null,
        ...wish.run,
      })),
      ...change,
    },
  };
}
const gate: FinalGate = { ...KEY, inUse: 0, places: 0, waiting: 0, parked: 0 };
const rated = set(0, { concurrency: null, rate: { count: 2, perSeconds: 1 } });
/** Attempts at a host that was down from 0 s to 20 s, each 10 ms long. */
const atHost = (froms: readonly number[], run: Partial<FinalRun> = {}, isKeyed = false): History => {
  const told = keyedOf(
    froms.map((from, index) => [`job_${index}`, from, from + 10]),
    {
      ...{ sets: [], host: HOST.gate, run },
      change: { downTimes: [{ ...HOST, downAt: 1_000_000, upAt: 1_020_000 }] },
    },
  );
  const jobs = told.final.jobs.map(({ flow: _, ...unkeyed }) => unkeyed);
  return isKeyed ? told : { ...told, final: { ...told.final, jobs } };
};

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

const paused = keyedOf([["a", 200, 210]], { sets: [set(0), set(100, { paused: true }), set(300)] });
const tooMany = keyedOf(
  [
    ["a", 10, 20],
    ["b", 400, 410],
    ["c", 1_009, 1_020],
  ],
  { sets: [rated] },
);
const steep = atHost([20_100, 20_200], { heldFor: "host" });

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
  [
    "places",
    "a key has two attempts in flight",
    keyedOf([
      ["a", 10, 50],
      ["b", 40, 90],
    ]),
  ],
  [
    "places",
    "a job starts while another one keeps its place between two attempts",
    keyedOf(
      [
        ["a", 10, 20, true],
        ["b", 30, 40],
        ["a", 50, 60],
      ],
      { hold: "job" },
    ),
  ],
  [
    "places",
    "an attempt starts before that of a dead node is settled",
    keyedOf(
      [
        ["a", 10, 50_000],
        ["b", 34_000, 34_010],
      ],
      { terms: { healedAt: 40_000 } },
    ),
  ],
  [
    "places",
    "a limit that was lowered long ago is passed",
    keyedOf(
      [
        ["a", 6_000, 6_500],
        ["b", 6_400, 6_600],
      ],
      { sets: [set(0, { concurrency: 2 }), set(1_000)] },
    ),
  ],
  ["starts", "a window has more starts than the rate", tooMany],
  [
    "starts",
    "a window has more starts than the rate, and the clock is known to the millisecond",
    {
      ...tooMany,
      events: tooMany.events.map((event) =>
        event.kind === "request arrived"
          ? { ...event, clock: { ...event.clock, latestAt: event.clock.nowAt + 1 } }
          : event,
      ),
    },
  ],
  ["starts", "an attempt starts while its key is paused", paused],
  [
    "order",
    "a job starts before one that was due before it",
    keyedOf(
      [
        ["b", 500, 510],
        ["a", 520, 530],
      ],
      { hold: "job", dueAts: { a: 10, b: 20 } },
    ),
  ],
  [
    "gates",
    "a place is in use for nothing",
    keyedOf([["a", 10, 20]], { change: { gates: [{ ...gate, inUse: 1 }] } }),
  ],
  [
    "gates",
    "a job waits that nobody counts",
    keyedOf([["a", 10, 20]], { change: { gates: [{ ...gate, parked: 1 }] } }),
  ],
  [
    "gates",
    "a job is parked at the end",
    keyedOf([["a", 10, 20]], { change: { gates: [{ ...gate, waiting: 1, parked: 1 }] } }),
  ],
  ["hosts", "a host that went down has an attempt at once", atHost([3_000])],
  ["hosts", "the second probe waits no longer than the first", atHost([5_000, 11_000])],
  ["hosts", "two probes are sent at once", atHost([6_000, 6_005])],
  ["hosts", "what was parked starts all at once", steep],
  [
    "late",
    "an attempt waits for a flow key that is free",
    keyedOf([["a", 31_000, 31_010]], { dueAts: { a: 9_000 } }),
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

/** The place of job a is taken by an attempt that reaches no target, while the key has two places. */
const unseen = keyedOf(
  [
    ["a", 500, 510, true],
    ["b", 600, 5_500],
    ["a", 5_100, 5_110],
  ],
  { hold: "job", sets: [set(0, { concurrency: 2 }), set(1_000)] },
);
const kept: [string, History][] = [
  [
    "a job that keeps its place since an attempt that reached no target, under the limits of that time",
    {
      ...unseen,
      events: unseen.events.filter((event) => !("request" in event) || event.request !== 1),
      final: {
        ...unseen.final,
        runs: unseen.final.runs.map((one, place) => (place === 0 ? { ...one, responseStatus: null } : one)),
      },
    },
  ],
  [
    "an attempt of a node that stands still, which was sent long after its start and given up by that",
    {
      ...good,
      terms: { ...terms, healedAt: 100_000, quietFrom: 120_000 },
      events: events
        .map((event, place): HistoryEvent => {
          if (place === 4) return { ...firstRequest, at: 2_100, clock: clockAt(1_002_100) };
          if (place === 5) return { ...event, at: 90_000 };
          return place > 5 && place < 10 ? moved(event, 33_500) : event;
        })
        .toSorted((one, other) => one.at - other.at),
      final: { ...final, runs: [run, { ...second, startedAt: 1_034_195 }] },
    },
  ],
  [
    "attempts of a key one after the other",
    keyedOf([
      ["a", 10, 50],
      ["b", 50, 90],
    ]),
  ],
  [
    "two at once where two may be",
    keyedOf(
      [
        ["a", 10, 50],
        ["b", 40, 90],
      ],
      { sets: [set(0, { concurrency: 2 })] },
    ),
  ],
  [
    "two at once that started before a limit was lowered",
    keyedOf(
      [
        ["a", 10, 50],
        ["b", 40, 90],
      ],
      { sets: [set(0, { concurrency: 2 }), set(30)] },
    ),
  ],
  [
    "attempts of two jobs in turn, each of which gives its place back",
    keyedOf([
      ["a", 10, 20, true],
      ["b", 30, 40],
      ["a", 50, 60],
    ]),
  ],
  [
    "another job once the one that kept its place is over",
    keyedOf(
      [
        ["a", 10, 20, true],
        ["a", 30, 40],
        ["b", 50, 60],
        ["a", 70, 80],
      ],
      { hold: "job" },
    ),
  ],
  [
    "a retry by hand of a job that has kept its place since the key had more of them",
    keyedOf(
      [
        ["a", 10, 20],
        ["b", 100_000, 100_500],
        ["a", 100_200, 100_300],
      ],
      {
        hold: "job",
        dueAts: { b: 100_000 },
        sets: [
          set(0, { concurrency: 2 }),
          { kind: "retry asked", at: 50, job: "a", run: "run_2" },
          set(60, { concurrency: 1 }),
        ],
      },
    ),
  ],
  [
    "an attempt after that of a dead node was settled",
    keyedOf(
      [
        ["a", 10, 50_000],
        ["b", 34_020, 34_030],
      ],
      { terms: { healedAt: 40_000 } },
    ),
  ],
  [
    "starts that leave their window",
    keyedOf(
      [
        ["a", 10, 20],
        ["b", 400, 410],
        ["c", 1_010, 1_020],
      ],
      { sets: [rated] },
    ),
  ],
  [
    "starts before a pause and after it",
    keyedOf(
      [
        ["a", 90, 200],
        ["b", 310, 320],
      ],
      { sets: [set(0), set(100, { paused: true }), set(300)] },
    ),
  ],
  [
    "a start at an instant that came twice, of which one was in a pause",
    {
      ...paused,
      events: [
        ...paused.events,
        { kind: "clock set", at: 400, clock: { nowAt: 1_000_150, latestAt: 1_000_400 } },
      ],
    },
  ],
  [
    "a start too many by a clock that was set back, though no request told of that time",
    keyedOf(
      [
        ["a", 100, 110],
        ["b", 120, 130],
        ["c", 600, 610],
      ],
      { sets: [rated, { kind: "clock set", at: 300, clock: { nowAt: 1_000_050, latestAt: 1_000_300 } }] },
    ),
  ],
  [
    "jobs in the order of their due times",
    keyedOf(
      [
        ["a", 500, 510],
        ["b", 520, 530],
      ],
      { hold: "job", dueAts: { a: 10, b: 20 } },
    ),
  ],
  [
    "starts of which the clock was set back in between",
    keyedOf(
      [
        ["b", 500, 510],
        ["a", 520, 530],
      ],
      {
        ...{ hold: "job", dueAts: { a: 10, b: 20 } },
        sets: [set(0), { kind: "clock set", at: 525, clock: { nowAt: 1_000_490, latestAt: 1_000_525 } }],
      },
    ),
  ],
  [
    "a job that came due while another one started",
    keyedOf(
      [
        ["b", 500, 510],
        ["a", 520, 530],
      ],
      { hold: "job", dueAts: { a: 450, b: 460 } },
    ),
  ],
  [
    "a job that is passed over while its host is full",
    keyedOf(
      [
        ["b", 500, 510],
        ["a", 520, 530],
      ],
      {
        ...{ hold: "job", dueAts: { a: 10, b: 20 } },
        sets: [set(0), { kind: "attempt parked at full host", at: 490, job: "a" }],
      },
    ),
  ],
  ["a gate with what it counts", { ...keyedOf([["a", 10, 20]], { change: { gates: [gate] } }) }],
  ["probes, each after twice the time", atHost([5_000, 15_020])],
  ["a ramp", atHost([20_100, 21_200, 30_100, 30_200], { heldFor: "host" })],
  ["what never waited for the host, in the second of a ramp", atHost([20_100, 20_200])],
  [
    "what waits for its flow key behind its host, in the second of a ramp",
    atHost([20_100, 20_200], { heldFor: "host" }, true),
  ],
  [
    "what waited since its host was full, in the second of a ramp",
    {
      ...steep,
      events: [{ kind: "attempt parked at full host", at: 0, job: "job_1" }, ...steep.events],
    },
  ],
  [
    "an attempt that waits long for its key",
    keyedOf(
      [
        ["b", 8_000, 30_500],
        ["a", 31_000, 31_010],
      ],
      { dueAts: { a: 9_000 }, terms: { attemptTimeoutMs: 60_000 } },
    ),
  ],
  [
    "an attempt that waits long for its host",
    keyedOf([["a", 31_000, 31_010]], {
      ...{ dueAts: { a: 9_000 }, host: HOST.gate },
      change: { downTimes: [{ ...HOST, downAt: 1_009_000, upAt: 1_020_000 }] },
    }),
  ],
];

test.each(kept)("nothing is wrong with %s", (_what, history) => {
  expect(checkHistory(history)).toEqual([]);
});

test("the rate of a minute is judged neither across two minutes nor across the loss of its counts", () => {
  expect(checkHistory(requestsOf([0, 20_000, 60_000]))).toEqual([]);
  expect(checkHistory(requestsOf([0, 20_000, 59_000], { countsLostAt: [30_000] }))).toEqual([]);
});

test("a rule of which a history tells nothing is named", () => {
  const gates = ["places", "starts", "order", "gates", "hosts"] as const;
  const others = ["cancel", "idempotency", "bytes", "rate", "bulk", "insights"] as const;
  expect(listUnchecked(good)).toEqual([...gates, ...others]);
  const keyed = keyedOf([["a", 10, 20]], { sets: [rated, set(5)], hold: "job", change: { gates: [gate] } });
  expect(gates.filter((rule) => listUnchecked(keyed).includes(rule))).toEqual(["hosts"]);
  expect(listUnchecked({ ...good, events: [] })).toContain("doubled");
});

test("every rule has a history that breaks it", () => {
  expect([...new Set(broken.map(([rule]) => rule))].sort()).toEqual([...RULES].sort());
});
