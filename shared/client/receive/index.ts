/**
 * Receives the service's requests to targets of jobs and to webhook endpoints: verifies them, refuses those that were here
 * before or come too late, opens sealed payloads, and answers.
 *
 *   const receiver = receive({ secrets: process.env.JOBWHEEL_SECRET, onAttempt: ({ payload }) => work(payload) });
 *   Bun.serve({ fetch: receiver });                            // also Deno, Workers, Hono and Next.js
 *   http.createServer(toNode(receiver)).listen(8000);          // also Express: app.post("/hook", toNode(receiver))
 */

export type { SealKey } from "../seal-key.ts";
export { type ReceivedRequest, SignatureError, type SignatureRules, verifySignature } from "../signature.ts";
export type { WebhookEvent } from "../webhooks.ts";
export {
  type Incoming,
  NoRetry,
  type RefusalReason,
  RefusedRequest,
  type Reply,
  RetryLater,
} from "./answers.ts";
export { createMemory, type ReceiverMemory } from "./memory.ts";
export { type NodeRequest, type NodeResponse, toNode } from "./node.ts";
export type { ReceiveOptions, Receiver } from "./options.ts";
export { receive } from "./receive.ts";
export type { Attempt, ReceivedEvent } from "./requests.ts";
