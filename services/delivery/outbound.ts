// The bare name is replaced by a stub on Bun, which ignores `connect` and timeouts without a word.
import { Agent, type Dispatcher } from "undici/index.js";
import { ERROR_BYTES_MAX, type Exchange, RESPONSE_BODY_BYTES_MAX } from "../../shared/domain/run.ts";
import type { TargetRules } from "../../shared/domain/target.ts";
import { createDialler, type Resolve } from "./dial.ts";

/** One POST to a customer's host. */
export interface OutboundRequest {
  url: string;
  headers: Record<string, string>;
  body: string;
  /** From connecting to the last byte that is read. */
  timeoutMs: number;
  /** Breaks the request off, for a shutdown. */
  signal: AbortSignal;
}

export interface Outbound {
  /** Never throws: whatever a host does is an outcome. */
  post(request: OutboundRequest): Promise<Exchange>;
  close(): Promise<void>;
}

/**
 * A socket is used again only while idle for less than servers usually wait before they close: on one that is being
 * closed from the other side the POST fails although nobody has refused it.
 */
const KEEP_ALIVE_MS = 1_500;
const HEADER_BYTES_MAX = 65_536;
/** What is kept of a body: a run's error is made of it, and a character may lie across the end of that. */
const KEPT_BYTES_MAX = 2 * ERROR_BYTES_MAX;

/**
 * The one place for requests to customers' hosts: the address that was judged is the one that is dialled. `resolve` is
 * the system's unless a test has names of its own.
 */
export function openOutbound(rules: TargetRules, resolve?: Resolve): Outbound {
  const agent = new Agent({
    connect: createDialler(rules, resolve),
    pipelining: 1,
    keepAliveTimeout: KEEP_ALIVE_MS,
    keepAliveMaxTimeout: KEEP_ALIVE_MS,
    maxHeaderSize: HEADER_BYTES_MAX,
    // The whole attempt has one deadline, kept below.
    headersTimeout: 0,
    bodyTimeout: 0,
  });
  return {
    async post({ url, headers, body, timeoutMs, signal }) {
      // A signal that was given before is not given again.
      if (signal.aborted) return faulted("broken off before it was sent");
      const abort = new AbortController();
      let stalled = false;
      // The client hears of an abort only once it is connected; then it sends nothing, but nobody waits for that.
      const brokenOff = Promise.withResolvers<never>();
      const breakOff = () => {
        abort.abort();
        brokenOff.reject(abort.signal.reason);
      };
      const timer = setTimeout(() => {
        stalled = true;
        breakOff();
      }, timeoutMs);
      signal.addEventListener("abort", breakOff, { once: true });
      try {
        const target = new URL(url);
        const answered = agent.request({
          origin: target.origin,
          path: `${target.pathname}${target.search}`,
          method: "POST",
          headers,
          body,
          signal: abort.signal,
        });
        const response = await Promise.race([answered, brokenOff.promise]);
        return await readAnswer(response, () => stalled);
      } catch (error) {
        return stalled ? { kind: "stalled" } : faulted(describe(error));
      } finally {
        clearTimeout(timer);
        signal.removeEventListener("abort", breakOff);
      }
    },
    async close() {
      // Not waited for: a connection that a silent host lets stand half open holds this up until its own timeout.
      void agent.destroy();
    },
  };
}

async function readAnswer(response: Dispatcher.ResponseData, isStalled: () => boolean): Promise<Exchange> {
  let kept = new Uint8Array();
  let bytes = 0;
  const answer = (bodyEnd: "complete" | "enough" | "broken" | "stalled"): Exchange => ({
    kind: "answered",
    status: response.statusCode,
    headers: {
      location: header(response, "location"),
      retryAfter: header(response, "retry-after"),
      serviceNoRetry: header(response, "service-no-retry"),
    },
    body: kept,
    bodyEnd,
  });
  try {
    for await (const chunk of response.body) {
      // Copied, since a chunk of one byte would keep all that was received with it.
      if (bytes < KEPT_BYTES_MAX) kept = Buffer.concat([kept, chunk.subarray(0, KEPT_BYTES_MAX - bytes)]);
      bytes += chunk.length;
      if (bytes >= RESPONSE_BODY_BYTES_MAX) {
        response.body.destroy();
        return answer("enough");
      }
    }
    return answer("complete");
  } catch {
    return answer(isStalled() ? "stalled" : "broken");
  }
}

function header(response: Dispatcher.ResponseData, name: string): string | null {
  const value = response.headers[name];
  return (Array.isArray(value) ? value[0] : value) ?? null;
}

function faulted(message: string): Exchange {
  return { kind: "faulted", message };
}

/** What the client says of answers that it does not take, in words for whoever runs the target. */
const WORDS: Record<string, string> = {
  "bad response": 'The target answered "100 Continue", which it was not asked for',
  "bad upgrade": 'The target answered "101 Switching Protocols", which it was not asked for',
  "false == true":
    "The target answered with a status below 200 that is not one of HTTP, or that it was not asked for",
  "other side closed": "The target closed the connection without an answer",
  "Headers Overflow Error": `The target sent more than ${HEADER_BYTES_MAX} bytes of headers`,
  "Response body length does not match content-length header":
    "The target answered with a length that is not that of its body, or with two",
};

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const code = (error as { code?: unknown }).code;
  const text = WORDS[error.message] ?? (error.message === "" ? error.name : error.message);
  return typeof code === "string" && !text.includes(code) ? `${text} (${code})` : text;
}
