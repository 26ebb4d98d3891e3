import { type Body, type PayloadPlace, parseBody } from "../../shared/contract/json.ts";
import { ApiError, invalidRequest } from "../../shared/domain/errors.ts";

export interface BodyRules {
  payload: PayloadPlace;
  bytesMax: number;
}

/** Of every body but that of a batch. */
export const BODY_BYTES_MAX = 1_048_576;
export const BATCH_BODY_BYTES_MAX = 33_554_432;

/** For the whole body. Who sends more slowly would hold memory and a place among the requests in progress. */
const RECEIVE_TIMEOUT_MS = 30_000;

/** Reads and parses the body of a request: media type, then size, then syntax. Throws ApiError. */
export async function readBody(request: Request, rules: BodyRules): Promise<Body> {
  checkMediaType(request.headers);
  return parseBody(await readBytes(request, rules.bytesMax), rules.payload);
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

async function readBytes(request: Request, bytesMax: number): Promise<Uint8Array> {
  const declared = request.headers.get("content-length");
  if (declared !== null && Number(declared) > bytesMax) throw tooLarge(bytesMax);
  const { promise: timeout, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(tooSlow()), RECEIVE_TIMEOUT_MS);
  try {
    // The server holds a body to its declared length; only a chunked one must be counted.
    return await Promise.race([
      declared === null ? countChunks(request, bytesMax) : request.bytes(),
      timeout,
    ]);
  } catch (error) {
    // Nobody hears this answer: the connection is gone.
    throw error instanceof ApiError ? error : invalidRequest("The body broke off.");
  } finally {
    clearTimeout(timer);
  }
}

async function countChunks(request: Request, bytesMax: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let byteCount = 0;
  for await (const chunk of request.body ?? []) {
    byteCount += chunk.byteLength;
    if (byteCount > bytesMax) throw tooLarge(bytesMax);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function tooLarge(bytesMax: number): ApiError {
  return new ApiError("payload_too_large", `The body must have at most ${bytesMax} bytes.`);
}

function tooSlow(): ApiError {
  return invalidRequest(`The body did not arrive within ${RECEIVE_TIMEOUT_MS / 1_000} seconds.`);
}
