import { payloadTooLarge } from "../domain/body.ts";
import { invalidRequest } from "../domain/errors.ts";
import { FaultFinder, NotJson } from "./json-fault.ts";
import { JsonScanner, type PayloadPlace, type Scan } from "./json-scanner.ts";

/**
 * The body of a request. Payloads are kept as text and reach their targets as they were written, because a number beyond
 * double precision would change as a JavaScript number.
 */
export interface Body {
  /** The parsed body, in which an empty object or array replaces each payload that is one. */
  value: unknown;
  /** The JSON text of `value`, without insignificant white space, escapes and numbers as written. */
  text: string;
  /**
   * The JSON texts of the payloads, written likewise: at index 0 for "member", at the index of the entry for "each job".
   * Undefined where no payload was given or the payload is too large.
   */
  payloadTexts: readonly (string | undefined)[];
  /** The entries of a batch whose payload is too large. */
  largePayloads: ReadonlySet<number>;
}

/** Any text of this length is read in a few milliseconds. */
export const SLICE_CHARACTERS = 65_536;

/**
 * Parses a body in slices, so that the caller can let other work run between them. Throws invalid_request for text that is
 * not JSON, for too deep nesting and for duplicate members, and payload_too_large for the payload of a single job or
 * schedule. `checkPayloadSize` judges those of a batch.
 */
export class BodyReader {
  private readonly text: string;
  private readonly scanner: JsonScanner;
  private finder: FaultFinder | null = null;

  constructor(bytes: Uint8Array, place: PayloadPlace) {
    this.text = decode(bytes);
    this.scanner = new JsonScanner(this.text, place);
  }

  /** Reads the next slice. Null until that was the last one. */
  read(): Body | null {
    if (this.finder === null) {
      try {
        const scan = this.scanner.read(SLICE_CHARACTERS);
        return scan === null ? null : bodyOf(scan);
      } catch (error) {
        if (!(error instanceof NotJson)) throw error;
        this.finder = new FaultFinder(this.text, error);
      }
    }
    const refusal = this.finder.read(SLICE_CHARACTERS);
    if (refusal !== null) throw refusal;
    return null;
  }
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
