import type { BunRequest } from "bun";
import { Elysia } from "elysia";
import type { Body } from "../../shared/contract/json.ts";
import { OPERATIONS, type OperationId } from "../../shared/contract/operations/all.ts";
import { accessOf, type Operation } from "../../shared/contract/operations/operation.ts";
import { ApiError, type ErrorCode, invalidRequest, resourceNotFound } from "../../shared/domain/errors.ts";
import { type IdSource, REQUEST_PREFIX } from "../../shared/domain/ids.ts";
import { isPermitted } from "../../shared/domain/key.ts";
import type { ProjectNo } from "../../shared/domain/scope.ts";
import { type ApiVersion, NEWEST_API_VERSION, versionOf } from "../../shared/domain/version.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Log } from "../../shared/platform/log.ts";
import { type Metrics, single } from "../../shared/platform/metrics/metrics.ts";
import type { Traces } from "../../shared/platform/traces/traces.ts";
import type { FirstAnswer, KeyToTake } from "../../shared/store/resources/idempotency.ts";
import type { Page } from "./docs.ts";
import { type RateLimiter, type RateStanding, rateHeaders, rateLimitExceeded } from "./rate/limiter.ts";
import { createAnswerNotes } from "./request/answer-notes.ts";
import type { AuthenticatedCaller, Authenticator } from "./request/authenticate.ts";
import {
  allReceived,
  BODY_BYTES_MAX,
  type BodyRules,
  declaredBytes,
  hashBody,
  largePayloadBytes,
  type Patience,
  readBody,
} from "./request/body.ts";
import { type Deadline, startDeadline } from "./request/deadline.ts";
import { type Answer, type PacedAnswer, refuse, toRefusal } from "./request/errors.ts";
import { createHeldBytes } from "./request/held-bytes.ts";
import { type Idempotency, readIdempotencyKey } from "./request/idempotency.ts";
import { pace } from "./request/large-answer.ts";
import { createRequestLog } from "./request/request-log.ts";
import { createRequestTraces, type RequestTrace } from "./request/request-trace.ts";
import type { ApiRequest, Created, CreationRoute, Route, Routes } from "./request/route.ts";
import { createStoreAccess } from "./request/store-access.ts";
import { nextTurn } from "./request/turns.ts";

export interface App {
  /** What answers at each path, as Bun's router spells them: it goes by the path as it was sent. */
  paths: Record<string, (request: BunRequest) => Response | Promise<Response>>;
  /** For what even the app itself throws. */
  answerBug(error: unknown): Response;
}

/**
 * How long a request may wait for Postgres, the receipt of its body not counted: an outage is answered 503 within
 * 2 s, however long the statements themselves may take.
 */
const STORE_TIME_MS_MAX = 1_800;

/**
 * Beyond these the gateway is overloaded. What was given up but still runs in Postgres counts as in progress. No
 * project may have all of them: slow bodies would be enough to keep everybody else out.
 */
const REQUESTS_IN_PROGRESS_MAX = 2_000;
const REQUESTS_OF_PROJECT_IN_PROGRESS_MAX = 500;
/** In Postgres at once, but for what shares its statements, which always finds a connection. */
const STORE_REQUESTS_MAX = { ofProject: 2, ofAll: 8 };
/** Of reads that may have more bytes than that. The projects take turns at them, and small reads go past them. */
const LARGE_READS_MAX = { ofProject: 1, ofAll: 1 };
const LARGE_READ_BYTES_MIN = 2_097_152;
/** A project with more requests in progress begins and refuses them one at a time: hundreds come, and give up, at once. */
const CROWD_MIN = 64;
/** Eight of the largest batches, and four for one project. */
const LARGE_BODY_BYTES_MAX = { ofProject: 134_217_728, ofAll: 268_435_456, always: 0 };
/** Of answers that are being read from Postgres or wait for their clients. The largest page has 9 MiB. */
const ANSWER_BYTES_MAX = { ofProject: 33_554_432, ofAll: 67_108_864, always: 2_097_152 };

/** An operation at a path as the router spells it, in which the parameters are named `id` and `innerId`. */
interface Served {
  id: OperationId;
  operation: Operation;
  path: string;
  route: Route;
}

/** As they were written; empty where the path has none. */
type PathIds = Pick<ApiRequest, "id" | "innerId">;

/** What a path leads to: an operation, or none of its methods (null), or nothing at all. */
type Target = { allow: string; served: Served | null } | "nothing";

interface Exchange {
  request: Request;
  readonly requestId: string;
  /** By performance.now(). */
  receivedAt: number;
  ids: PathIds;
  target: Target;
  deadline: Deadline;
  /** The one that the answer names. */
  version: ApiVersion;
  /** Null until it is known, as it is for every answer to a valid key that was found in time. */
  rate: RateStanding | null;
  /** Null until it is known who asks for what. */
  trace: RequestTrace | null;
  /** Waits until the event loop has time for this one of its project's many requests; once it is known whose it is. */
  takeTurn(): Promise<void>;
}

export function createApp(options: {
  routes: Routes;
  docs: readonly Page[];
  authenticator: Authenticator;
  rateLimiter: RateLimiter;
  idempotency: Idempotency;
  clock: Clock;
  ids: IdSource;
  log: Log;
  metrics: Metrics;
  traces: Traces;
  storeTimeMsMax: number | undefined;
  patience: Patience;
}): App {
  const { routes, docs, authenticator, rateLimiter, idempotency, clock, ids, log, metrics } = options;
  const { storeTimeMsMax = STORE_TIME_MS_MAX } = options;
  const noteAnswer = createAnswerNotes(metrics);
  const traceRequest = createRequestTraces(options.traces, clock);
  const makeRequestId = () => ids.next(REQUEST_PREFIX, clock.now());
  const requestLog = createRequestLog(log);
  const inProgress = createCounter();
  const largeBodyBytes = createHeldBytes(LARGE_BODY_BYTES_MAX);
  const answerBytes = createHeldBytes(ANSWER_BYTES_MAX);
  const storeAccess = createStoreAccess(STORE_REQUESTS_MAX);
  const largeReads = createStoreAccess(LARGE_READS_MAX);
  metrics.requestsWaiting.follow(() => single(storeAccess.crowdedOut()));

  async function answer(request: Request, ids: PathIds, target: Target): Promise<Response> {
    const receivedAt = performance.now();
    const response = await answerInTime(request, ids, target, receivedAt);
    noteAnswer(operationOf(target), response.status, performance.now() - receivedAt);
    return response;
  }

  async function answerInTime(
    request: Request,
    ids: PathIds,
    target: Target,
    receivedAt: number,
  ): Promise<Response> {
    let requestId: string | null = null;
    const exchange: Exchange = {
      request,
      receivedAt,
      ids,
      target,
      get requestId() {
        requestId ??= makeRequestId();
        return requestId;
      },
      deadline: startDeadline(storeTimeMsMax),
      version: NEWEST_API_VERSION,
      rate: null,
      trace: null,
      takeTurn: async () => undefined,
    };
    try {
      const work = inProgress.count("all", REQUESTS_IN_PROGRESS_MAX, () => decide(exchange));
      const answer = await Promise.race([work, exchange.deadline.passed]);
      noteEnd(exchange, answer.status, null);
      return respond(answer, exchange);
    } catch (error) {
      await exchange.takeTurn();
      const refusal = explain(error, exchange.requestId);
      const answer = refuse(refusal, exchange.requestId, clock.now());
      noteEnd(exchange, answer.status, refusal.code);
      return respond(answer, exchange);
    } finally {
      exchange.deadline.stop();
    }
  }

  function noteEnd(exchange: Exchange, status: number, code: ErrorCode | null): void {
    exchange.trace?.end(status, code);
    const { requestId, target, receivedAt } = exchange;
    const durationMs = performance.now() - receivedAt;
    requestLog.answered({ requestId, operation: operationOf(target), status, code, durationMs });
  }

  async function decide(exchange: Exchange): Promise<PacedAnswer> {
    const caller = await authenticator.authenticate(exchange.request.headers.get("authorization"));
    exchange.version = caller.version;
    const { no } = caller.project;
    return inProgress.count(no, REQUESTS_OF_PROJECT_IN_PROGRESS_MAX, async () => {
      exchange.takeTurn = async () => {
        if (inProgress.of(no) > CROWD_MIN) await nextTurn(no);
      };
      await exchange.takeTurn();
      exchange.rate = await rateLimiter.take(caller, inProgress.of("all"));
      if (exchange.rate.retryAfterMs !== null) throw rateLimitExceeded();
      return answerCaller(caller, exchange);
    });
  }

  /** The checks in the order that the API promises: no answer depends on one that comes later. */
  async function answerCaller(caller: AuthenticatedCaller, exchange: Exchange): Promise<PacedAnswer> {
    const { request, target, ids } = exchange;
    if (target === "nothing") throw resourceNotFound();
    const { served } = target;
    if (served === null) throw methodNotAllowed(target.allow);
    const { operation, route } = served;
    const scope = { projectNo: caller.project.no, environment: caller.environment };
    const trace = traceRequest(exchange, operation, scope);
    exchange.trace = trace;
    if (!isPermitted(caller.scope, operation.resource, accessOf(operation))) {
      throw new ApiError("insufficient_scope", `A key of scope ${caller.scope} may not do this.`);
    }
    exchange.version = versionOf(request.headers.get("service-version"), caller.version);
    const cause = () => ({ requestId: exchange.requestId, keyNo: caller.keyNo });
    const query = queryOf(request.url);
    const apiRequest: ApiRequest = { caller, scope, ...ids, query, cause, trace: trace.context };
    if ("create" in route) {
      return countLargeBody(exchange, route.body, scope.projectNo, () =>
        answerCreation({ ...served, route }, apiRequest, exchange),
      );
    }
    if (route.body === null) {
      await allReceived();
      checkConnected(request);
      return answerFromStore(exchange, scope.projectNo, route, () => route.answer(apiRequest));
    }
    const body = await receive(exchange, route.body, scope.projectNo, options.patience);
    return answerFromStore(exchange, scope.projectNo, route, () => route.answer(apiRequest, body));
  }

  function enterStore<Result>(
    { request, deadline }: Exchange,
    projectNo: ProjectNo,
    act: () => Promise<Result>,
    access = storeAccess,
  ): Promise<Result> {
    return access.enter(projectNo, () => !deadline.isPassed && !request.signal.aborted, act);
  }

  /** What a large answer takes is counted once its turn has come, before it is read. */
  function answerFromStore(
    exchange: Exchange,
    projectNo: ProjectNo,
    { answerBytesMax = 0 }: Route,
    act: () => Promise<Answer>,
  ): Promise<PacedAnswer> {
    const read = () =>
      enterStore(exchange, projectNo, () =>
        answerBytes.hold(projectNo, answerBytesMax, async () => finish(await act(), exchange, projectNo)),
      );
    if (answerBytesMax <= LARGE_READ_BYTES_MIN) return read();
    return enterStore(exchange, projectNo, read, largeReads);
  }

  /** Nobody takes an answer that comes too late. */
  async function finish(answer: Answer, { deadline }: Exchange, projectNo: ProjectNo): Promise<PacedAnswer> {
    const finished = await pace(answer, projectNo);
    if (deadline.isPassed) finished.large?.drop();
    return finished;
  }

  async function answerCreation(
    { operation, path, route }: Served & { route: CreationRoute },
    apiRequest: ApiRequest,
    exchange: Exchange,
  ): Promise<PacedAnswer> {
    const { scope, id, innerId } = apiRequest;
    const { projectNo } = scope;
    const inStore = <Result>(act: () => Promise<Result>) => enterStore(exchange, projectNo, act);
    let act: (key: KeyToTake | null) => Promise<Created>;
    let body: Body | null = null;
    if (route.body === null) {
      await allReceived();
      checkConnected(exchange.request);
      act = (key) => route.create(apiRequest, key);
    } else {
      const received = await receive(exchange, route.body, projectNo, options.patience);
      act = (key) => route.create(apiRequest, key, received);
      body = received;
    }
    const create = route.isShared ? act : (key: KeyToTake | null) => inStore(() => act(key));
    const key = readIdempotencyKey(exchange.request.headers.get("idempotency-key"));
    const carryOut = async () => {
      if (key === null) {
        const created = await create(null);
        if (created === "key_taken") throw new Error("a key is taken that nobody gave");
        return finish(created, exchange, projectNo);
      }
      const replay = (first: FirstAnswer) => inStore(() => route.replay(apiRequest, first));
      const request = `${operation.method} ${path} ${innerId === "" ? id : `${id} ${innerId}`}`;
      const requestHash = await exchange.deadline.exempt(() => hashBody(body, projectNo));
      const keyed = { scope, operation: request, key, requestHash, create, replay };
      return finish(await idempotency.answer(keyed), exchange, projectNo);
    };
    if (isLarge(route.body)) return carryOut();
    return answerBytes.hold(projectNo, route.answerBytesMax ?? largePayloadBytes(body), carryOut);
  }

  /** Of bodies that may be large, the bytes count: held in memory until they are answered, they have no other bound. */
  function countLargeBody(
    { request }: Exchange,
    rules: BodyRules | null,
    projectNo: ProjectNo,
    act: () => Promise<PacedAnswer>,
  ): Promise<PacedAnswer> {
    if (!isLarge(rules)) return act();
    const bytes = Math.min(declaredBytes(request.headers) ?? rules.bytesMax, rules.bytesMax);
    return largeBodyBytes.hold(projectNo, bytes, act, bytes);
  }

  function explain(error: unknown, requestId: string): ApiError {
    const refusal = toRefusal(error);
    metrics.refusals.of({ code: refusal.code }).inc();
    requestLog.refused(error, refusal.code, requestId);
    return refusal;
  }

  function answerOutside(error: ApiError, known: { target?: Target; version?: ApiVersion } = {}): Response {
    const requestId = makeRequestId();
    return respond(refuse(error, requestId, clock.now()), { ...OUTSIDE, ...known, requestId });
  }

  async function answerPage(page: Page, request: Request): Promise<Response> {
    if (request.method !== "GET" && request.method !== "HEAD") {
      const allow = "GET, HEAD";
      return answerOutside(methodNotAllowed(allow), { target: { allow, served: null } });
    }
    const response = await page.answer(request);
    response.headers.set("Request-Id", makeRequestId());
    return response;
  }

  function answerBug(error: unknown): Response {
    const requestId = makeRequestId();
    const refusal = refuse(explain(error, requestId), requestId, clock.now());
    return respond(refusal, { ...OUTSIDE, requestId });
  }

  const elysia = new Elysia({
    strictPath: true,
    normalize: false,
    // Bun's own router would answer HEAD without our headers.
    systemRouter: false,
    // Hosts of three characters and fewer are hosts too.
    handler: { standardHostname: false },
  }).onError(({ error }) => answerBug(error));

  const all = serve(routes);
  for (const path of new Set(all.map((served) => served.path))) {
    const members = membersOf(path, all);
    const allow = allowOf(members);
    for (const served of members) {
      elysia.route(
        served.operation.method,
        path,
        ({ request, params }) => answer(request, idsOf(params), { allow, served }),
        UNPARSED,
      );
    }
    elysia.all(path, ({ request }) => answer(request, NO_IDS, { allow, served: null }), UNPARSED);
  }
  for (const page of docs) elysia.all(page.path, ({ request }) => answerPage(page, request), UNPARSED);

  const answerKnown = (request: BunRequest) =>
    Object.values(request.params).some(isRewritten) ? answerUnknown(request) : elysia.fetch(request);
  const answerUnknown = (request: BunRequest) => answer(request, NO_IDS, "nothing");
  const paths: App["paths"] = {};
  const serveAt = (path: string, act: App["paths"][string]) => {
    const known = path.startsWith("/v2") ? { version: NEWEST_API_VERSION } : {};
    paths[path] = (request) => {
      // Without a usable Host header Bun gives the bare path, in which Elysia would look for a host; of two it takes the first.
      if (request.url.startsWith("/") || request.headers.get("host")?.includes(",")) {
        const error = new ApiError("invalid_request", "One Host header with one host is required.");
        return answerOutside(error, known);
      }
      return act(request);
    };
  };
  // Nothing is told there to anybody, so nobody needs a key to hear it.
  serveAt("/*", () => answerOutside(resourceNotFound()));
  for (const path of ["/v2", "/v2/*"]) serveAt(path, answerUnknown);
  for (const { path } of [...all, ...docs]) serveAt(path, answerKnown);
  return { paths, answerBug };
}

/**
 * Bun's `request.url`, by which Elysia goes, has no dot segments and no backslashes any more, and ends for Elysia before a
 * `#`. Only what stands in the place of a parameter can have held any, since Bun's router compares the rest as it was sent.
 */
function isRewritten(parameter: string | undefined): boolean {
  return parameter === undefined || /^\.{0,2}$|[\\#]/.test(parameter);
}

/** Reads the body; the time that it takes to arrive is the client's and not the store's. */
async function receive(
  { request, deadline }: Exchange,
  rules: BodyRules,
  projectNo: ProjectNo,
  patience: Patience,
): Promise<Body> {
  const body = await deadline.exempt(() => readBody(request, rules, projectNo, patience));
  checkConnected(request);
  return body;
}

/**
 * For whoever has gone nothing is done; nor for whoever sent something behind the request that is not HTTP, because Bun
 * has refused it then with a 400 that looks like the answer to the request itself.
 */
function checkConnected(request: Request): void {
  if (request.signal.aborted) throw invalidRequest("The connection is gone.");
}

const isLarge = (rules: BodyRules | null): rules is BodyRules =>
  rules !== null && rules.bytesMax > BODY_BYTES_MAX;

interface Counter {
  of(name: ProjectNo | "all"): number;
  /**
   * Does something while less than `max` of its name is in progress with it. Throws service_unavailable otherwise. A large
   * answer is in progress until the client has taken it.
   */
  count(name: ProjectNo | "all", max: number, act: () => Promise<PacedAnswer>): Promise<PacedAnswer>;
}

function createCounter(): Counter {
  const counts = new Map<ProjectNo | "all", number>();
  return {
    of: (name) => counts.get(name) ?? 0,
    async count(name, max, act) {
      const before = counts.get(name) ?? 0;
      if (before >= max) throw new ApiError("service_unavailable", "The service is overloaded.");
      counts.set(name, before + 1);
      const end = () => {
        const left = (counts.get(name) ?? 0) - 1;
        if (left > 0) counts.set(name, left);
        else counts.delete(name);
      };
      try {
        const answer = await act();
        if (answer.large === undefined) end();
        else void answer.large.taken.then(end);
        return answer;
      } catch (error) {
        end();
        throw error;
      }
    },
  };
}

/** What is known of a request that no key stands behind. */
const OUTSIDE = { version: null, rate: null, target: "nothing" } as const;

/** Elysia takes bodies as far more than the API does; `readBody` is the only reader. */
const UNPARSED = { parse: "none" } as const;

function respond(
  answer: PacedAnswer,
  {
    requestId,
    version,
    rate,
    target,
  }: Pick<Exchange, "requestId" | "rate" | "target"> & { version: ApiVersion | null },
): Response {
  const headers: Record<string, string> = {
    "Content-Type": "application/json",
    "Request-Id": requestId,
    ...(rate === null ? {} : rateHeaders(rate)),
    ...answer.headers,
  };
  if (version !== null) headers["Service-Version"] = version;
  if (answer.status === 405 && target !== "nothing") headers.Allow = target.allow;
  return new Response(answer.large?.stream ?? answer.text, { status: answer.status, headers });
}

function serve(routes: Routes): Served[] {
  return (Object.keys(OPERATIONS) as OperationId[]).map((id) => {
    const operation = OPERATIONS[id];
    const path = operation.path.replace(/\{\w+\}/, ":id").replace(/\{\w+\}/, ":innerId");
    return { id, operation, path, route: routes[id] };
  });
}

/** A path that can be read as another's with a parameter, as /v2/jobs/batch can, has the methods of both. */
function membersOf(path: string, all: readonly Served[]): Served[] {
  const own = all.filter((served) => served.path === path);
  const methods = own.map(({ operation }) => operation.method);
  const others = all.filter((served) => {
    const pattern = new RegExp(`^${served.path.replaceAll(/:\w+/g, "[^/]+")}$`);
    return served.path !== path && pattern.test(path) && !methods.includes(served.operation.method);
  });
  return [...own, ...others];
}

function allowOf(members: readonly Served[]): string {
  const methods = members.flatMap(({ operation: { method } }) =>
    method === "GET" ? ["GET", "HEAD"] : [method],
  );
  return methods.sort().join(", ");
}

function operationOf(target: Target): OperationId | null {
  return target === "nothing" ? null : (target.served?.id ?? null);
}

function methodNotAllowed(allow: string): ApiError {
  return new ApiError("method_not_allowed", `This path takes ${allow}.`);
}

/**
 * A path without a parameter has no params, and an id that is not even percent-encoded properly comes as null, which
 * is as unknown as any other malformed one.
 */
function idsOf(params: unknown): PathIds {
  const { id, innerId } = (params ?? {}) as { [Name in keyof PathIds]?: string | null };
  return { id: id ?? "", innerId: innerId ?? "" };
}

const NO_IDS: PathIds = { id: "", innerId: "" };

function queryOf(url: string): string {
  const start = url.indexOf("?");
  return start === -1 ? "" : url.slice(start + 1);
}
