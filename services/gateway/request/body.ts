import { createHash } from "node:crypto";
import { canonicalParts } from "../../../shared/contract/canonical.ts";
import { type Body, parseBodyInSlices, SLICE_CHARACTERS } from "../../../shared/contract/json.ts";
import type { PayloadPlace } from "../../../shared/contract/json-scanner.ts";
import { BYTES_PER_SECOND_MIN, bodyTooSlow } from "../../../shared/domain/body.ts";
import { ApiError, invalidRequest } from "../../../shared/domain/errors.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { LARGE_CHARACTERS } from "./large-answer.ts";
import { nextTurn } from "./sliced-work.ts";

export interface BodyRules {
  payload: PayloadPlace;
  bytesMax: number;
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
  checkMediaType(request.headers);
  const bytes = await readBytes(request, rules.bytesMax, patience);
  if (bytes.length > SLICE_CHARACTERS) await nextTurn(projectNo);
  const reading = parseBodyInSlices(bytes, rules.payload);
  for (;;) {
    const { done, value } = reading.next();
    if (done) return value;
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
  const limit = startLimit(request, patience, () => Math.min(count?.bytes ?? declared ?? 0, bytesMax));
  try {
    const bytes = count === null ? request.bytes() : countChunks(request, bytesMax, count);
    const received = await Promise.race([bytes, limit.passed]);
    await allReceived();
    return received;
  } catch (error) {
    // The connection is gone, so nobody receives this refusal.
    throw error instanceof ApiError ? error : invalidRequest("The body broke off.");
  } finally {
    limit.stop();
  }
}

/** Rejects with request_timeout when the time for a body is over. `bytes` is its declared length, or what has come so far. */
function startLimit(
  request: Request,
  { receiveMs, keepOpen }: Patience,
  bytes: () => number,
): { passed: Promise<never>; stop(): void } {
  const { promise, reject } = Promise.withResolvers<never>();
  const startedAt = performance.now();
  let isKept = false;
  const look = () => {
    const leftMs = startedAt + receiveMs + (bytes() / BYTES_PER_SECOND_MIN) * 1_000 - performance.now();
    if (leftMs <= 0) return reject(bodyTooSlow(receiveMs));
    if (!isKept) keepOpen(request, true);
    isKept = true;
    timer = setTimeout(look, leftMs);
  };
  let timer = setTimeout(look, receiveMs);
  return {
    passed: promise,
    stop() {
      clearTimeout(timer);
      if (isKept) keepOpen(request, false);
    },
  };
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
 * Waits until the server has looked at what came behind the request: trailers, or something that is not HTTP. It does so by
 * the end of this turn of the event loop, and closes the connection if it refuses that.
 */
export function allReceived(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

function tooLarge(bytesMax: number): ApiError {
  return new ApiError("payload_too_large", `The body must have at most ${bytesMax} bytes.`);
}
