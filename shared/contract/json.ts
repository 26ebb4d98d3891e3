import { invalidRequest } from "../domain/errors.ts";
import { JsonScanner, type PayloadPlace, payloadTooLarge, type Scan } from "./json-scanner.ts";

/**
 * Request bodies. Of a payload the text is kept as it was written, which is what targets receive: a number beyond double
 * precision would not survive the way through a JavaScript number.
 */
export interface Body {
  /** Where a payload is an object or an array, an empty one stands in its place. */
  value: unknown;
  /** The JSON text of `value`, without insignificant white space, escapes and numbers as written. */
  text: string;
  /**
   * The JSON texts of the payloads, written likewise: at index 0 for "member", at the index of the entry for "each job".
   * Where no payload was given, or one that is too large, there is none.
   */
  payloadTexts: readonly (string | undefined)[];
  /** The entries of a batch whose payload is too large. */
  largePayloads: ReadonlySet<number>;
}

/** What is read in a few milliseconds, whatever it is. */
export const SLICE_CHARACTERS = 65_536;

/**
 * Throws invalid_request for what is not JSON, too deep, or has duplicate members, and payload_too_large for a
 * payload of a single job or schedule; those of a batch are judged entry by entry (`checkPayloadSize`).
 */
export function parseBody(bytes: Uint8Array, place: PayloadPlace): Body {
  const scanner = new JsonScanner(decode(bytes), place);
  let scan: Scan | null = null;
  while (scan === null) scan = scanner.read(SLICE_CHARACTERS);
  return bodyOf(scan);
}

/** `parseBody` for a body that may be large: it stops after each slice, so that something else has its turn. */
export function* parseBodyInSlices(
  bytes: Uint8Array,
  place: PayloadPlace,
): Generator<"slice read", Body, void> {
  const scanner = new JsonScanner(decode(bytes), place);
  let scan = scanner.read(SLICE_CHARACTERS);
  while (scan === null) {
    yield "slice read";
    scan = scanner.read(SLICE_CHARACTERS);
  }
  return bodyOf(scan);
}

export function checkPayloadSize({ largePayloads }: Body, entry: number): void {
  if (largePayloads.has(entry)) throw payloadTooLarge();
}

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function decode(bytes: Uint8Array): string {
  try {
    return decoder.decode(bytes);
  } catch {
    throw invalidRequest("The body is not valid UTF-8.");
  }
}

function bodyOf({ shellText, payloadTexts, largePayloads }: Scan): Body {
  return { value: JSON.parse(shellText), text: shellText, payloadTexts, largePayloads };
}
