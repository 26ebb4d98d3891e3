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

/** The JSON text of a body, whose payload may be raw. */
export function bodyText(fields: { payload?: unknown }): string {
  const { payload, ...others } = fields;
  if (!(payload instanceof RawJson)) return JSON.stringify(fields);
  const members = JSON.stringify(others).slice(1, -1);
  return `{${members}${members === "" ? "" : ","}"payload":${payload.text}}`;
}
