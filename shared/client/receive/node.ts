import type { Incoming, Reply } from "./answers.ts";
import type { Receiver } from "./options.ts";

/** The members that the adapter needs of a request of Node's http, http2 and Express. */
export interface NodeRequest extends AsyncIterable<Uint8Array> {
  method?: string | undefined;
  url?: string | undefined;
  headers: Readonly<Record<string, string | readonly string[] | undefined>>;
  /** Express: the whole path, also if a router has taken the beginning off `url`. */
  originalUrl?: string;
  /** Express: the body as a parser has made it. */
  body?: unknown;
}

export interface NodeResponse {
  statusCode: number;
  setHeader(name: string, value: string): unknown;
  end(text: string): unknown;
}

/**
 * A listener for `http.createServer`, and a handler for Express: `app.post("/hook", toNode(receiver))`. No parser may
 * take the body before it, except for `express.raw({ type: "*\/*" })`.
 */
export function toNode(receiver: Receiver): (request: NodeRequest, response: NodeResponse) => Promise<void> {
  return async (request, response) => send(await receiver.handle(incomingOf(request)), response);
}

function incomingOf(request: NodeRequest): Incoming {
  const { method = "", headers, body } = request;
  return { method, url: request.originalUrl ?? request.url ?? "/", headers, body: rawBody(request, body) };
}

function rawBody(request: NodeRequest, parsed: unknown): Incoming["body"] {
  if (ArrayBuffer.isView(parsed)) return parsed as Uint8Array;
  if (parsed === undefined || parsed === null) return request;
  return refuseParsed();
}

/** A body that throws when it is read: the bytes that were signed are gone. */
async function* refuseParsed(): AsyncGenerator<Uint8Array, void> {
  yield* [];
  throw new TypeError(
    "The body was parsed before the receiver saw it: mount the receiver before express.json(), or use express.raw() for its path.",
  );
}

function send({ status, headers, text }: Reply, response: NodeResponse): void {
  response.statusCode = status;
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
  response.end(text);
}
