import type { RateAnswer, RateQuestion, SpentLoan } from "../../../shared/store/resources/request-rate.ts";
import type { RateStanding } from "./standing.ts";

/** The requests that Postgres lends this gateway to accept without asking, for each environment by its name. */
export interface RateLoans {
  /** Accepts one request from the environment's loan; null if Postgres must be asked. */
  spend(name: string, limit: number): RateStanding | null;
  /** Ends the environment's loan, and returns the account of it for the next question. */
  close(name: string): SpentLoan[];
  /** Opens the loan that the answer to a question grants. The question was sent at `sentAt`. */
  open(name: string, question: RateQuestion, answer: RateAnswer, sentAt: number): void;
  /** Keeps the accounts of a question with unknown outcome for the next one, and adds that nothing of its own loan was spent. */
  keep(name: string, question: RateQuestion): void;
  /** The environments whose account is due by `at`, with the last question about each. */
  due(at: number): [name: string, question: RateQuestion][];
  /** When the next account is due; Infinity if none is owed. */
  nextDueAt(): number;
}

/** An account waits so long after its loan's end. The next question usually comes within this time and returns unspent requests. */
const GRACE_MS = 10;
/** The time until an account with unknown outcome is given again. */
const AGAIN_MS = 200;
/** How many lost loans of an environment are kept. In a long outage older ones are dropped and count as spent. */
const LOST_LOANS_MAX = 100;

/** All instants are by `monotonicNow`, so that the loans of a frozen process end on time. */
export function createRateLoans(monotonicNow: () => number): RateLoans {
  const accounts = new Map<string, Account>();

  return {
    spend(name, limit) {
      const loan = accounts.get(name)?.loan;
      // For some seconds after a change, callers of one environment can have different limits.
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

/** The account of an environment: its open loan, or the earlier accounts that had no answer. */
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
  /** The requests left of the limit, without the loan. */
  remaining: number;
  resetAt: number;
}
