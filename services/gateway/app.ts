import { Elysia } from "elysia";
import type { Body } from "../../shared/contract/json.ts";
import { ApiError, resourceNotFound } from "../../shared/domain/errors.ts";
import { type IdSource, REQUEST_PREFIX } from "../../shared/domain/ids.ts";
import { isPermitted, type Resource } from "../../shared/domain/key.ts";
import type { Environment, ProjectNo } from "../../shared/domain/scope.ts";
import { type ApiVersion, NEWEST_API_VERSION, versionOf } from "../../shared/domain/version.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Log } from "../../shared/platform/log.ts";
import type { KeyCause } from "../../shared/store/audit.ts";
import type { FirstAnswer, KeyToTake } from "../../shared/store/idempotency.ts";
import type { AuthenticatedCaller, Authenticator } from "./authenticate.ts";
import { BODY_BYTES_MAX, type BodyRules, readBody } from "./body.ts";
import { type Deadline, startDeadline } from "./deadline.ts";
import { type Answer, refuse, toRefusal } from "./errors.ts";
import { type Idempotency, readIdempotencyKey } from "./idempotency.ts";
import { type RateLimiter, type RateStanding, rateHeaders, rateLimitExceeded } from "./rate-limit.ts";

/** What a route knows of a request. */
export interface ApiRequest {
  caller: AuthenticatedCaller;
  /** Whose rows the route may see. */
  scope: { projectNo: ProjectNo; environment: Environment };
  /** The id in the path as it was written; empty where the path has none. */
  id: string;
  /** The query string as it was written. */
  query: string;
  /**
   * What a change is recorded under. The request's id is made when it is first asked for: a job's id that is taken from it
   * tells when the job was accepted, however slowly the request arrived.
   */
  cause(): KeyCause;
}

interface RouteShape {
  /** At most one parameter, named `id`. */
  path: string;
  resource: Resource;
}

/**
 * One operation of the API. It validates, calls one function and answers; what it throws becomes a refusal. A body where
 * none is defined is ignored.
 */
export type Route =
  | (RouteShape & { method: "GET" | "DELETE"; body: null; answer(request: ApiRequest): Promise<Answer> })
  | (RouteShape & {
      method: "PATCH";
      body: BodyRules;
      answer(request: ApiRequest, body: Body): Promise<Answer>;
    })
  | CreationRoute;

/** A POST honours an Idempotency-Key: `replay` renders what was answered to the first request that had it. */
export type CreationRoute = RouteShape & {
  method: "POST";
  replay(request: ApiRequest, first: FirstAnswer): Promise<Answer>;
} & (
    | { body: null; create(request: ApiRequest, key: KeyToTake | null): Promise<Created> }
    | { body: BodyRules; create(request: ApiRequest, key: KeyToTake | null, body: Body): Promise<Created> }
  );

/** A key is taken only where one was given. */
export type Created = Answer | "key_taken";

export interface App {
  answer(request: Request): Response | Promise<Response>;
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
/** Eight of the largest batches, and four for one project. */
const LARGE_BODY_BYTES_MAX = 268_435_456;
const LARGE_BODY_BYTES_OF_PROJECT_MAX = 134_217_728;

/** What a path leads to: a route, or none of its methods (null), or nothing at all. */
type Target = { allow: string; route: Route | null } | "nothing";

interface Exchange {
  request: Request;
  readonly requestId: string;
  id: string;
  target: Target;
  deadline: Deadline;
  /** The one that the answer names. */
  version: ApiVersion;
  /** Null until it is known, as it is for every answer to a valid key that was found in time. */
  rate: RateStanding | null;
}

export function createApp(options: {
  routes: readonly Route[];
  authenticator: Authenticator;
  rateLimiter: RateLimiter;
  idempotency: Idempotency;
  clock: Clock;
  ids: IdSource;
  log: Log;
}): App {
  const { routes, authenticator, rateLimiter, idempotency, clock, ids, log } = options;
  const makeRequestId = () => ids.next(REQUEST_PREFIX, clock.now());
  const inProgress = createCounter();
  const largeBodyBytes = createCounter();

  async function answer(request: Request, id: string, target: Target): Promise<Response> {
    let requestId: string | null = null;
    const exchange: Exchange = {
      request,
      id,
      target,
      get requestId() {
        requestId ??= makeRequestId();
        return requestId;
      },
      deadline: startDeadline(STORE_TIME_MS_MAX),
      version: NEWEST_API_VERSION,
      rate: null,
    };
    try {
      const work = inProgress.count("all", REQUESTS_IN_PROGRESS_MAX, () => decide(exchange));
      return respond(await Promise.race([work, exchange.deadline.passed]), exchange);
    } catch (error) {
      return respond(refuse(explain(error, exchange.requestId), exchange.requestId, clock.now()), exchange);
    } finally {
      exchange.deadline.stop();
    }
  }

  async function decide(exchange: Exchange): Promise<Answer> {
    const caller = await authenticator.authenticate(exchange.request.headers.get("authorization"));
    exchange.version = caller.version;
    return inProgress.count(caller.project.no, REQUESTS_OF_PROJECT_IN_PROGRESS_MAX, async () => {
      exchange.rate = await rateLimiter.take(caller, inProgress.of("all"));
      if (exchange.rate.retryAfterMs !== null) throw rateLimitExceeded();
      return answerCaller(caller, exchange);
    });
  }

  /** The checks in the order that the API promises: no answer depends on one that comes later. */
  async function answerCaller(caller: AuthenticatedCaller, exchange: Exchange): Promise<Answer> {
    const { request, target, id } = exchange;
    if (target === "nothing") throw resourceNotFound();
    const { route } = target;
    if (route === null) throw new ApiError("method_not_allowed", `This path takes ${target.allow}.`);
    if (!isPermitted(caller.scope, route.resource, route.method === "GET" ? "read" : "write")) {
      throw new ApiError("insufficient_scope", `A key of scope ${caller.scope} may not do this.`);
    }
    exchange.version = versionOf(request.headers.get("service-version"), caller.version);
    const scope = { projectNo: caller.project.no, environment: caller.environment };
    const cause = () => ({ requestId: exchange.requestId, keyNo: caller.keyNo });
    const apiRequest: ApiRequest = { caller, scope, id, query: queryOf(request.url), cause };
    if (route.method === "POST") {
      return countLargeBody(exchange, route.body, scope.projectNo, () =>
        answerCreation(route, apiRequest, exchange),
      );
    }
    if (route.method === "PATCH") return route.answer(apiRequest, await receive(exchange, route.body));
    return route.answer(apiRequest);
  }

  async function answerCreation(
    route: CreationRoute,
    apiRequest: ApiRequest,
    exchange: Exchange,
  ): Promise<Answer> {
    let create: (key: KeyToTake | null) => Promise<Created>;
    let bodyText: string | null = null;
    if (route.body === null) {
      create = (key) => route.create(apiRequest, key);
    } else {
      const body = await receive(exchange, route.body);
      create = (key) => route.create(apiRequest, key, body);
      bodyText = body.text;
    }
    const key = readIdempotencyKey(exchange.request.headers.get("idempotency-key"));
    if (key !== null) {
      const { scope, id } = apiRequest;
      const operation = `${route.method} ${route.path} ${id}`;
      const replay = (first: FirstAnswer) => route.replay(apiRequest, first);
      return idempotency.answer({ scope, operation, key, bodyText, create, replay });
    }
    const created = await create(null);
    if (created === "key_taken") throw new Error("a key is taken that nobody gave");
    return created;
  }

  /** Of bodies that may be large, the bytes count: held in memory until they are answered, they have no other bound. */
  function countLargeBody(
    { request }: Exchange,
    rules: BodyRules | null,
    projectNo: ProjectNo,
    act: () => Promise<Answer>,
  ): Promise<Answer> {
    if (rules === null || rules.bytesMax <= BODY_BYTES_MAX) return act();
    const declared = request.headers.get("content-length");
    const bytes = Math.min(declared === null ? rules.bytesMax : Number(declared), rules.bytesMax);
    return largeBodyBytes.count(
      "all",
      LARGE_BODY_BYTES_MAX,
      () => largeBodyBytes.count(projectNo, LARGE_BODY_BYTES_OF_PROJECT_MAX, act, bytes),
      bytes,
    );
  }

  function explain(error: unknown, requestId: string): ApiError {
    const refusal = toRefusal(error);
    if (refusal.code === "internal_error") log.error({ err: error, requestId }, "request.failed");
    return refusal;
  }

  function answerOutside(error: ApiError): Response {
    const requestId = makeRequestId();
    return respond(refuse(error, requestId, clock.now()), { ...OUTSIDE, requestId });
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

  for (const [path, members] of Map.groupBy(routes, (route) => route.path)) {
    const allow = allowOf(members);
    for (const route of members) {
      elysia.route(
        route.method,
        path,
        ({ request, params }) => answer(request, idOf(params), { allow, route }),
        UNPARSED,
      );
    }
    elysia.all(path, ({ request }) => answer(request, "", { allow, route: null }), UNPARSED);
  }
  for (const path of ["/v2", "/v2/*"]) {
    elysia.all(path, ({ request }) => answer(request, "", "nothing"), UNPARSED);
  }
  // Nothing is told there to anybody, so nobody needs a key to hear it.
  elysia.all("/*", () => answerOutside(resourceNotFound()), UNPARSED);

  return {
    answer(request) {
      // Without a usable Host header Bun gives the bare path, in which Elysia would look for a host.
      if (request.url.startsWith("/")) {
        return answerOutside(new ApiError("invalid_request", "A Host header with a host is required."));
      }
      return elysia.fetch(request);
    },
    answerBug,
  };
}

/** Reads the body; the time that it takes to arrive is the client's and not the store's. */
async function receive({ request, deadline }: Exchange, rules: BodyRules): Promise<Body> {
  deadline.pause();
  const body = await readBody(request, rules);
  deadline.resume();
  return body;
}

interface Counter {
  of(name: ProjectNo | "all"): number;
  /** Does something while less than `max` of its name is in progress with it. Throws service_unavailable otherwise. */
  count<Result>(
    name: ProjectNo | "all",
    max: number,
    act: () => Promise<Result>,
    weight?: number,
  ): Promise<Result>;
}

function createCounter(): Counter {
  const counts = new Map<ProjectNo | "all", number>();
  return {
    of: (name) => counts.get(name) ?? 0,
    async count(name, max, act, weight = 1) {
      const before = counts.get(name) ?? 0;
      if (before + weight > max) throw new ApiError("service_unavailable", "The service is overloaded.");
      counts.set(name, before + weight);
      try {
        return await act();
      } finally {
        const left = (counts.get(name) ?? 0) - weight;
        if (left > 0) counts.set(name, left);
        else counts.delete(name);
      }
    },
  };
}

/** What is known of a request that no key stands behind. */
const OUTSIDE = { version: null, rate: null, target: "nothing" } as const;

/** Elysia takes bodies as far more than the API does; `readBody` is the only reader. */
const UNPARSED = { parse: "none" } as const;

function respond(
  answer: Answer,
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
  return new Response(answer.text, { status: answer.status, headers });
}

function allowOf(routes: readonly Route[]): string {
  const methods = routes.flatMap(({ method }) => (method === "GET" ? ["GET", "HEAD"] : [method]));
  return methods.sort().join(", ");
}

/**
 * A path without a parameter has no params, and an id that is not even percent-encoded properly comes as null, which
 * is as unknown as any other malformed one.
 */
function idOf(params: unknown): string {
  return (params as { id?: string | null } | undefined)?.id ?? "";
}

function queryOf(url: string): string {
  const start = url.indexOf("?");
  return start === -1 ? "" : url.slice(start + 1);
}
