import type { SealKey } from "../seal-key.ts";
import type { Incoming, RefusedRequest, Reply } from "./answers.ts";
import type { ReceiverMemory } from "./memory.ts";
import type { Attempt, ReceivedEvent } from "./requests.ts";

export interface ReceiveOptions<Payload = Record<string, unknown>> {
  /**
   * The signing secret of the project's environment for attempts, an endpoint's own for its events. Give several while one
   * replaces another. Undefined is refused at once: it is allowed here so that an environment variable can be given as it is.
   */
  secrets: string | readonly string[] | undefined;
  /** Handles an attempt of a job. A return is a success; RetryLater, NoRetry and any other error are failures. */
  onAttempt?(attempt: Attempt<Payload>): unknown;
  /** Handles an event. A return is a success, after which the same event is not handled again. */
  onEvent?(received: ReceivedEvent): unknown;
  /** The keys of sealed payloads. With keys, attempts without a sealed payload are refused. Undefined is refused at once. */
  openWith?: SealKey | readonly SealKey[] | undefined;
  /** The path of the target's URL, if a proxy changes it on the way. By default the path of the request. */
  path?: string;
  /** The memory of earlier requests. By default this process alone remembers them. */
  memory?: ReceiverMemory;
  /** How far the time in the request may differ from the time here. Default 300. */
  toleranceSeconds?: number;
  /** Hears of each request that is not handled. */
  onRefusal?(refusal: RefusedRequest): void;
  /** Hears of each error of a handler other than RetryLater and NoRetry. By default it is written to the console. */
  onError?(error: unknown): void;
  /** The time here, in milliseconds since 1970. */
  now?: () => number;
}

/** Answers a `Request` by a `Response`. `handle` is for adapters to other servers. Their promises do not reject. */
export interface Receiver {
  (request: Request): Promise<Response>;
  handle(incoming: Incoming): Promise<Reply>;
}
