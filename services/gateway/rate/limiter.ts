import { limitsOf } from "../../../shared/domain/plan.ts";
import type { Log } from "../../../shared/platform/log.ts";
import { type Database, StoreUnavailable } from "../../../shared/store/database/database.ts";
import type { Caller } from "../../../shared/store/resources/callers.ts";
import {
  type RateAnswer,
  type RateQuestion,
  takeRequests,
} from "../../../shared/store/resources/request-rate.ts";
import { createRateDemand } from "./demand.ts";
import { createRateLoans } from "./loans.ts";
import type { RateStanding } from "./standing.ts";

export interface RateLimiter {
  /**
   * Takes one request from the rate of the caller's environment, or finds nothing left. `crowd` is the number of requests
   * that the gateway has in progress, this one included.
   */
  take(caller: Caller, crowd: number): RateStanding | Promise<RateStanding>;
  /** Returns all loans. Call it once no more requests come. It does not throw. */
  stop(): Promise<void>;
}

/** More requests in one statement would only move the wait into Postgres. */
const REQUESTS_PER_STATEMENT_MAX = 1_000;

/**
 * A statement costs as much as a request. So it waits until one of so many parts of the crowd shares it, while the
 * other parts are served. It starts at once for a request that comes alone, and while loans accept most requests.
 */
const CROWD_PARTS = 3;
/** The longest wait for others, because requests with slow bodies belong to the crowd, too. */
const PATIENCE_MS = 4;

/** An undecided request is asked for again after UNDECIDED_MS, and is refused after UNDECIDED_MS_MAX. */
const UNDECIDED_MS = 30;
const UNDECIDED_MS_MAX = 1_200;

export function createRateLimiter(db: Database, log: Log): RateLimiter {
  const demand = createRateDemand(() => performance.now());
  const loans = createRateLoans(() => performance.now());
  let waiting: Waiting[] = [];
  let crowd = 1;
  let asking: Promise<void> | null = null;
  let isStarting = false;
  let patience: Timer | undefined;
  let accounting: Timer | undefined;

  function consider(): void {
    if (asking !== null || isStarting || waiting.length === 0) return;
    const sharers = (crowd * demand.askedPart()) / CROWD_PARTS;
    if (waiting.length >= Math.min(sharers, REQUESTS_PER_STATEMENT_MAX)) {
      isStarting = true;
      // All requests that this turn of the event loop reads from its sockets share the statement.
      setImmediate(ask);
    } else {
      patience ??= setTimeout(ask, PATIENCE_MS);
    }
  }

  function ask(): void {
    clearTimeout(patience);
    patience = undefined;
    isStarting = false;
    if (asking !== null) return;
    const members = waiting.slice(0, REQUESTS_PER_STATEMENT_MAX);
    waiting = waiting.slice(members.length);
    asking = takeTogether(members, performance.now()).then(() => {
      asking = null;
      waiting = waiting.filter((member) => !spend(member));
      clearTimeout(accounting);
      const dueAt = loans.nextDueAt();
      if (dueAt < Number.POSITIVE_INFINITY)
        accounting = setTimeout(ask, Math.max(0, dueAt - performance.now()));
      consider();
    });
  }

  /** Asks one question for each environment of the members, and for each whose account is due by `dueAt`. */
  async function takeTogether(members: readonly Waiting[], dueAt: number): Promise<void> {
    const groups = groupByEnvironment(members);
    for (const [name, question] of loans.due(dueAt)) {
      if (!groups.has(name)) groups.set(name, { question: { ...question, requestCount: 0 }, members: [] });
    }
    if (groups.size === 0) return;
    for (const [name, { question }] of groups) {
      question.loan = crypto.randomUUID();
      question.demand = question.requestCount === 0 ? 0 : demand.of(name);
      question.over = loans.close(name);
    }
    const sentAt = performance.now();
    let answers: RateAnswer[];
    try {
      answers = await takeRequests(
        db,
        [...groups.values()].map(({ question }) => question),
      );
    } catch (error) {
      for (const [name, group] of groups) {
        if (error instanceof StoreUnavailable) loans.keep(name, group.question);
        for (const { reject } of group.members) reject(error);
      }
      return;
    }
    for (const [index, [name, group]] of [...groups].entries()) {
      const answer = answers[index] as RateAnswer;
      loans.open(name, group.question, answer, sentAt);
      tell(group, answer);
    }
  }

  /** Answers the members of one environment in the order of their arrival. */
  function tell({ question: { limit }, members }: Group, answer: RateAnswer): void {
    const { acceptedCount, isUndecided, lentCount, remaining, resetMs, retryAfterMs } = answer;
    const left = remaining + lentCount + acceptedCount;
    for (const [place, { resolve }] of members.slice(0, acceptedCount).entries()) {
      resolve({ limit, remaining: left - 1 - place, resetMs, retryAfterMs: null });
    }
    const now = performance.now();
    const again: Waiting[] = [];
    for (const member of members.slice(acceptedCount)) {
      member.decidedBy ??= now + UNDECIDED_MS_MAX;
      if (isUndecided && now < member.decidedBy) again.push(member);
      else member.resolve({ limit, remaining, resetMs, retryAfterMs });
    }
    if (again.length === 0) return;
    setTimeout(() => {
      waiting.unshift(...again);
      ask();
    }, UNDECIDED_MS);
  }

  function spend({ name, request, resolve }: Waiting): boolean {
    const standing = loans.spend(name, request.limit);
    if (standing !== null) resolve(standing);
    return standing !== null;
  }

  return {
    take({ project, environment }, crowdNow) {
      const name = `${project.no}/${environment}`;
      const limit = limitsOf(project).requestsPerMinute;
      demand.note(name);
      const standing = loans.spend(name, limit);
      if (standing !== null) return standing;
      demand.noteAsked();
      const { promise, resolve, reject } = Promise.withResolvers<RateStanding>();
      const request = { projectNo: project.no, environment, limit };
      waiting.push({ name, request, decidedBy: null, resolve, reject });
      crowd = crowdNow;
      consider();
      return promise;
    },

    async stop() {
      await asking;
      clearTimeout(accounting);
      await takeTogether([], Number.POSITIVE_INFINITY);
      const lost = loans.due(Number.POSITIVE_INFINITY).length;
      if (lost > 0) log.warn({ lost }, "rate_loans.lost");
    },
  };
}

interface Waiting {
  /** The name of its environment. */
  name: string;
  request: Pick<RateQuestion, "projectNo" | "environment" | "limit">;
  /** When the request is refused if it is still undecided; null until it is undecided for the first time. */
  decidedBy: number | null;
  resolve(standing: RateStanding): void;
  reject(error: unknown): void;
}

/** The waiting requests of one environment, and the question about them. */
interface Group {
  question: RateQuestion;
  members: Waiting[];
}

function groupByEnvironment(members: readonly Waiting[]): Map<string, Group> {
  const groups = new Map<string, Group>();
  for (const member of members) {
    let group = groups.get(member.name);
    if (group === undefined) {
      group = {
        question: { ...member.request, requestCount: 0, loan: "", demand: 0, over: [] },
        members: [],
      };
      groups.set(member.name, group);
    }
    // For some seconds after a change, callers of one environment can have different limits.
    group.question.limit = Math.min(group.question.limit, member.request.limit);
    group.question.requestCount++;
    group.members.push(member);
  }
  return groups;
}
