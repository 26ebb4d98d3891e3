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
 * The one place for requests to customers' hosts: the address that was judged is the one that is dialled. `resolve` is
 * the system's unless a test has names of its own.
 */
export function openOutbound(rules: TargetRules, resolve?: Resolve): Outbound {
  const client = new Client(createDialler(rules, resolve));
  return {
    async post({ url, headers, body, timeoutMs, signal }) {
      // A signal that was given before is not given again.
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
