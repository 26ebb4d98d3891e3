import type { ApiVersion } from "../domain/version.ts";
import { type Answered, type Call, callOf } from "./answer.ts";
import { errorOf } from "./errors.ts";
import { type Fetch, tryOnce } from "./one-try.ts";
import { leavesOutcomeUnknown, retryWaitMs } from "./retry.ts";

/** The version of the API that this client was written for. It stays so when the service learns a newer one. */
export const API_VERSION = "2026-11-01" satisfies ApiVersion;
export const CLIENT_VERSION = "0.1.0";

/** How long a request may take and how often it is tried. The client's options give the defaults. */
export interface RequestOptions {
  /** When it is aborted the call rejects with its reason. A request that was sent already may still be carried out. */
  signal?: AbortSignal | undefined;
  /** The time for one try, until its answer is complete. Default 30,000. */
  timeoutMs?: number | undefined;
  /** The time for all tries and the waits between them. No wait begins that would outlast it. Default 100,000. */
  deadlineMs?: number | undefined;
  /** Default 4. */
  retriesMax?: number | undefined;
}

export interface CreationOptions extends RequestOptions {
  /** 1 to 255 printable ASCII characters, no comma before a blank. By default the client makes one, so that its retries are safe. */
  idempotencyKey?: string | undefined;
}

/** A request as a resource makes it. */
export interface ClientRequest {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  query?: object | undefined;
  /** Writes JSON, once for all tries. A value that JSON does not have, such as a BigInt, rejects the call. */
  body?: () => string | Promise<string>;
  options: CreationOptions | undefined;
  /** A POST that creates nothing, so it can be sent again without a key. */
  makesNothing?: true;
}

/** `Result` is the type that the contract gives the answer of the request. */
export type Send = <Result>(request: ClientRequest) => Call<Result>;

/** The outside world of a client. */
export interface Surroundings {
  fetch: Fetch;
  /** Milliseconds from any start, which never go back. */
  now(): number;
  /** At least 0 and below 1. */
  random(): number;
  /** Ends early when the signal is aborted, and does not reject. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

const TIMEOUT_MS = 30_000;
/** Long enough for one Retry-After of the rate limit, which is at most its window (store/resources/request-rate.ts). */
const DEADLINE_MS = 100_000;
const RETRIES_MAX = 4;

export function createSend(
  { baseUrl, apiKey, ...defaults }: RequestOptions & { baseUrl: string; apiKey: string | null },
  { fetch, now, random, sleep }: Surroundings,
): Send {
  async function carryOut<Result>(request: ClientRequest): Promise<Answered<Result>> {
    const { method, path, query, options } = request;
    const signal = options?.signal ?? defaults.signal;
    const timeoutMs = options?.timeoutMs ?? defaults.timeoutMs ?? TIMEOUT_MS;
    const deadlineMs = options?.deadlineMs ?? defaults.deadlineMs ?? DEADLINE_MS;
    const retriesMax = options?.retriesMax ?? defaults.retriesMax ?? RETRIES_MAX;
    const isCreation = method === "POST" && request.makesNothing === undefined;
    const idempotencyKey = isCreation ? readIdempotencyKey(options?.idempotencyKey) : null;
    const body = await request.body?.();
    const url = `${baseUrl}${path}${queryText(query)}`;
    const init: RequestInit = {
      method,
      headers: {
        Accept: "application/json",
        ...(apiKey === null ? {} : { Authorization: `Bearer ${apiKey}` }),
        "Service-Version": API_VERSION,
        // Browsers do not let a page name its User-Agent.
        "Service-Client": `jobwheel-typescript/${CLIENT_VERSION}`,
        ...(idempotencyKey === null ? {} : { "Idempotency-Key": idempotencyKey }),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      },
      ...(body === undefined ? {} : { body }),
    };

    const startedAt = now();
    const leftMs = () => deadlineMs - (now() - startedAt);
    let isOutcomeUnknown = false;
    for (let triesMade = 1; ; triesMade++) {
      const outcome = await tryOnce(fetch, url, init, {
        timeoutMs: Math.min(timeoutMs, Math.max(0, leftMs())),
        signal,
      });
      if (outcome.kind === "answered") return { result: outcome.value as Result, answer: outcome.answer };
      isOutcomeUnknown ||= leavesOutcomeUnknown(outcome);
      const waitMs = retryWaitMs(outcome, triesMade, random());
      const mayRetry = waitMs !== null && triesMade <= retriesMax && waitMs < leftMs();
      if (!mayRetry) throw errorOf(outcome, { idempotencyKey, isOutcomeUnknown });
      await sleep(waitMs, signal);
    }
  }

  return (request) => callOf(carryOut(request));
}

/** HTTP drops blanks at the ends, and the API takes a comma before a blank for two keys. */
const IDEMPOTENCY_KEY_PATTERN = /^(?! )(?!.*, )[\x20-\x7e]{1,255}(?<! )$/;
const IDEMPOTENCY_KEY_BYTES = 16;

function readIdempotencyKey(given: string | undefined): string {
  if (given === undefined) {
    const bytes = crypto.getRandomValues(new Uint8Array(IDEMPOTENCY_KEY_BYTES));
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  }
  if (IDEMPOTENCY_KEY_PATTERN.test(given)) return given;
  throw new TypeError(
    "idempotencyKey must be 1 to 255 printable ASCII characters without blanks at its ends or after a comma.",
  );
}

function queryText(query: object = {}): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined)
      parameters.set(name, value instanceof Date ? value.toISOString() : String(value));
  }
  const text = parameters.toString();
  return text === "" ? "" : `?${text}`;
}
