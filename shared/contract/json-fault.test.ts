import { expect, test } from "bun:test";
import fc from "fast-check";
import { ApiError } from "../domain/errors.ts";
import { BodyReader, SLICE_CHARACTERS } from "./json.ts";
import { jsonTexts, parseBody } from "./test-support.ts";

function messageFor(text: string): string {
  try {
    parseBody(Buffer.from(text), "member");
  } catch (error) {
    if (error instanceof ApiError && error.code === "invalid_request" && error.param === undefined)
      return error.message;
    throw error;
  }
  throw new Error("It was not refused.");
}

test.each([
  ["{", "it ends at line 1, column 2, where a name in double quotes or } is expected."],
  ["[1,", "it ends at line 1, column 4, where a value is expected."],
  ['{"a":"b', "it ends at line 1, column 8, where a closing quote is expected."],
  ['{"a":1,}', "at line 1, column 8, a name in double quotes is expected."],
  ["{'a':1}", "at line 1, column 2, a name in double quotes or } is expected."],
  ['{"a" 1}', "at line 1, column 6, a colon is expected."],
  ['{"a":1 "b":2}', "at line 1, column 8, a comma or } is expected."],
  ["[1 2]", "at line 1, column 4, a comma or ] is expected."],
  ["{} x", "at line 1, column 4, the end is expected."],
  ['{\n  "a": "x",\n  "b": tru\n}', "at line 3, column 8, a value is expected."],
  ['{"a": undefined}', "at line 1, column 7, a value is expected."],
  ['{"a":"b\nc"}', "at line 1, column 8, an escape for this control character is expected."],
  ['{"a":"\\x"}', "at line 1, column 7, a valid escape is expected."],
  ['{"\u{1f600}\u{1f600}":x}', "at line 1, column 7, a value is expected."],
  ['{"\u00fc\u20ac":1,\r\n "b": }', "at line 2, column 7, a value is expected."],
  ["\ufeff{}", "at line 1, column 1, a value is expected."],
])("%j is refused at its place", (text, end) => {
  expect(messageFor(text)).toBe(`The body is not valid JSON: ${end}`);
});

test("an empty body is called so", () => {
  expect(messageFor("")).toBe("The body is empty; JSON is expected.");
});

test("whatever JSON stands before it, a fault is found at its line and character", () => {
  fc.assert(
    fc.property(jsonTexts, ({ spaced }) => {
      const before = `{"\u{1f600}":${spaced}`;
      const lines = before.split("\n");
      const where = `line ${lines.length}, column ${[...(lines.at(-1) ?? "")].length + 1}`;
      expect(messageFor(`${before}@}`)).toBe(
        `The body is not valid JSON: at ${where}, a comma or } is expected.`,
      );
    }),
  );
});

test("the lines of a large body are counted slice by slice", () => {
  const text = `[${"\n".repeat(SLICE_CHARACTERS * 5)}@`;
  const reader = new BodyReader(Buffer.from(text), "none");
  let count = 0;
  let message = "";
  while (message === "") {
    count++;
    try {
      reader.read();
    } catch (error) {
      message = (error as Error).message;
    }
  }
  // Six slices are scanned: five whole ones and the last. The read that scans the last one counts the first one, too.
  expect(count).toBe(6 + 5);
  expect(message).toContain(`at line ${SLICE_CHARACTERS * 5 + 1}, column 1,`);
});
