import fc from "fast-check";
import { type Body, BodyReader } from "./json.ts";
import type { PayloadPlace } from "./json-scanner.ts";

/** Parses a whole body at once. */
export function parseBody(bytes: Uint8Array, place: PayloadPlace): Body {
  const reader = new BodyReader(bytes, place);
  for (;;) {
    const body = reader.read();
    if (body !== null) return body;
  }
}

/** Any JSON value as text with white space wherever it may stand, and as text without any. */
export const jsonTexts = fc
  // JSON.stringify cannot write -0, so the values are those that it has written.
  .tuple(
    fc.jsonValue().map((value) => JSON.parse(JSON.stringify(value)) as unknown),
    fc.array(fc.constantFrom("", " ", "\n\t", "\r\n"), { minLength: 1 }),
  )
  .map(([value, spaces]) => {
    let count = 0;
    const space = () => spaces[count++ % spaces.length] ?? "";
    const write = (part: unknown): string => {
      if (Array.isArray(part))
        return `[${space()}${part.map((entry) => write(entry) + space()).join(`,${space()}`)}]`;
      if (typeof part !== "object" || part === null) return JSON.stringify(part);
      const members = Object.entries(part).map(
        ([name, member]) =>
          `${space()}${JSON.stringify(name)}${space()}:${space()}${write(member)}${space()}`,
      );
      return `{${members.join(",")}${space()}}`;
    };
    return { spaced: space() + write(value) + space(), plain: JSON.stringify(value), value };
  });
