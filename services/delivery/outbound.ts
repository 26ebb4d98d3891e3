import type { Exchange } from "../../shared/domain/run.ts";
import type { TargetRules } from "../../shared/domain/target.ts";
import { createDialler, type Resolve } from "./dial.ts";
import { Client } from "./http/client.ts";
import { writeRequest } from "./http/request.ts";

/** One POST to a customer's host. */
export interface OutboundRequest {
  url: string;
  headers: Record<string, string>;
  body: string;
  /** For everything from connecting to the last byte that is read. */
  timeoutMs: number;
  /** Breaks the request off, for a shutdown. */
  signal: AbortSignal;
}

export interface Outbound {
  /** Never throws: everything that a host does is an outcome. */
  post(request: OutboundRequest): Promise<Exchange>;
  close(): Promise<void>;
}

/**
 * Sends all requests to customers' hosts, each to an address that was judged. Names are looked up as dial.ts says, or
 * by the `resolve` of a test.
 */
export function openOutbound(rules: TargetRules, resolve?: Resolve): Outbound {
  const client = new Client(createDialler(rules, resolve));
  return {
    async post({ url, headers, body, timeoutMs, signal }) {
      // A signal that is aborted already fires no event any more.
      if (signal.aborted) return { kind: "faulted", message: "broken off before it was sent" };
      const deadlineAt = performance.now() + timeoutMs;
      try {
        const target = new URL(url);
        return await client.post(target, {
          request: writeRequest(target, headers, body),
          deadlineAt,
          signal,
        });
      } catch (error) {
        return { kind: "faulted", message: error instanceof Error ? error.message : String(error) };
      }
    },
    async close() {
      client.close();
    },
  };
}
