import { randomBytes } from "node:crypto";
import { Elysia } from "elysia";
import type { Body } from "../../shared/contract/json.ts";
import { ApiError, resourceNotFound } from "../../shared/domain/errors.ts";
import { createIdSource, REQUEST_PREFIX } from "../../shared/domain/ids.ts";
import { isPermitted, type Resource } from "../../shared/domain/key.ts";
import type { Environment, ProjectNo } from "../../shared/domain/scope.ts";
import { type ApiVersion, NEWEST_API_VERSION, versionOf } from "../../shared/domain/version.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Log } from "../../shared/platform/log.ts";
import type { AuthenticatedCaller, Authenticator } from "./authenticate.ts";
import { type BodyRules, readBody } from "./body.ts";
import { type Deadline, startDeadline } from "./deadline.ts";
import { type Answer, refuse, toRefusal } from "./errors.ts";
import { checkIdempotencyKey } from "./idempotency.ts";

/** What a route knows of a request. */
export interface ApiRequest {
  caller: AuthenticatedCaller;
  /** Whose rows the route may see. */
  scope: { projectNo: ProjectNo; environment: Environment };
  /** The id in the path as it was written; empty where the path has none. */
  id: string;
  /** The query string as it was written. */
  query: string;
}

interface RouteShape {
  method: "GET" | "POST" | "DELETE";
  /** At most one parameter, named `id`. */
  path: string;
  resource: Resource;
}

/** One operation of the API. It validates, calls one function and answers; what it throws becomes a refusal. */
export type Route =
  | (RouteShape & { body: BodyRules; answer(request: ApiRequest, body: Body): Promise<Answer> })
  /** A body where none is defined is ignored. */
  | (RouteShape & { body: null; answer(request: ApiRequest): Promise<Answer> });

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

/** What a path leads to: a route, or none of its methods (null), or nothing at all. */
type Target = { allow: string; route: Route | null } | "nothing";

interface Exchange {
  request: Request;
  requestId: string;
  id: string;
  target: Target;
  deadline: Deadline;
  /** The one that the answer names. */
  version: ApiVersion;
}

export function createApp(options: {
  routes: readonly Route[];
  authenticator: Authenticator;
  clock: Clock;
  log: Log;
}): App {
  const { routes, authenticator, clock, log } = options;
  const requestIds = createIdSource(randomBytes);
  const makeRequestId = () => requestIds.next(REQUEST_PREFIX, clock.now());
  const inProgress = createCounter();

  async function answer(request: Request, id: string, target: Target): Promise<Response> {
    const exchange: Exchange = {
      request,
      id,
      target,
      requestId: makeRequestId(),
      deadline: startDeadline(STORE_TIME_MS_MAX),
      version: NEWEST_API_VERSION,
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
    return inProgress.count(caller.project.no, REQUESTS_OF_PROJECT_IN_PROGRESS_MAX, () =>
      answerCaller(caller, exchange),
    );
  }

  function explain(error: unknown, requestId: string): ApiError {
    const refusal = toRefusal(error);
    if (refusal.code === "internal_error") log.error({ err: error, requestId }, "request.failed");
    return refusal;
  }

  function answerOutside(error: ApiError): Response {
    const requestId = makeRequestId();
    return respond(refuse(error, requestId, clock.now()), { requestId, version: null, target: "nothing" });
  }

  function answerBug(error: unknown): Response {
    const requestId = makeRequestId();
    const refusal = refuse(explain(error, requestId), requestId, clock.now());
    return respond(refusal, { requestId, version: null, target: "nothing" });
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

/** The checks in the order that the API promises: no answer depends on one that comes later. */
async function answerCaller(caller: AuthenticatedCaller, exchange: Exchange): Promise<Answer> {
  const { request, target, id, deadline } = exchange;
  const { headers } = request;
  if (target === "nothing") throw resourceNotFound();
  const { route } = target;
  if (route === null) throw new ApiError("method_not_allowed", `This path takes ${target.allow}.`);
  if (!isPermitted(caller.scope, route.resource, route.method === "GET" ? "read" : "write")) {
    throw new ApiError("insufficient_scope", `A key of scope ${caller.scope} may not do this.`);
  }
  exchange.version = versionOf(headers.get("service-version"), caller.version);
  const scope = { projectNo: caller.project.no, environment: caller.environment };
  const apiRequest = { caller, scope, id, query: queryOf(request.url) };
  if (route.body === null) {
    if (route.method === "POST") checkIdempotencyKey(headers.get("idempotency-key"));
    return route.answer(apiRequest);
  }
  deadline.pause();
  const body = await readBody(request, route.body);
  deadline.resume();
  checkIdempotencyKey(headers.get("idempotency-key"));
  return route.answer(apiRequest, body);
}

interface Counter {
  /** Does something while its name has fewer than `max` in progress. Throws service_unavailable otherwise. */
  count<Result>(name: ProjectNo | "all", max: number, act: () => Promise<Result>): Promise<Result>;
}

function createCounter(): Counter {
  const counts = new Map<ProjectNo | "all", number>();
  return {
    async count(name, max, act) {
      const before = counts.get(name) ?? 0;
      if (before >= max) throw new ApiError("service_unavailable", "The service is overloaded.");
      counts.set(name, before + 1);
      try {
        return await act();
      } finally {
        const left = (counts.get(name) ?? 0) - 1;
        if (left > 0) counts.set(name, left);
        else counts.delete(name);
      }
    },
  };
}

/** Elysia takes bodies as far more than the API does; `readBody` is the only reader. */
const UNPARSED = { parse: "none" } as const;

function respond(
  answer: Answer,
  { requestId, version, target }: { requestId: string; version: ApiVersion | null; target: Target },
): Response {
  const headers: Record<string, string> = {
    "Content-Type": "application/json",
    "Request-Id": requestId,
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
