import type { RateAnswer, RateQuestion, SpentLoan } from "../../../shared/store/resources/request-rate.ts";
import type { RateStanding } from "./limiter.ts";

/** What this gateway may accept without asking, for each environment by its name, and what it owes an account of. */
export interface RateLoans {
  /** Accepts one request from the environment's loan; null if it has to be asked for. */
  spend(name: string, limit: number): RateStanding | null;
  /** Ends the environment's loan, and hands over what is to be said of it. */
  close(name: string): SpentLoan[];
  /** The question was sent at `sentAt` and has this answer. */
  open(name: string, question: RateQuestion, answer: RateAnswer, sentAt: number): void;
  /** Whether the question took effect is not known: what it said is said again, and that nothing of its loan was spent. */
  keep(name: string, question: RateQuestion): void;
  /** The environments of which an account is due by then, with the last question about each. */
  due(at: number): [name: string, question: RateQuestion][];
  /** When the next account is due; Infinity if none is owed. */
  nextDueAt(): number;
}

/** Behind the end of a loan the next request is usually near, and its question carries the account. */
const GRACE_MS = 10;
/** Until an account whose fate is not known is given again. */
const AGAIN_MS = 200;
/** Of an environment; in a long outage older ones are let go, and what they would give back counts as accepted. */
const LOST_LOANS_MAX = 100;

/** All instants are those of `monotonicNow`, so that a process which was frozen finds its loans at their end. */
export function createRateLoans(monotonicNow: () => number): RateLoans {
  const accounts = new Map<string, Account>();

  return {
    spend(name, limit) {
      const loan = accounts.get(name)?.loan;
      // Callers of one environment can know different limits for the seconds that a change takes to spread.
      if (loan == null || loan.left === 0 || limit < loan.limit) return null;
      const now = monotonicNow();
      if (now >= loan.endsAt) return null;
      loan.left--;
      return {
        limit: loan.limit,
        remaining: loan.remaining + loan.left,
        resetMs: loan.resetAt - now,
        retryAfterMs: null,
      };
    },

    close(name) {
      const account = accounts.get(name);
      accounts.delete(name);
      if (account === undefined) return [];
      const { loan, over } = account;
      return loan === null ? over : [{ loan: loan.id, spentCount: loan.lentCount - loan.left }];
    },

    open(name, question, { lentCount, lentMs, remaining, resetMs }, sentAt) {
      if (lentCount === 0) return;
      const endsAt = sentAt + lentMs;
      const loan = {
        id: question.loan,
        limit: question.limit,
        lentCount,
        left: lentCount,
        endsAt,
        remaining,
        resetAt: monotonicNow() + resetMs,
      };
      accounts.set(name, { question, loan, over: [], dueAt: endsAt + GRACE_MS });
    },

    keep(name, question) {
      const lost = question.demand > 0 ? [{ loan: question.loan, spentCount: 0 }] : [];
      const over = [...question.over, ...lost].slice(-LOST_LOANS_MAX);
      if (over.length > 0)
        accounts.set(name, { question, loan: null, over, dueAt: monotonicNow() + AGAIN_MS });
    },

    due: (at) =>
      [...accounts].filter(([, { dueAt }]) => dueAt <= at).map(([name, { question }]) => [name, question]),

    nextDueAt: () => Math.min(...[...accounts.values()].map(({ dueAt }) => dueAt)),
  };
}

/** Of an environment: the loan that is being spent, or else what has been said of others without an answer. */
interface Account {
  question: RateQuestion;
  loan: Loan | null;
  over: SpentLoan[];
  dueAt: number;
}

interface Loan {
  id: string;
  limit: number;
  lentCount: number;
  left: number;
  endsAt: number;
  /** What is left of the limit beside the loan. */
  remaining: number;
  resetAt: number;
}
