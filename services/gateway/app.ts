import type { BunRequest } from "bun";
import { Elysia } from "elysia";
import { ApiError, resourceNotFound } from "../../shared/domain/errors.ts";
import { type IdSource, REQUEST_PREFIX } from "../../shared/domain/ids.ts";
import { NEWEST_API_VERSION } from "../../shared/domain/version.ts";
import type { ConsolePages } from "../console/pages.ts";
import type { DocsPage } from "./docs-pages.ts";
import { methodNotAllowed } from "./request/errors.ts";
import { createExchanges, type ExchangeOptions, type PathIds } from "./request/exchange.ts";
import type { Routes } from "./routes/route.ts";
import { tabulateRoutes } from "./routes/route-table.ts";

export interface App {
  /** The handler of each path. Bun's router matches paths as they were sent. */
  paths: Record<string, (request: BunRequest) => Response | Promise<Response>>;
  /** Answers an error that the app itself throws. */
  answerBug(error: unknown): Response;
}

export function createApp(
  options: Omit<ExchangeOptions, "makeRequestId"> & {
    routes: Routes;
    docs: readonly DocsPage[];
    console: ConsolePages;
    ids: IdSource;
  },
): App {
  const { routes, docs, console: pages, ids, clock } = options;
  const makeRequestId = () => ids.next(REQUEST_PREFIX, clock.now());
  const { answer, refuseOutside } = createExchanges({ ...options, makeRequestId });

  async function answerPage(page: DocsPage, request: Request): Promise<Response> {
    if (request.method !== "GET" && request.method !== "HEAD") {
      const allow = "GET, HEAD";
      return refuseOutside(methodNotAllowed(allow), { allow });
    }
    const response = await page.answer(request);
    response.headers.set("Request-Id", makeRequestId());
    return response;
  }

  /** Answers with the console's file or view at the path. Elsewhere browsers get a page, all others the refusal. */
  async function answerConsole(request: Request): Promise<Response> {
    const isRead = request.method === "GET" || request.method === "HEAD";
    const response = isRead ? await pages.answer(request, new URL(request.url).pathname) : null;
    if (response === null) {
      const refusal = refuseOutside(resourceNotFound());
      refusal.headers.set("Vary", "Accept");
      return refusal;
    }
    response.headers.set("Request-Id", makeRequestId());
    return response;
  }

  const answerBug = (error: unknown) => refuseOutside(error);

  const elysia = new Elysia({
    strictPath: true,
    normalize: false,
    // Bun's own router would answer HEAD without our headers.
    systemRouter: false,
    // Elysia answers 404 to host names of up to three characters; the service accepts them.
    handler: { standardHostname: false },
  }).onError(({ error }) => answerBug(error));

  const served = tabulateRoutes(routes);
  for (const { path, operations, allow } of served) {
    for (const operation of operations) {
      const match = { allow, served: operation };
      elysia.route(
        operation.operation.method,
        path,
        ({ request, params }) => answer(request, idsOf(params), match),
        UNPARSED,
      );
    }
    const mismatch = { allow, served: null };
    const refuse = ({ request }: { request: Request }) => answer(request, NO_IDS, mismatch);
    elysia.all(path, refuse, UNPARSED);
    // Elysia looks first for a path that has the method. So without a route of its own the POST of
    // /v2/schedules/by-name/run would run a schedule of the id by-name.
    for (const method of WRITES) {
      if (operations.every(({ operation }) => operation.method !== method))
        elysia.route(method, path, refuse, UNPARSED);
    }
  }
  for (const page of docs) elysia.all(page.path, ({ request }) => answerPage(page, request), UNPARSED);

  const answerKnown = (request: BunRequest) =>
    Object.values(request.params).some(isRewritten) ? answerUnknown(request) : elysia.fetch(request);
  const answerNamed = (request: BunRequest) =>
    isRewrittenName(request) ? answerUnknown(request) : elysia.fetch(request);
  const answerUnknown = (request: BunRequest) => answer(request, NO_IDS, "nothing");
  const paths: App["paths"] = {};
  const serveAt = (path: string, act: App["paths"][string]) => {
    const known = path.startsWith("/v2") ? { version: NEWEST_API_VERSION } : {};
    paths[path] = (request) => {
      // Without a usable Host header Bun gives the bare path, in which Elysia would look for a host. Of two hosts Bun
      // takes the first.
      if (request.url.startsWith("/") || request.headers.get("host")?.includes(",")) {
        const error = new ApiError("invalid_request", "One Host header with one host is required.");
        return refuseOutside(error, known);
      }
      return act(request);
    };
  };
  // The console and unknown paths outside of /v2 tell nothing, so they ask for no key.
  for (const path of ["/", "/*"]) serveAt(path, answerConsole);
  for (const path of ["/v2", "/v2/*"]) serveAt(path, answerUnknown);
  for (const { path } of docs) serveAt(path, answerKnown);
  for (const { path, operations, allow } of served) {
    const post = operations.find(({ operation }) => operation.method === "POST");
    if (post === undefined || path.includes(":")) {
      serveAt(path, path.includes(BY_NAME) ? answerNamed : answerKnown);
      continue;
    }
    // Clients create jobs thousands of times a second, and Elysia has nothing to find here.
    const match = { allow, served: post };
    serveAt(path, (request) =>
      request.method === "POST" ? answer(request, NO_IDS, match) : answerKnown(request),
    );
  }
  return { paths, answerBug };
}

/** Elysia would read more kinds of bodies than the API takes; `readBody` is the only reader. */
const UNPARSED = { parse: "none" } as const;

/**
 * Whether the path that Elysia sees may differ from the path that was sent. Elysia goes by Bun's `request.url`, in which dot
 * segments are resolved and backslashes replaced, and reads it up to a `#`. Only a parameter can hold any of these, since
 * Bun's router compares the rest of the path as it was sent.
 */
function isRewritten(parameter: string | undefined): boolean {
  return parameter === undefined || IS_RESOLVED.test(parameter) || parameter.includes("#");
}

const IS_RESOLVED = /^\.{0,2}$|\\/;

/** The rest of such a path is a name that a customer chose, with any characters. */
const BY_NAME = "/by-name/";

/** `isRewritten` for a path with a name, which may hold a `#` like any other character if it came percent-encoded. */
function isRewrittenName({ params, url }: BunRequest): boolean {
  return (
    url.includes("#") || Object.values(params).some((name) => name === undefined || IS_RESOLVED.test(name))
  );
}

/**
 * The ids of a path. A path without a parameter has no params. An id with broken percent-encoding comes as null and is as
 * unknown as any malformed one.
 */
function idsOf(params: unknown): PathIds {
  const { id, innerId } = (params ?? {}) as { [Name in keyof PathIds]?: string | null };
  return { id: id ?? "", innerId: innerId ?? "" };
}

const WRITES = ["POST", "PUT", "PATCH", "DELETE"] as const;
const NO_IDS: PathIds = { id: "", innerId: "" };
