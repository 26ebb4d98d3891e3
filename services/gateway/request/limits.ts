import { ApiError } from "../../../shared/domain/errors.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { type Metrics, single } from "../../../shared/platform/metrics/metrics.ts";
import type { ReadyAnswer } from "./answer.ts";
import { type BodyRules, declaredBytes, isLarge } from "./body.ts";
import { createHeldBytes, type HeldBytes } from "./held-bytes.ts";
import { createStoreAccess } from "./store-access.ts";

/**
 * Beyond these the gateway is overloaded. A request that was given up but still runs in Postgres counts as in progress. No
 * project may have all places, because slow bodies would be enough to keep everybody else out.
 */
const REQUESTS_MAX = { ofProject: 500, ofAll: 2_000 };
/** How many requests are in Postgres at once. Requests that share statements do not count and always find a connection. */
const STORE_REQUESTS_MAX = { ofProject: 2, ofAll: 8, large: 1 };
const LARGE_READ_BYTES_MIN = 2_097_152;
/** Eight of the largest batches, and four for one project. */
const LARGE_BODY_BYTES_MAX = { ofProject: 134_217_728, ofAll: 268_435_456, always: 1_048_576 };
/** Answers that are being read from Postgres or wait for their clients. The largest page has 9 MiB. */
const ANSWER_BYTES_MAX = { ofProject: 33_554_432, ofAll: 67_108_864, always: 2_097_152 };

type Act = () => Promise<ReadyAnswer>;

/** Bounds on all that requests use at once, for each project and for all. Beyond them service_unavailable is thrown. */
export interface Limits {
  /** How many requests of the project, or of all, are in progress. */
  inProgress(who: ProjectNo | "all"): number;
  /** Counts a request as in progress. Throws service_unavailable if there are too many. */
  enter(who: ProjectNo | "all"): void;
  /** Ends the count of a request, by its project if it was counted there, once the client has taken its answer. */
  leave(projectNo: ProjectNo | null, answer: ReadyAnswer | null): void;
  /** Counts the bytes of a body that may be large. They stay in memory until its request is answered. */
  holdLargeBody(
    headers: Headers,
    rules: BodyRules | null,
    projectNo: ProjectNo,
    act: Act,
  ): Promise<ReadyAnswer>;
  /** Counts the bytes of an answer, which may have up to `bytes`, until its client has taken it. */
  holdAnswer: HeldBytes["hold"];
  /** Waits for the project's turn at Postgres. A request that `isWanted` calls given up by then is not carried out. */
  enterStore<Result>(
    projectNo: ProjectNo,
    isWanted: () => boolean,
    act: () => Promise<Result>,
  ): Promise<Result>;
  /** `enterStore` for a read whose answer may have up to `bytesMax`. These count from the turn on, before the read. */
  readStore(projectNo: ProjectNo, isWanted: () => boolean, bytesMax: number, act: Act): Promise<ReadyAnswer>;
}

export function createLimits(metrics: Metrics): Limits {
  const counts = new Map<ProjectNo | "all", number>();
  const largeBodyBytes = createHeldBytes(LARGE_BODY_BYTES_MAX);
  const answerBytes = createHeldBytes(ANSWER_BYTES_MAX);
  const store = createStoreAccess(STORE_REQUESTS_MAX);
  metrics.requestsWaiting.follow(() => single(store.crowdedOut()));

  const inProgress = (who: ProjectNo | "all") => counts.get(who) ?? 0;
  function countDown(who: ProjectNo | "all"): void {
    const left = inProgress(who) - 1;
    if (left > 0) counts.set(who, left);
    else counts.delete(who);
  }
  function end(projectNo: ProjectNo | null): void {
    countDown("all");
    if (projectNo !== null) countDown(projectNo);
  }

  return {
    inProgress,
    enter(who) {
      const max = who === "all" ? REQUESTS_MAX.ofAll : REQUESTS_MAX.ofProject;
      const before = inProgress(who);
      if (before >= max) throw new ApiError("service_unavailable", "The service is overloaded.");
      counts.set(who, before + 1);
    },
    leave(projectNo, answer) {
      if (answer?.large === undefined) end(projectNo);
      else void answer.large.taken.then(() => end(projectNo));
    },
    holdLargeBody(headers, rules, projectNo, act) {
      if (!isLarge(rules)) return act();
      const bytes = Math.min(declaredBytes(headers) ?? rules.bytesMax, rules.bytesMax);
      return largeBodyBytes.hold(projectNo, bytes, act, bytes);
    },
    holdAnswer: answerBytes.hold,
    enterStore: store.enter,
    readStore(projectNo, isWanted, bytesMax, act) {
      const read = () => answerBytes.hold(projectNo, bytesMax, act);
      return store.enter(projectNo, isWanted, read, bytesMax > LARGE_READ_BYTES_MIN);
    },
  };
}
