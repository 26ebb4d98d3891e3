import { createHash } from "node:crypto";
import { canonicalParts } from "../../../shared/contract/canonical.ts";
import { type Body, BodyReader, SLICE_CHARACTERS } from "../../../shared/contract/json.ts";
import type { PayloadPlace } from "../../../shared/contract/json-scanner.ts";
import { BYTES_PER_SECOND_MIN, bodyTooSlow } from "../../../shared/domain/body.ts";
import { ApiError, invalidRequest } from "../../../shared/domain/errors.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { LARGE_CHARACTERS } from "./large-answer.ts";
import { nextTurn } from "./sliced-work.ts";
import { beginLimit, endLimit, type TimeLimit } from "./time-limit.ts";

export interface BodyRules {
  payload: PayloadPlace;
  bytesMax: number;
  /** True if the body may be left out, which leaves out all its fields. */
  isOptional?: true;
}

/** The largest body of any request but that of a batch. */
export const BODY_BYTES_MAX = 1_048_576;
export const BATCH_BODY_BYTES_MAX = 33_554_432;

/** The body of requests for which none is defined. */
export const NO_BODY: Body = { value: undefined, text: "", payloadTexts: [], largePayloads: new Set() };

/**
 * A body that is too large is received up to here and dropped before it is refused, because a client that is cut off while
 * it still sends may never read the answer (RFC 9112, 9.6).
 */
const DROPPED_BYTES_MAX = 2 * BATCH_BODY_BYTES_MAX;

/** How long a body may take to arrive. A slow client holds memory and a place among the requests in progress meanwhile. */
export interface Patience {
  /** The time for every body, however small: RECEIVE_MS, except in tests. */
  receiveMs: number;
  /** Tells the server whether to keep the connection of a request open beyond the idle timeout. */
  keepOpen(request: Request, isKept: boolean): void;
}

/** Reads and parses the body of a request. Checks the media type, then the size, then the syntax. Throws ApiError. */
export async function readBody(
  request: Request,
  rules: BodyRules,
  projectNo: ProjectNo,
  patience: Patience,
): Promise<Body> {
  if (rules.isOptional && isEmpty(request)) {
    await allReceived();
    return NO_BODY;
  }
  checkMediaType(request.headers);
  const bytes = await readBytes(request, rules.bytesMax, patience);
  if (bytes.length > SLICE_CHARACTERS) await nextTurn(projectNo);
  const reader = new BodyReader(bytes, rules.payload);
  for (;;) {
    const body = reader.read();
    if (body !== null) return body;
    await nextTurn(projectNo);
  }
}

/** SHA-256 of the body as a JSON value: all spellings of the same value have the same hash. */
export async function hashBody(body: Body, projectNo: ProjectNo): Promise<Buffer> {
  const hash = createHash("sha256");
  let characterCount = 0;
  for (const part of canonicalParts(body)) {
    hash.update(part);
    characterCount += part.length;
    if (characterCount < SLICE_CHARACTERS) continue;
    characterCount = 0;
    await nextTurn(projectNo);
  }
  return hash.digest();
}

/** The bytes of the payloads, which the answer repeats; 0 if they are too few to be counted. */
export function largePayloadBytes({ payloadTexts }: Body): number {
  const bytes = payloadTexts.reduce((sum, text) => sum + Buffer.byteLength(text ?? ""), 0);
  return bytes > LARGE_CHARACTERS ? bytes : 0;
}

export function isLarge(rules: BodyRules | null): rules is BodyRules {
  return rules !== null && rules.bytesMax > BODY_BYTES_MAX;
}

/** The Content-Length. Null for a body that comes in chunks, or for none. Throws invalid_request if the header comes twice. */
export function declaredBytes(headers: Headers): number | null {
  const text = headers.get("content-length");
  if (text === null) return null;
  // The server accepts two equal headers, and passes both on.
  if (!/^[0-9]+$/.test(text)) throw invalidRequest("Content-Length must be given once.");
  return Number(text);
}

function isEmpty({ headers, body }: Request): boolean {
  const declared = declaredBytes(headers);
  return declared === 0 || (declared === null && body === null);
}

function checkMediaType(headers: Headers): void {
  const [type = "", ...parameters] = (headers.get("content-type") ?? "").split(";").map(trimLower);
  const isUtf8 = parameters.every((parameter) => UTF8_PARAMETERS.includes(parameter));
  if (type !== "application/json" || !isUtf8) {
    throw new ApiError("unsupported_media_type", "Content-Type must be application/json, in UTF-8.");
  }
  if (trimLower(headers.get("content-encoding") ?? "identity") !== "identity") {
    throw new ApiError("unsupported_media_type", "Content-Encoding must be absent or identity.");
  }
}

const UTF8_PARAMETERS = ["", "charset=utf-8", 'charset="utf-8"'];

function trimLower(text: string): string {
  return text.trim().toLowerCase();
}

async function readBytes(request: Request, bytesMax: number, patience: Patience): Promise<Uint8Array> {
  const declared = declaredBytes(request.headers);
  if (declared !== null && declared > DROPPED_BYTES_MAX) throw tooLarge(bytesMax);
  // The server enforces a declared length, so only a body that comes in chunks or is too large must be counted.
  const count = declared === null || declared > bytesMax ? { bytes: 0 } : null;
  // A body that is too large has no more time than the largest allowed one.
  const limit = new BodyLimit(request, patience, () => Math.min(count?.bytes ?? declared ?? 0, bytesMax));
  try {
    const bytes = await limit.bound(count === null ? request.bytes() : countChunks(request, bytesMax, count));
    await allReceived();
    return bytes;
  } catch (error) {
    // The connection is gone, so nobody receives this refusal.
    throw error instanceof ApiError ? error : invalidRequest("The body broke off.");
  } finally {
    limit.stop();
  }
}

/** The time for a body. `bytes` is its declared length, or the number of bytes that have come so far. */
class BodyLimit implements TimeLimit {
  endsAt: number;
  private readonly startedAt = performance.now();
  private isKept = false;
  private giveUp: (error: ApiError) => void = () => undefined;

  constructor(
    private readonly request: Request,
    private readonly patience: Patience,
    private readonly bytes: () => number,
  ) {
    this.endsAt = this.startedAt + patience.receiveMs;
    beginLimit(this);
  }

  /** The body, or request_timeout once the time is over. */
  bound(bytes: Promise<Uint8Array>): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      this.giveUp = reject;
      bytes.then(resolve, reject);
    });
  }

  stop(): void {
    endLimit(this);
    if (this.isKept) this.patience.keepOpen(this.request, false);
  }

  pass(): void {
    const { receiveMs, keepOpen } = this.patience;
    this.endsAt = this.startedAt + receiveMs + (this.bytes() / BYTES_PER_SECOND_MIN) * 1_000;
    if (this.endsAt <= performance.now()) {
      this.giveUp(bodyTooSlow(receiveMs));
    } else if (!this.isKept) {
      this.isKept = true;
      keepOpen(this.request, true);
    }
  }
}

async function countChunks(
  request: Request,
  bytesMax: number,
  count: { bytes: number },
): Promise<Uint8Array> {
  let chunks: Uint8Array[] = [];
  for await (const chunk of request.body ?? []) {
    count.bytes += chunk.byteLength;
    if (count.bytes > DROPPED_BYTES_MAX) break;
    if (count.bytes > bytesMax) chunks = [];
    else chunks.push(chunk);
  }
  if (count.bytes > bytesMax) throw tooLarge(bytesMax);
  return Buffer.concat(chunks);
}

/**
 * Waits until the server has looked at the bytes behind the request: trailers, or something that is not HTTP. The
 * server does so by the end of this turn of the event loop, and closes the connection if it refuses them. All requests
 * of a turn wait together.
 */
export function allReceived(): Promise<void> {
  turnEnd ??= new Promise((resolve) => {
    setImmediate(() => {
      turnEnd = null;
      resolve();
    });
  });
  return turnEnd;
}

let turnEnd: Promise<void> | null = null;

function tooLarge(bytesMax: number): ApiError {
  return new ApiError("payload_too_large", `The body must have at most ${bytesMax} bytes.`);
}
