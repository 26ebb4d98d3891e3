import { seal } from "./seal.ts";
import type { OpenedKey } from "./seal-key.ts";

/**
 * A payload that is sent as it is written. JavaScript's numbers cannot hold 9007199254740993 and write 1.10 as 1.1, whereas
 * targets receive `new RawJson('{"id": 9007199254740993}')` with every digit.
 */
export class RawJson {
  readonly text: string;

  /** Throws SyntaxError unless the text is a JSON object. */
  constructor(text: string) {
    const value: unknown = JSON.parse(text);
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      throw new SyntaxError("A payload must be a JSON object.");
    }
    this.text = text;
  }
}

interface Fields {
  payload?: unknown;
  target_url?: string | undefined;
}

/**
 * Writes the JSON text of a body, whose payload may be raw. Requests with the same `repeatable` have the same bytes also
 * where payloads are sealed. `changes` may leave out the payload, whereas a creation without one has an empty one.
 */
export type PayloadWriter = (
  fields: Fields,
  rules?: { repeatable?: string | undefined; changes?: true },
) => string | Promise<string>;

/** Without a key payloads are written as they are. */
export function createPayloadWriter(key: Promise<OpenedKey> | undefined): PayloadWriter {
  if (key === undefined) return bodyText;
  return async (fields, { repeatable, changes } = {}) => {
    const { payload, target_url, ...others } = fields;
    if (changes && payload === undefined && target_url === undefined) return bodyText(fields);
    if (changes && (payload === undefined || target_url === undefined)) {
      throw new TypeError(
        "With sealWith a change of payload or target_url must give both: a sealed payload opens only at the path it was sealed for.",
      );
    }
    // The service cannot see that a sealed payload is an object, so this is checked here.
    const { text } = payload instanceof RawJson ? payload : new RawJson(JSON.stringify(payload ?? {}));
    const sealed = await seal(text, { path: pathOf(target_url), repeatable }, await key);
    return bodyText({ ...others, target_url, payload: sealed });
  };
}

function bodyText(fields: Fields): string {
  const { payload, ...others } = fields;
  if (!(payload instanceof RawJson)) return JSON.stringify(fields);
  const members = JSON.stringify(others).slice(1, -1);
  return `{${members}${members === "" ? "" : ","}"payload":${payload.text}}`;
}

/** The service refuses a target that is no URL, and then the payload is never opened. */
function pathOf(targetUrl: string | undefined): string {
  return targetUrl !== undefined && URL.canParse(targetUrl) ? new URL(targetUrl).pathname : "";
}
