import { expect } from "bun:test";
import fc from "fast-check";
import type { Answer, TestGateway, TestProject } from "../support/gateway.ts";
import { CONFLICT, type Env, type ReferenceModel, type Refused } from "./reference-model.ts";

/** The service and the one project of a sequence. */
export interface Service {
  gateway: TestGateway;
  project: TestProject;
  nodeId: number;
  /** Notes every kind of answer, so that the test knows what its sequences have reached. */
  note(answer: string): void;
  /** The last instant at which a step may begin, by `performance.now()`. */
  endsAt: number;
  /** Repeats the last POST that had an Idempotency-Key. */
  repeat(): Promise<void>;
}

/** One step of a sequence. It acts on the service and on the model, and both must agree. */
export class Step implements fc.AsyncCommand<ReferenceModel, Service> {
  constructor(
    private readonly text: string,
    private readonly act: (model: ReferenceModel, service: Service) => Promise<void>,
    /** False for a step that has nothing to act on yet; most such steps are left out. */
    readonly check: (model: Readonly<ReferenceModel>) => boolean = () => true,
  ) {}
  async run(model: ReferenceModel, service: Service): Promise<void> {
    if (performance.now() < service.endsAt) await this.act(model, service);
  }
  toString = () => this.text;
}

interface Request {
  env: Env;
  method: string;
  path: string;
  body?: object;
  headers?: Record<string, string>;
}

/** Answers null if the gateway's answer is the 429 that the model expects. */
export async function ask(model: ReferenceModel, service: Service, request: Request): Promise<Answer | null> {
  const { env, method, path, body, headers } = request;
  const tooMany = model.countRequest(env);
  const answer = await service.gateway.call(method, path, {
    key: service.project[env],
    ...(body === undefined ? {} : { body }),
    ...(headers === undefined ? {} : { headers }),
  });
  expect(answer.headers.get("ratelimit-limit")).toBe(String(model.terms.rate));
  expect(answer.headers.get("ratelimit-remaining")).toBe(String(model.terms.rate - model.requests[env]));
  expect(answer.headers.has("retry-after")).toBe(answer.status === 429);
  service.note(answer.status < 300 ? `${method} ${answer.status}` : `${method} ${codeOf(answer)}`);
  if (answer.headers.has("idempotent-replayed")) service.note(`${method} replayed`);
  if (tooMany === null) return answer;
  expectRefusal(answer, tooMany);
  return null;
}

const codeOf = ({ text }: Answer) => (JSON.parse(text) as { error: { code: string } }).error.code;

export function expectRefusal(answer: Answer, { status, code, param }: Refused): void {
  const { error } = JSON.parse(answer.text) as { error: { code: string; param?: string } };
  expect({ status: answer.status, code: error.code, param: error.param }).toEqual({ status, code, param });
}

interface Keyed {
  key: string | null;
  operation: string;
  /** A text that is the same for the same JSON value. */
  body: string;
}

/**
 * A POST with or without an Idempotency-Key. `decide` asks the model, which must not change unless the request
 * succeeds; `apply` tells the model what was made.
 */
export async function create(
  model: ReferenceModel,
  service: Service,
  request: Request,
  { key, operation, body }: Keyed,
  decide: () => Refused | null,
  apply: (answer: Answer) => void,
): Promise<void> {
  if (key !== null) {
    service.repeat = () => create(model, service, request, { key, operation, body }, decide, apply);
  }
  const headers = key === null ? {} : { "Idempotency-Key": key };
  const answer = await ask(model, service, { ...request, headers });
  if (answer === null) return;
  const name = JSON.stringify([request.env, operation, key]);
  const first = key === null ? undefined : model.firstAnswers.get(name);
  expect(answer.headers.get("idempotent-replayed")).toBe(first?.body === body ? "true" : null);
  if (first !== undefined) {
    if (first.body !== body) return expectRefusal(answer, CONFLICT);
    expect({ status: answer.status, text: answer.text }).toEqual({ status: 201, text: first.text });
    return;
  }
  const refused = decide();
  if (refused !== null) return expectRefusal(answer, refused);
  expect(answer.status).toBe(201);
  apply(answer);
  if (key !== null) model.firstAnswers.set(name, { body, text: answer.text });
}

export const env = fc.constantFrom<Env[]>("production", "production", "development");
export const key = fc.option(fc.constantFrom("a", "b"), { freq: 2 });
export const choice = fc.nat({ max: 50 });

export function pick<T>(from: readonly T[], index: number): T | undefined {
  return from[index % Math.max(from.length, 1)];
}

export const UNKNOWN_JOB = "job_01kak0000000000000000000zz";
export const UNKNOWN_RUN = "run_01kak0000000000000000000zz";

/** Mostly uses a key of the resource's own environment, else one of the other environment. */
export const isOwn = fc.constantFrom(true, true, true, true, false);

export function askedOf(
  from: readonly { id: string; env: Env }[],
  index: number,
  isOwn: boolean,
  unknown: string,
) {
  const { id, env } = pick(from, index) ?? { id: unknown, env: "production" };
  const other = env === "production" ? ("development" as const) : ("production" as const);
  return { id, env: isOwn ? env : other };
}
export const askedJob = (model: ReferenceModel, index: number, isOwn: boolean) =>
  askedOf(model.jobs, index, isOwn, UNKNOWN_JOB);
export const askedRun = (model: ReferenceModel, index: number, isOwn: boolean) =>
  askedOf(model.runs, index, isOwn, UNKNOWN_RUN);

/** The items of all pages; null if the request rate ended the walk. */
export async function walk(
  model: ReferenceModel,
  service: Service,
  { env, path, limit, filters }: { env: Env; path: string; limit: number; filters: Record<string, string> },
): Promise<object[] | null> {
  const found: object[] = [];
  for (let cursor: string | null = null; ; ) {
    const query = new URLSearchParams({
      ...filters,
      limit: String(limit),
      ...(cursor === null ? {} : { cursor }),
    });
    const answer = await ask(model, service, { env, method: "GET", path: `${path}?${query}` });
    if (answer === null) return null;
    const page = JSON.parse(answer.text) as { data: object[]; next_cursor: string | null };
    expect(Object.keys(page)).toEqual(["data", "next_cursor"]);
    expect(page.data.length).toBeLessThanOrEqual(limit);
    found.push(...page.data);
    cursor = page.next_cursor;
    if (cursor === null) return found;
    // A page with a cursor is full.
    expect(page.data.length).toBe(limit);
  }
}

export const limit = fc.constantFrom(1, 2, 3, 50);
