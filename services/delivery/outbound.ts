import { lookup } from "node:dns";
import { isIP, type LookupFunction } from "node:net";
// The bare name is replaced by a stub on Bun, which ignores `lookup` and timeouts without a word.
import { Agent, buildConnector, type Dispatcher } from "undici/index.js";
import { type Exchange, RESPONSE_BODY_BYTES_MAX } from "../../shared/domain/run.ts";
import { mayDial, type TargetRules } from "../../shared/domain/target.ts";

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
const CONNECT_TIMEOUT_MS = 10_000;
const HEADER_BYTES_MAX = 65_536;

/** The one place for requests to customers' hosts: the address that was judged is the one that is dialled. */
export function openOutbound(rules: TargetRules): Outbound {
  const agent = new Agent({
    connect: judgingConnector(rules),
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
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  const answer = (bodyEnd: "complete" | "enough" | "broken" | "stalled"): Exchange => ({
    kind: "answered",
    status: response.statusCode,
    headers: {
      location: header(response, "location"),
      retryAfter: header(response, "retry-after"),
      serviceNoRetry: header(response, "service-no-retry"),
    },
    body: Buffer.concat(chunks).subarray(0, RESPONSE_BODY_BYTES_MAX),
    bodyEnd,
  });
  try {
    for await (const chunk of response.body) {
      chunks.push(chunk);
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

/**
 * Judges every address that a name stands for at the moment of connecting: with one that may not be dialled, whoever
 * owns the name would choose which one is. An address in the URL itself is not looked up and is judged before.
 */
function judgingConnector(rules: TargetRules): buildConnector.connector {
  const connectors = new Map<number, buildConnector.connector>();
  return (options, callback) => {
    const port = Number(options.port || (options.protocol === "https:" ? 443 : 80));
    const literal = options.hostname.replace(/^\[|\]$/g, "");
    if (isIP(literal) !== 0 && !mayDial(literal, port, rules)) return callback(refusal(literal), null);
    let connect = connectors.get(port);
    if (connect === undefined) {
      if (connectors.size >= CONNECTORS_MAX) connectors.clear();
      const judge = judgingLookup(port, rules);
      connect = buildConnector({
        timeout: CONNECT_TIMEOUT_MS,
        allowH2: false,
        lookup: judge,
      } as buildConnector.BuildOptions);
      connectors.set(port, connect);
    }
    connect(options, callback);
  };
}

/** A connector is kept for each port, because the judgement depends on it and the lookup is not told. */
const CONNECTORS_MAX = 256;

function judgingLookup(port: number, rules: TargetRules): LookupFunction {
  return (hostname, options, callback) => {
    lookup(hostname, { ...options, all: true }, (error, addresses) => {
      const forbidden = error ? undefined : addresses.find(({ address }) => !mayDial(address, port, rules));
      const fault = error ?? (forbidden === undefined ? null : refusal(forbidden.address));
      if (options.all) return callback(fault, fault ? [] : addresses);
      const [first] = addresses ?? [];
      callback(fault, first?.address ?? "", first?.family ?? 4);
    });
  };
}

const refusal = (address: string) =>
  new Error(`The address ${address} may not be dialled: it is not public.`);

function header(response: Dispatcher.ResponseData, name: string): string | null {
  const value = response.headers[name];
  return (Array.isArray(value) ? value[0] : value) ?? null;
}

function faulted(message: string): Exchange {
  return { kind: "faulted", message };
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const code = (error as { code?: unknown }).code;
  const text = error.message === "" ? error.name : error.message;
  return typeof code === "string" && !text.includes(code) ? `${text} (${code})` : text;
}
