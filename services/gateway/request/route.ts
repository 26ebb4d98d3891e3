import type { Body } from "../../../shared/contract/json.ts";
import type { OperationId, Operations } from "../../../shared/contract/operations/all.ts";
import type { Resource } from "../../../shared/domain/key.ts";
import type { Environment, ProjectNo } from "../../../shared/domain/scope.ts";
import type { TraceContext } from "../../../shared/domain/trace.ts";
import type { KeyCause } from "../../../shared/store/resources/audit.ts";
import type { FirstAnswer, KeyToTake } from "../../../shared/store/resources/idempotency.ts";
import type { AuthenticatedCaller } from "./authenticate.ts";
import type { BodyRules } from "./body.ts";
import type { Answer } from "./errors.ts";

/** What a route knows of a request. */
export interface ApiRequest {
  caller: AuthenticatedCaller;
  /** Whose rows the route may see. */
  scope: { projectNo: ProjectNo; environment: Environment };
  /** The id in the path as it was written; empty where the path has none. */
  id: string;
  /** The second id in the path, of something that belongs to the first; empty where the path has none. */
  innerId: string;
  /** The query string as it was written. */
  query: string;
  /**
   * What a change is recorded under. The request's id is made when it is first asked for: a job's id that is taken from it
   * tells when the job was accepted, however slowly the request arrived.
   */
  cause(): KeyCause;
  /** Where in a trace stands what this request makes; null if nobody has given it a place. */
  trace(): TraceContext | null;
}

/**
 * Answers one operation. It validates, calls one function and answers; what it throws becomes a refusal. A body where
 * none is defined is ignored.
 */
export type Route = PlainRoute | UpdateRoute | CreationRoute;

/** What the bytes of an answer that can be large are bounded by, so that they are counted before they are read. */
interface Weighed {
  /** Left out where it is small, or no larger than the payloads of the request. */
  answerBytesMax?: number;
}

interface PlainRoute extends Weighed {
  body: null;
  answer(request: ApiRequest): Promise<Answer>;
}

interface UpdateRoute extends Weighed {
  body: BodyRules;
  answer(request: ApiRequest, body: Body): Promise<Answer>;
}

/** A POST honours an Idempotency-Key: `replay` renders what was answered to the first request that had it. */
export type CreationRoute = Weighed & {
  /** Whether `create` shares its statements with other requests, so that it needs no way to Postgres of its own. */
  isShared?: true;
  replay(request: ApiRequest, first: FirstAnswer): Promise<Answer>;
} & (BodilessCreation | BodiedCreation);

interface BodilessCreation {
  body: null;
  create(request: ApiRequest, key: KeyToTake | null): Promise<Created>;
}

interface BodiedCreation {
  body: BodyRules;
  create(request: ApiRequest, key: KeyToTake | null, body: Body): Promise<Created>;
}

/** A key is taken only where one was given. */
export type Created = Answer | "key_taken";

/** One route for each operation of the contract: one that is missing, or one too many, does not compile. */
export type Routes = RoutesOf<Resource>;

/** Those of one resource. */
export type RoutesOf<Kind extends Resource> = {
  [Id in OperationId as Operations[Id]["resource"] extends Kind ? Id : never]: RouteOf<Operations[Id]>;
};

type RouteOf<Asked extends Operations[OperationId]> = Asked["method"] extends "POST"
  ? CreationRoute & { body: BodyOf<Asked> }
  : Asked["body"] extends null
    ? PlainRoute
    : UpdateRoute;

type BodyOf<Asked extends Operations[OperationId]> = Asked["body"] extends null ? null : BodyRules;
