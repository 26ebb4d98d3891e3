import { sendHints } from "../../shared/bus/hints.ts";
import { reasonOf } from "../../shared/domain/failure-reason.ts";
import { flowClassOf } from "../../shared/domain/flow-class.ts";
import { type IdSource, RUN_PREFIX } from "../../shared/domain/ids.ts";
import type { OwedAttempt, Placed } from "../../shared/domain/owed.ts";
import type { Environment, ProjectNo } from "../../shared/domain/scope.ts";
import { hostOfTarget } from "../../shared/domain/target.ts";
import type { Span } from "../../shared/platform/traces/traces.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { Turns } from "../../shared/store/database/turns.ts";
import {
  type Claim,
  type Claimed,
  claimMost,
  claimWhole,
  type GrantedAttempt,
} from "../../shared/store/queue/claim.ts";
import { claimKeyed } from "../../shared/store/queue/claim-keyed.ts";
import { claimOrdinary } from "../../shared/store/queue/claim-ordinary.ts";
import { type Parked, parkAttempts } from "../../shared/store/queue/parking.ts";
import { type SettledItem, type Settlement, settleAttempts } from "../../shared/store/queue/settle.ts";
import {
  findStarted,
  type KeyedSettlement,
  type StartedRun,
  settleKeyed,
} from "../../shared/store/queue/settle-keyed.ts";
import { isLast, type LastSettlement, settleOrdinary } from "../../shared/store/queue/settle-ordinary.ts";
import { findTargetUrls, type OwedPlace } from "../../shared/store/queue/target-urls.ts";
import {
  type Asked,
  type AttemptKind,
  inBatches,
  type Next,
  noteAsked,
  noteCommitted,
  waitLeft,
} from "./attempt-kind.ts";
import { beginAttempt, endAttempt } from "./attempt-span.ts";
import { type Sender, sendAttempt } from "./job-request.ts";
import { MixedProjects } from "./mixed-projects.ts";
import { ordinaryFirst } from "./ordinary-first.ts";
import type { StoreRetries } from "./retry-until-answered.ts";

/**
 * On a busy node settlements of the short way gather for 20 ms, or until 32 wait. No class of such a project waits for a permit, and no
 * endpoint hears of its jobs. Permits come back by as much later, which a project just below its limit may notice. Settlements that the
 * short way leaves are late by as much, once in LONG_WAY_MS for a project.
 */
const SETTLE_GATHERING = { gatherMs: 20, gatheredEnough: 32 };

/**
 * While so many settlements of jobs with a key of a project are under way, one statement and half of the next, claims of such jobs give way
 * to them. They start others in the places that they leave, so claims would only add to what is in flight.
 */
const GIVES_WAY_FROM = 300;

/** An attempt of a job that was sent, and how it ended. */
interface SentAttempt {
  projectNo: ProjectNo;
  attempt: number;
  host: string | null;
  settlement: Settlement;
  /** By performance.now(). */
  endedAt: number;
  span: Span | null;
}

type LastSentAttempt = SentAttempt & { settlement: LastSettlement };
/** With the run id of the attempt that may start in its place; null if none may. */
type KeyedSentAttempt = LastSentAttempt & { nextRunId: string | null };
/** A settlement, and the attempt that was started with it. */
interface SettledKeyed {
  item: SettledItem | null;
  next: { attempt: number; granted: Asked<GrantedAttempt> } | null;
}
const GONE = { kind: "gone" } as const;
const attemptOf = ({ jobId, attempt }: { jobId: string; attempt: number }) => `${jobId} ${attempt}`;
/** Whether a short way may be asked about the settlement. */
const isLastSent = (sent: SentAttempt): sent is LastSentAttempt => isLast(sent.settlement);

/** Attempts of jobs. */
export function createJobAttempts(
  { db, bus, clock, log, metrics, traces }: Cell,
  options: {
    nodeId: number;
    ids: IdSource;
    sender: Sender;
    retries: StoreRetries;
    secretsOf(scope: { projectNo: ProjectNo; environment: Environment }): Promise<string[]>;
  },
): AttemptKind<Asked<GrantedAttempt>, SentAttempt> {
  const { nodeId, ids, sender, retries, secretsOf } = options;
  // The short ways all lock the flows of their projects. Where jobs without a key are claimed while others are settled, Postgres' own
  // row of waiting statements does best. With jobs of both kinds four statements would wait there. Statements of jobs
  // with a key that wait there judge the keys' rows once more, since the one before has changed them: a fifth to a quarter more of
  // Postgres' time a job.
  const mixed = new MixedProjects();
  const turns = {
    shared: new Turns<ProjectNo>(),
    lockOf: ({ projectNo }: { projectNo: ProjectNo }) => (mixed.has(projectNo) ? projectNo : null),
  };
  const keyedTurns = { ...turns, lockOf: ({ projectNo }: { projectNo: ProjectNo }) => projectNo };
  /** The run ids under which settlements that are not answered yet may start attempts. A claim that gets such an attempt takes its id out. */
  const askedFor = new Set<string>();
  /** How many settlements of jobs with a key are under way in each project. */
  const settlingOf = new Map<ProjectNo, number>();
  /** The attempts that settlements have started and that are not in flight yet. A claim of such an attempt has nothing left to do. */
  const startedHere = new Set<string>();
  const locating = inBatches((jobs: OwedPlace[]) => findTargetUrls(db, jobs));
  const parking = inBatches((items: Parked[]) => parkAttempts(db, "jobs", items));
  const finding = inBatches((runs: StartedRun[]) => findStarted(db, nodeId, runs));
  const timedClaim = metrics.statement("claim_jobs");
  const timedSettlement = metrics.statement("settle_jobs");
  const noteLateness = metrics.lateness("jobs");
  const onCalled = (owed: Placed<OwedAttempt>[]) => sendHints(bus, { owed, freed: [] });
  const claimBy =
    <Answer extends Claimed | null>(run: (claims: Claim[]) => Promise<Answer[]>) =>
    async (claims: Claim[]) => {
      const askedAt = performance.now();
      const answers = await timedClaim(claims.length, () => run(claims));
      const hasBegun = ({ runId }: GrantedAttempt, claim: Claim) => runId === claim.runId;
      return noteAsked<GrantedAttempt, Claim, Answer>(answers, claims, { askedAt, hasBegun });
    };
  const claimingWhole = inBatches(claimBy((claims) => claimWhole(db, nodeId, claims, onCalled)));
  const claimingLong = ordinaryFirst({
    ordinary: claimBy((claims) => claimMost(db, nodeId, claims)),
    long: claimingWhole.submit,
    gathering: { gatherMs: 0 },
  });
  const asClaimed = (attempt: GrantedAttempt | null): Claimed | null =>
    attempt === null ? null : { kind: "granted", attempt };
  const claimingOrdinary = ordinaryFirst({
    ordinary: claimBy(async (claims) => (await claimOrdinary(db, nodeId, claims)).map(asClaimed)),
    long: claimingLong.submit,
    gathering: { turns },
  });
  // claimOrdinary and claimMost leave every job with a flow key, so they are not asked about gated attempts.
  const claimKeyedBy = claimBy((claims) => claimKeyed(db, nodeId, claims, onCalled));
  const claimingGated = ordinaryFirst({
    async ordinary(claims: Claim[]) {
      const left = claims.filter((claim) => !startedHere.has(attemptOf(claim)));
      const answers = left.length === 0 ? [] : await claimKeyedBy(left);
      const answerOf = new Map(left.map((claim, index) => [claim, answers[index] ?? null]));
      return claims.map((claim) => {
        const answer = answerOf.get(claim);
        return answer === undefined ? GONE : answer;
      });
    },
    long: claimingWhole.submit,
    gathering: {
      turns: {
        ...keyedTurns,
        givesWay: (lock) => (settlingOf.get(lock as ProjectNo) ?? 0) >= GIVES_WAY_FROM,
      },
    },
  });
  const settleLong = async (sent: SentAttempt[]) => {
    const settlements = sent.map(({ settlement, endedAt }) => waitLeft(settlement, endedAt));
    const settled = await timedSettlement(sent.length, () => settleAttempts(db, settlements));
    sendHints(bus, settled);
    noteCommitted(log, () => {
      for (const [index, each] of sent.entries()) noteSettled(each, settled.items[index] ?? null);
    });
    return settled.items;
  };
  const settlingLong = inBatches(settleLong);
  // A settlement that is not plain makes its statement longer for all others in it, so it goes into a batch apart.
  const settlingWhole = inBatches(settleLong);
  const noteAll = (sent: readonly SentAttempt[], items: readonly (SettledItem | null)[]) =>
    noteCommitted(log, () => {
      for (const [index, each] of sent.entries()) {
        const item = items[index] ?? null;
        if (item !== null) noteSettled(each, item);
      }
    });
  const settlingLast = ordinaryFirst<LastSentAttempt, SettledItem | null>({
    async ordinary(sent) {
      const settlements = sent.map(({ settlement }) => settlement);
      const items = await timedSettlement(sent.length, () => settleOrdinary(db, settlements));
      noteAll(sent, items);
      return items;
    },
    long: settlingLong.submit,
    gathering: { ...SETTLE_GATHERING, turns },
  });
  const settlingKeyed = ordinaryFirst<KeyedSentAttempt, SettledKeyed>({
    async ordinary(sent) {
      const askedAt = performance.now();
      const settlements = sent.map(
        ({ settlement, nextRunId }): KeyedSettlement => ({ ...settlement, nextRunId }),
      );
      const { items, next, owed } = await timedSettlement(sent.length, () =>
        settleKeyed(db, nodeId, settlements),
      );
      sendHints(bus, { owed, freed: [] });
      noteAll(sent, items);
      return items.map((item, index) => {
        const started = next[index] ?? null;
        if (started !== null) startedHere.add(attemptOf({ ...started.granted, attempt: started.attempt }));
        return item && { item, next: started && { ...started, granted: { ...started.granted, askedAt } } };
      });
    },
    long: async (sent) => ({ item: await settlingWhole.submit(sent), next: null }),
    gathering: { turns: keyedTurns },
  });
  const settle = async (sent: SentAttempt): Promise<unknown> => {
    mixed.note(sent.projectNo, sent.settlement.isKeyed === true ? "keyed" : "ordinary");
    if (sent.settlement.isPlain)
      return isLastSent(sent) ? settlingLast.submit(sent) : settlingLong.submit(sent);
    return settlingWhole.submit(sent);
  };

  /** Settles the last attempt of a job with a flow key. The next attempt of the key may start in its place, if `takesNext`. */
  async function settleAndTakeNext(
    sent: LastSentAttempt,
    takesNext: boolean,
  ): Promise<Next<Asked<GrantedAttempt>> | null> {
    const { projectNo, environment, region, shard } = sent.settlement;
    mixed.note(projectNo, "keyed");
    const nextRunId = takesNext && shard !== null ? ids.next(RUN_PREFIX, clock.now()) : null;
    if (nextRunId !== null) askedFor.add(nextRunId);
    let isAgain = false;
    const { next } = await retries.untilSettled(sent.settlement, async (settlement) => {
      if (!isAgain) {
        isAgain = true;
        settlingOf.set(projectNo, (settlingOf.get(projectNo) ?? 0) + 1);
        try {
          return await settlingKeyed.submit({ ...sent, settlement, nextRunId });
        } finally {
          const left = (settlingOf.get(projectNo) ?? 0) - 1;
          if (left > 0) settlingOf.set(projectNo, left);
          else settlingOf.delete(projectNo);
        }
      }
      // The statement before may have been committed. What it has started is found once this one is over, which waits for its locks.
      const item = await settlingWhole.submit({ ...sent, settlement });
      const started = nextRunId && (await finding.submit({ projectNo, environment, runId: nextRunId }));
      return { item, next: started ? { ...started, granted: { ...started.granted, askedAt: null } } : null };
    });
    if (next === null || nextRunId === null || shard === null) {
      if (nextRunId !== null) askedFor.delete(nextRunId);
      return null;
    }
    const { attempt, granted } = next;
    const place = { projectNo, environment, region, shard, flowClass: flowClassOf("jobs", environment) };
    return {
      item: { ...place, id: granted.jobId, attempt, dueAt: clock.now(), isGated: true },
      attempt: granted,
      isLeft() {
        startedHere.delete(attemptOf({ ...granted, attempt }));
        return askedFor.delete(nextRunId);
      },
    };
  }

  function noteSettled({ attempt, host, settlement, span }: SentAttempt, settled: SettledItem | null): void {
    const { jobId, runId, status, responseStatus, durationMs } = settlement;
    metrics.attemptsSettled[status].inc();
    const next = settled?.status ?? "settled before";
    const reason = reasonOf(settlement);
    endAttempt(span, clock.now(), { ...settlement, next });
    log.info(
      {
        jobId,
        runId,
        attempt,
        durationMs: Math.round(durationMs),
        outcome: status,
        responseStatus,
        ...(reason === null ? {} : { host, reason }),
        job: next,
        nextRetryAt: settled?.nextRetryAt == null ? null : new Date(settled.nextRetryAt).toISOString(),
        ...(span === null ? {} : { traceId: span.context.traceId }),
      },
      "attempt.settled",
    );
  }

  return {
    locate: (item) => locating.submit(item),
    park: ({ projectNo, environment, region, id, attempt }, at) =>
      parking.submit({ projectNo, environment, region, id, attempt, ...at }),
    async claim({ projectNo, environment, region, id: jobId, attempt, isGated }) {
      // The secrets are asked for meanwhile, so that a granted attempt need not wait for them. An error shows when it is sent.
      secretsOf({ projectNo, environment }).catch(() => undefined);
      const runId = ids.next(RUN_PREFIX, clock.now());
      const claiming = isGated ? claimingGated : claimingOrdinary;
      mixed.note(projectNo, isGated ? "keyed" : "ordinary");
      const claimed = await claiming.submit({ projectNo, environment, region, jobId, attempt, runId });
      if (claimed.kind === "granted") askedFor.delete(claimed.attempt.runId);
      return claimed;
    },
    urlOf: ({ targetUrl }) => targetUrl,
    keyOf: ({ key }) => key ?? null,
    async send(item, granted, host) {
      const { projectNo, environment, region, shard, id: jobId, attempt, dueAt } = item;
      const { runId, scheduleId } = granted;
      const waitedFor = item.waitedFor ?? granted.waitedFor;
      const span = beginAttempt(traces, item, granted, () => ({
        name: "attempt",
        attributes: {
          "jobwheel.job_id": jobId,
          "jobwheel.run_id": runId,
          ...(scheduleId === null ? {} : { "jobwheel.schedule_id": scheduleId }),
        },
      }));
      const secrets = await retries
        .untilAnswered(() => secretsOf({ projectNo, environment }))
        .catch((error) => {
          log.error({ err: error, jobId }, "signing_secrets.unreadable");
          return [];
        });
      if (secrets.length > 0) noteLateness(region, clock.now() - dueAt);
      const settlement = await sendAttempt(
        {
          ...{ projectNo, environment, region, shard, attempt, granted, waitedFor, secrets, span },
          host: host ?? hostOfTarget(granted.targetUrl),
        },
        sender,
      );
      return { projectNo, attempt, host, settlement, endedAt: performance.now(), span };
    },
    mayTakeNext: (sent) => sent.settlement.isKeyed === true && isLastSent(sent),
    async settle(sent, takesNext) {
      if (sent.settlement.isKeyed && isLastSent(sent)) return settleAndTakeNext(sent, takesNext);
      await retries.untilSettled(sent.settlement, (settlement) => settle({ ...sent, settlement }));
      return null;
    },
  };
}
