import type { Body } from "../../../shared/contract/json.ts";
import type { OperationId, Operations } from "../../../shared/contract/operations/all.ts";
import type { Resource } from "../../../shared/domain/key.ts";
import type { Environment, ProjectNo } from "../../../shared/domain/scope.ts";
import type { TraceContext } from "../../../shared/domain/trace.ts";
import type { KeyCause } from "../../../shared/store/resources/audit.ts";
import type { FirstAnswer, KeyToTake } from "../../../shared/store/resources/idempotency.ts";
import type { ApiAnswer } from "../request/answer.ts";
import type { AuthenticatedCaller } from "../request/authenticate.ts";
import type { BodyRules } from "../request/body.ts";

/** A request as a route sees it. */
export interface ApiRequest {
  caller: AuthenticatedCaller;
  /** The project and environment whose rows the route may see. */
  scope: { projectNo: ProjectNo; environment: Environment };
  /** The id in the path as it was written; empty where the path has none. */
  id: string;
  /** The second id in the path, of something that belongs to the first; empty where the path has none. */
  innerId: string;
  /** The query string as it was written. */
  query: string;
  /**
   * The request and the key that a change is recorded under. The request's id is made when it is first asked for: a job's id
   * that is taken from it tells when the job was accepted, however slowly the request arrived.
   */
  cause(): KeyCause;
  /** The place in a trace for what this request makes; null if it has none. */
  trace(): TraceContext | null;
}

/** Answers one operation: it validates, calls one function and answers. An ApiError that it throws becomes a refusal. */
export type Route = PlainRoute | CreationRoute;

interface RouteBounds {
  /** Null for an operation without a body. A body that is sent all the same is ignored. */
  body: BodyRules | null;
  /** Bounds the bytes of an answer that can be large. Left out for an answer no larger than the payloads of its request. */
  answerBytesMax?: number;
}

interface PlainRoute extends RouteBounds {
  answer(request: ApiRequest, body: Body): Promise<ApiAnswer>;
}

/** A POST honours an Idempotency-Key: `replay` renders the answer to the first request with the key again. */
export interface CreationRoute extends RouteBounds {
  /** True if `create` shares its statements with other requests, so that it needs no turn at Postgres of its own. */
  isShared?: true;
  create(request: ApiRequest, key: KeyToTake | null, body: Body): Promise<Created>;
  replay(request: ApiRequest, first: FirstAnswer): Promise<ApiAnswer>;
}

/** `key_taken` is possible only if a key was given. */
export type Created = ApiAnswer | "key_taken";

/** One route for each operation of the contract: one that is missing, or one too many, does not compile. */
export type Routes = RoutesOf<Resource>;

/** The routes of one resource. */
export type RoutesOf<Kind extends Resource> = {
  [Id in OperationId as Operations[Id]["resource"] extends Kind ? Id : never]: RouteOf<Operations[Id]>;
};

type RouteOf<Asked extends Operations[OperationId]> = (Asked["method"] extends "POST"
  ? CreationRoute
  : PlainRoute) & { body: Asked["body"] extends null ? null : BodyRules };
