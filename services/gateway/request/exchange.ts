import type { Body } from "../../../shared/contract/json.ts";
import { accessOf } from "../../../shared/contract/operations/operation.ts";
import { ApiError, type ErrorCode, invalidRequest, resourceNotFound } from "../../../shared/domain/errors.ts";
import { readIdempotencyKey } from "../../../shared/domain/idempotency.ts";
import { isPermitted } from "../../../shared/domain/key.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { type ApiVersion, NEWEST_API_VERSION, versionOf } from "../../../shared/domain/version.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Gate } from "../../../shared/platform/gate.ts";
import type { Log } from "../../../shared/platform/log.ts";
import type { Metrics } from "../../../shared/platform/metrics/metrics.ts";
import type { Traces } from "../../../shared/platform/traces/traces.ts";
import type { KeyToTake } from "../../../shared/store/resources/idempotency.ts";
import type { RateLimiter } from "../rate/limiter.ts";
import { type RateStanding, rateLimitExceeded } from "../rate/standing.ts";
import type { ApiRequest, CreationRoute } from "../routes/route.ts";
import { operationOf, type RouteMatch, type ServedOperation } from "../routes/route-table.ts";
import { type ApiAnswer, type Known, type ReadyAnswer, respond } from "./answer.ts";
import type { AuthenticatedCaller, Authenticator } from "./authenticate.ts";
import {
  allReceived,
  type BodyRules,
  hashBody,
  isLarge,
  largePayloadBytes,
  NO_BODY,
  type Patience,
  readBody,
} from "./body.ts";
import { Deadline } from "./deadline.ts";
import { methodNotAllowed, refuse, toRefusal } from "./errors.ts";
import type { Idempotency } from "./idempotency.ts";
import { prepareAnswer } from "./large-answer.ts";
import { createLimits } from "./limits.ts";
import { createRequestLog } from "./request-log.ts";
import { createRequestMetrics } from "./request-metrics.ts";
import { createRequestTraces, type RequestTrace } from "./request-trace.ts";
import { nextTurn } from "./sliced-work.ts";

/** Takes requests from their receipt to their answers. */
export interface Exchanges {
  answer(request: Request, ids: PathIds, match: RouteMatch): Promise<Response>;
  /** The answer to a request that goes no further than its path, or to an error outside of any request. */
  refuseOutside(error: unknown, known?: Partial<Known>): Response;
}

/** The ids in the path as they were written; empty where the path has none. */
export type PathIds = Pick<ApiRequest, "id" | "innerId">;

export interface ExchangeOptions {
  authenticator: Authenticator;
  rateLimiter: RateLimiter;
  idempotency: Idempotency;
  makeRequestId(): string;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  traces: Traces;
  gate?: Gate | undefined;
  storeTimeMsMax: number | undefined;
  patience: Patience;
}

/**
 * How long a request may wait for Postgres, not counting the receipt of its body: an outage is answered 503 within 2 s,
 * however long the statements themselves may take.
 */
const STORE_TIME_MS_MAX = 1_800;
/**
 * The API promises that a revocation works within 5 s, and the authenticator remembers a caller for 4 s. So a key is asked about
 * again once its request is older than this.
 */
const ASKED_AGAIN_AFTER_MS = 1_000;
/** Beyond this many requests of a project, each begins, or is refused, in a turn of its own: hundreds come at once. */
const CROWD_MIN = 64;

/** One request on its way, with the facts that are known of it so far. */
class Exchange implements Known {
  readonly receivedAt = performance.now();
  readonly allow: string | null;
  version: ApiVersion | null = NEWEST_API_VERSION;
  rate: RateStanding | null = null;
  /** Null until the request counts among those of its project. */
  projectNo: ProjectNo | null = null;
  /** Null until the request is within its rate and its operation is known. */
  trace: RequestTrace | null = null;
  private id: string | null = null;

  constructor(
    readonly request: Request,
    readonly ids: PathIds,
    readonly match: RouteMatch,
    readonly deadline: Deadline,
    private readonly makeRequestId: () => string,
  ) {
    this.allow = match === "nothing" ? null : match.allow;
  }

  get requestId(): string {
    this.id ??= this.makeRequestId();
    return this.id;
  }

  /** False once the request has its answer or its client has gone. Then its work stops. */
  isWanted(): boolean {
    return !this.deadline.isPassed && !this.request.signal.aborted;
  }
}

export function createExchanges(options: ExchangeOptions): Exchanges {
  const { authenticator, rateLimiter, idempotency, makeRequestId, clock, log, metrics, patience } = options;
  const { gate } = options;
  const { storeTimeMsMax = STORE_TIME_MS_MAX } = options;
  const limits = createLimits(metrics);
  const noteAnswer = createRequestMetrics(metrics);
  const requestLog = createRequestLog(log);
  const traceRequest = createRequestTraces(options.traces, clock);

  async function answer(request: Request, ids: PathIds, match: RouteMatch): Promise<Response> {
    const exchange = new Exchange(request, ids, match, new Deadline(storeTimeMsMax), makeRequestId);
    try {
      const answer = await exchange.deadline.bound(check(exchange));
      noteEnd(exchange, answer.status, null);
      return respond(answer, exchange);
    } catch (error) {
      if (exchange.projectNo !== null && isCrowd(exchange.projectNo)) await nextTurn(exchange.projectNo);
      const refusal = explain(error, exchange.requestId);
      const answer = refuse(refusal, exchange.requestId);
      noteEnd(exchange, answer.status, refusal.code);
      return respond(answer, exchange);
    } finally {
      exchange.deadline.stop();
    }
  }

  /**
   * The checks in the order that the API promises; no answer depends on a later check. Here: key, rate, path, method.
   * `checkOperation`: scope, version, media type, size, syntax. `checkKey`: Idempotency-Key. The route: fields, plan, quota.
   */
  async function check(exchange: Exchange): Promise<ReadyAnswer> {
    const { request, match } = exchange;
    limits.enter("all");
    let answer: ReadyAnswer | null = null;
    try {
      const caller = await authenticator.authenticate(request.headers.get("authorization"));
      exchange.version = caller.version;
      const { no } = caller.project;
      limits.enter(no);
      exchange.projectNo = no;
      if (isCrowd(no)) await nextTurn(no);
      exchange.rate = await rateLimiter.take(caller, limits.inProgress("all"));
      if (exchange.rate.retryAfterMs !== null) throw rateLimitExceeded();
      if (match === "nothing") throw resourceNotFound();
      if (match.served === null) throw methodNotAllowed(match.allow);
      answer = await checkOperation(exchange, match.served, caller);
      return answer;
    } finally {
      limits.leave(exchange.projectNo, answer);
    }
  }

  function checkOperation(
    exchange: Exchange,
    served: ServedOperation,
    caller: AuthenticatedCaller,
  ): Promise<ReadyAnswer> {
    const { request, ids } = exchange;
    const { operation, route } = served;
    const projectNo = caller.project.no;
    const scope = { projectNo, environment: caller.environment };
    const trace = traceRequest(exchange, operation, scope);
    exchange.trace = trace;
    if (!isPermitted(caller.scope, operation.resource, accessOf(operation))) {
      throw new ApiError("insufficient_scope", `A key of scope ${caller.scope} may not do this.`);
    }
    exchange.version = versionOf(request.headers.get("service-version"), caller.version);
    const cause = () => ({ requestId: exchange.requestId, keyNo: caller.keyNo });
    const query = queryOf(request.url);
    const { id, innerId } = ids;
    return limits.holdLargeBody(request.headers, route.body, projectNo, async () => {
      const body = await receive(exchange, route.body, projectNo);
      const present = await askAgain(exchange, caller);
      const apiRequest: ApiRequest = {
        caller: present,
        scope,
        id,
        innerId,
        query,
        cause,
        trace: trace.context,
      };
      const carryOut = () => carryOutRoute(exchange, served, apiRequest, body);
      return gate === undefined ? carryOut() : gate.within(carryOut);
    });
  }

  /**
   * The caller as it is now, if its body took a while to arrive. Throws unauthorized if the key was revoked or has expired
   * meanwhile.
   */
  function askAgain(
    { request, receivedAt }: Exchange,
    caller: AuthenticatedCaller,
  ): AuthenticatedCaller | Promise<AuthenticatedCaller> {
    if (performance.now() - receivedAt < ASKED_AGAIN_AFTER_MS) return caller;
    return authenticator.authenticate(request.headers.get("authorization"));
  }

  function carryOutRoute(
    exchange: Exchange,
    served: ServedOperation,
    apiRequest: ApiRequest,
    body: Body,
  ): Promise<ReadyAnswer> {
    const { route } = served;
    const { projectNo } = apiRequest.scope;
    if ("create" in route) return checkKey(exchange, { ...served, route }, apiRequest, body);
    const isWanted = () => exchange.isWanted();
    return limits.readStore(projectNo, isWanted, route.answerBytesMax ?? 0, async () =>
      finish(exchange, await route.answer(apiRequest, body), projectNo),
    );
  }

  function checkKey(
    exchange: Exchange,
    { operation, path, route }: ServedOperation & { route: CreationRoute },
    apiRequest: ApiRequest,
    body: Body,
  ): Promise<ReadyAnswer> {
    const { scope, id, innerId } = apiRequest;
    const { projectNo } = scope;
    const inStore = <Result>(act: () => Promise<Result>) =>
      limits.enterStore(projectNo, () => exchange.isWanted(), act);
    const act = (key: KeyToTake | null) => route.create(apiRequest, key, body);
    const create = route.isShared ? act : (key: KeyToTake | null) => inStore(() => act(key));
    const key = readIdempotencyKey(exchange.request.headers.get("idempotency-key"));
    const carryOut = async () => {
      if (key === null) {
        const created = await create(null);
        if (created === "key_taken") throw new Error("a key is taken that nobody gave");
        return finish(exchange, created, projectNo);
      }
      const spelling = `${operation.method} ${path} ${innerId === "" ? id : `${id} ${innerId}`}`;
      exchange.deadline.standStill();
      const requestHash = await hashBody(body, projectNo);
      exchange.deadline.goOn();
      const first = await idempotency.answer({
        scope,
        operation: spelling,
        key,
        requestHash,
        create,
        replay: (first) => inStore(() => route.replay(apiRequest, first)),
      });
      return finish(exchange, first, projectNo);
    };
    if (isLarge(route.body)) return carryOut();
    return limits.holdAnswer(projectNo, route.answerBytesMax ?? largePayloadBytes(body), carryOut);
  }

  const isCrowd = (projectNo: ProjectNo) => limits.inProgress(projectNo) > CROWD_MIN;

  /**
   * Receives the body. This time is the client's and does not count as the store's: the deadline goes on once the body
   * is complete. The body of an operation without one is ignored.
   */
  async function receive(
    { request, deadline }: Exchange,
    rules: BodyRules | null,
    projectNo: ProjectNo,
  ): Promise<Body> {
    let body = NO_BODY;
    if (rules === null) {
      await allReceived();
    } else {
      deadline.standStill();
      body = await readBody(request, rules, projectNo, patience);
      deadline.goOn();
    }
    // The request of a client that has gone ends here. The client may only seem gone: Bun refuses a request that is
    // followed by anything but HTTP with a 400, which looks like the answer to the request itself.
    if (request.signal.aborted) throw invalidRequest("The connection is gone.");
    return body;
  }

  /** Makes the answer ready. An answer that comes after the deadline is dropped, because nobody takes it. */
  async function finish(
    { deadline }: Exchange,
    answer: ApiAnswer,
    projectNo: ProjectNo,
  ): Promise<ReadyAnswer> {
    const ready = await prepareAnswer(answer, projectNo);
    if (deadline.isPassed) ready.large?.drop();
    return ready;
  }

  function explain(error: unknown, requestId: string): ApiError {
    const refusal = toRefusal(error);
    metrics.refusals.of({ code: refusal.code }).inc();
    requestLog.refused(error, refusal.code, requestId);
    return refusal;
  }

  function noteEnd(exchange: Exchange, status: number, code: ErrorCode | null): void {
    const { requestId, match, receivedAt, trace } = exchange;
    const operation = operationOf(match);
    const durationMs = performance.now() - receivedAt;
    trace?.end(status, code);
    requestLog.answered({ requestId, operation, status, code, durationMs });
    noteAnswer(operation, status, durationMs);
  }

  return {
    answer,
    refuseOutside(error, known = {}) {
      const requestId = makeRequestId();
      const refusal = error instanceof ApiError ? error : explain(error, requestId);
      const answer = refuse(refusal, requestId);
      return respond(answer, { version: null, rate: null, allow: null, ...known, requestId });
    },
  };
}

function queryOf(url: string): string {
  const start = url.indexOf("?");
  return start === -1 ? "" : url.slice(start + 1);
}
