import { expect, test } from "bun:test";
import fc from "fast-check";
import { measureGrowth } from "../../test/support/growth.ts";
import { canonicalParts, canonicalText } from "./canonical.ts";
import type { PayloadPlace } from "./json-scanner.ts";
import { jsonTexts, parseBody } from "./test-support.ts";

const partsOf = (text: string, place: PayloadPlace = "none") => [
  ...canonicalParts(parseBody(Buffer.from(text), place)),
];
const canonicalOf = (text: string) => partsOf(text).join("");

test("the same value has one canonical text", () => {
  const golden: [string, string][] = [
    [' { "b" : [ 1 , 2 ] , "a" : "x" } ', '{"a":"x","b":[1,2]}'],
    ['{"\\u0061":"\\u0078\\/\\ud83d\\ude00"}', '{"a":"x/😀"}'],
    ["[1.0, 1, 1e0, 100000000000000000001]", "[1.0,1,1e0,100000000000000000001]"],
    ['"\\ud800\\u0000"', '"\\ud800\\u0000"'],
    ["[ ]", "[]"],
    ["{ }", "{}"],
    ["[{},[],null , true,false]", "[{},[],null,true,false]"],
    ['{"b":1,"aa":2,"a":3,"":4}', '{"":4,"a":3,"aa":2,"b":1}'],
    ['{"b":{"d":[{"z":1,"y":"\\u0061"}],"c":2},"a":"\\/"}', '{"a":"/","b":{"c":2,"d":[{"y":"a","z":1}]}}'],
  ];
  for (const [text, expected] of golden) expect(canonicalOf(text)).toBe(expected);
  expect(canonicalOf("1.0")).not.toBe(canonicalOf("1"));
});

test("canonical text does not depend on white space or member order, and loses nothing", () => {
  fc.assert(
    fc.property(jsonTexts, ({ spaced, plain, value }) => {
      const canonical = canonicalOf(spaced);
      expect(canonical).toBe(canonicalOf(plain));
      expect(canonical).toBe(canonicalText(canonical));
      expect(canonical).toBe(canonicalOf(JSON.stringify(reversed(value))));
      expect(JSON.parse(canonical)).toEqual(JSON.parse(plain));
    }),
  );
});

test("each payload is a part of its own, and its place counts", () => {
  const batch = (...payloads: string[]) =>
    partsOf(
      `{"jobs":[${payloads.map((payload) => `{${payload === "" ? "" : `"payload":${payload}`}}`)}]}`,
      "each job",
    );
  expect(batch('{"b": 1, "a": 2}', "[1]")).toEqual(batch('{"a":2,"b":1}', "[ 1 ]"));
  const different = [
    batch("[1]", "[2]"),
    batch("[2]", "[1]"),
    batch("[1]", ""),
    batch("", "[1]"),
    batch("{}", "[1]"),
  ];
  expect(new Set(different.map((parts) => parts.join(""))).size).toBe(different.length);
  expect(batch("[1]", "[2]")).toHaveLength(3);
});

test("the time for deep objects with unsorted members does not grow with each level", () => {
  const nested = (depth: number, inner: string) => {
    let text = inner;
    for (let level = 0; level < depth; level++) text = `{"b":${text},"a":0}`;
    return text;
  };
  const inner = `{${Array.from({ length: 20_000 }, (_, n) => `"${(99_999 - n).toString(36)}":0`)}}`;
  // Work at each level would take sixty times as long.
  expect(measureGrowth(canonicalText, inner, nested(60, inner), 10)).toBeLessThan(10);
});

function reversed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(reversed);
  if (typeof value !== "object" || value === null) return value;
  // Assignment would set a prototype where the member is named __proto__.
  return Object.fromEntries(
    Object.entries(value)
      .reverse()
      .map(([name, member]) => [name, reversed(member)]),
  );
}
