import { isSealed, UnsealError, unseal } from "../seal.ts";
import { readSealKeys } from "../seal-key.ts";
import { readSecrets, SignatureError, TOLERANCE_SECONDS, verifySignature } from "../signature.ts";
import { answerError, type Incoming, RefusedRequest, type Reply, textReply } from "./answers.ts";
import { readBody } from "./body.ts";
import { createMemory } from "./memory.ts";
import type { ReceiveOptions, Receiver } from "./options.ts";
import { type Attempt, parseObject, readAttempt, readEvent, readKind } from "./requests.ts";
import { fromRequest, toResponse } from "./web.ts";

/** An event may come again for 48 hours. */
const EVENT_KEPT_MS = 49 * 3_600_000;
/** An endpoint has 15 s to answer. After this time the process that handles the event counts as gone. */
const EVENT_BEGUN_MS = 60_000;

/** Makes a receiver of attempts, of events or of both. Throws TypeError for options with which no request could pass. */
export function receive<Payload = Record<string, unknown>>(options: ReceiveOptions<Payload>): Receiver {
  const { onAttempt, onEvent, now = Date.now, toleranceSeconds = TOLERANCE_SECONDS } = options;
  if (onAttempt === undefined && onEvent === undefined)
    throw new TypeError("receive needs onAttempt or onEvent.");
  const secrets = readSecrets(options.secrets);
  const keys = "openWith" in options ? readSealKeys("openWith", [options.openWith].flat()) : null;
  const memory = options.memory ?? createMemory({ now });
  /** As long as a replayed request may pass the check of its time, which may be behind or ahead. */
  const replayMs = (2 * toleranceSeconds + 1) * 1_000;

  async function open(text: string, url: string): Promise<{ payload: Payload; text: string }> {
    const payload = parseObject(text);
    if (keys === null && !isSealed(payload)) return { payload: payload as Payload, text };
    const path = options.path ?? pathOf(url);
    const opened = await unseal(payload, path, await Promise.all(keys ?? []));
    return { payload: parseObject(opened) as Payload, text: opened };
  }

  async function receiveAttempt({ headers, url }: Incoming, text: string, id: string): Promise<Reply> {
    if (onAttempt === undefined) throw unexpected("attempts of jobs");
    const facts = readAttempt(headers, id);
    const attempt: Attempt<Payload> = { ...facts, ...(await open(text, url)) };
    if ((await memory.begin(id, replayMs)) !== "new") {
      throw new RefusedRequest("replay", 409, "This very attempt was here before.");
    }
    if (!(await memory.raise(facts.jobId, facts.attempt))) {
      throw new RefusedRequest("late", 409, "A later attempt of the job was here before.");
    }
    await onAttempt(attempt);
    return HANDLED;
  }

  async function receiveEvent({ headers }: Incoming, text: string, id: string): Promise<Reply> {
    if (onEvent === undefined) throw unexpected("events");
    const received = readEvent(headers, text, id);
    const before = await memory.begin(id, EVENT_BEGUN_MS);
    if (before === "done") return HANDLED;
    if (before === "begun") return textReply(503, "This event is still being handled.");
    try {
      await onEvent(received);
    } catch (error) {
      await memory.end(id, null);
      throw error;
    }
    await memory.end(id, EVENT_KEPT_MS);
    return HANDLED;
  }

  function answerThrown(thrown: unknown, kind: "attempt" | "event"): Reply {
    const error = refusalOf(thrown);
    if (error instanceof RefusedRequest) {
      tell(options.onRefusal, error);
      return textReply(error.status, `${error.reason}: ${error.message}`);
    }
    const reply = answerError(error, kind);
    if (reply.status === 500) tell(options.onError ?? toConsole, error);
    return reply;
  }

  async function handle(incoming: Incoming): Promise<Reply> {
    let kind: "attempt" | "event" = "attempt";
    try {
      if (incoming.method !== "POST") throw new RefusedRequest("method", 405, "The service sends POST only.");
      const signed = { headers: incoming.headers, body: await readBody(incoming) };
      const text = await verifySignature(signed, { secrets, toleranceSeconds, now });
      const told = readKind(incoming.headers);
      kind = told.kind;
      return await (kind === "attempt" ? receiveAttempt : receiveEvent)(incoming, text, told.id);
    } catch (thrown) {
      return answerThrown(thrown, kind);
    }
  }

  return Object.assign(async (request: Request) => toResponse(await handle(fromRequest(request))), {
    handle,
  });
}

/** A listener that throws does not keep the request from its answer. */
function tell<Told>(listener: ((told: Told) => void) | undefined, told: Told): void {
  try {
    listener?.(told);
  } catch (error) {
    toConsole(error);
  }
}

// biome-ignore lint/suspicious/noConsole: an error that nobody hears of would cost its first user an hour
const toConsole = (error: unknown) => console.error(error);

const HANDLED = textReply(200, "ok");

/** A path may begin with two slashes, behind which no host stands. */
function pathOf(url: string): string {
  return new URL(url.startsWith("/") ? `http://receiver${url}` : url).pathname;
}

function unexpected(what: string): RefusedRequest {
  return new RefusedRequest("unexpected", 404, `Nobody handles ${what} here.`);
}

/** Turns an error that stands for a refusal into a RefusedRequest; answers any other as it is. */
function refusalOf(thrown: unknown): unknown {
  if (thrown instanceof SignatureError) return new RefusedRequest("signature", 401, thrown.message);
  if (thrown instanceof UnsealError) return new RefusedRequest(thrown.reason, 422, thrown.message);
  return thrown;
}
