import { findHeader } from "../signature.ts";
import { type Incoming, RefusedRequest } from "./answers.ts";

/** More than the service sends: a payload has at most 256 KB, and an event a few. */
const BODY_BYTES_MAX = 1_048_576;

/** Reads the whole body. Throws RefusedRequest if it is too large, before reading it if its length is told. */
export async function readBody({ headers, body }: Incoming): Promise<Uint8Array> {
  if (Number(findHeader(headers, "content-length") ?? 0) > BODY_BYTES_MAX) throw tooLarge();
  if (ArrayBuffer.isView(body)) return body;
  const chunks: Uint8Array[] = [];
  let byteCount = 0;
  for await (const chunk of body) {
    chunks.push(chunk);
    byteCount += chunk.length;
    if (byteCount > BODY_BYTES_MAX) throw tooLarge();
  }
  const whole = new Uint8Array(byteCount);
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}

function tooLarge(): RefusedRequest {
  return new RefusedRequest("too_large", 413, `The body has more than ${BODY_BYTES_MAX} bytes.`);
}
