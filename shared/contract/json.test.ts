import { expect, test } from "bun:test";
import fc from "fast-check";
import { ApiError } from "../domain/errors.ts";
import { type Body, canonicalText, DEPTH_MAX, type PayloadPlace, parseBody } from "./json.ts";

const parse = (text: string, place: PayloadPlace = "none"): Body => parseBody(Buffer.from(text), place);

/** The code and param with which a body is refused. */
function refusalOf(body: string | Uint8Array, place: PayloadPlace = "none"): [string, string | undefined] {
  try {
    parseBody(Buffer.from(body), place);
  } catch (error) {
    if (error instanceof ApiError) return [error.code, error.param];
    throw error;
  }
  throw new Error("It was not refused.");
}
const invalid: [string, undefined] = ["invalid_request", undefined];

/** Any JSON value as text with white space wherever it may stand, and as text without any. */
const jsonTexts = fc
  .tuple(fc.jsonValue(), fc.array(fc.constantFrom("", " ", "\n\t", "\r\n"), { minLength: 1 }))
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

test("a body has the value that JSON.parse finds, and its payload the text without white space", () => {
  fc.assert(
    fc.property(jsonTexts, ({ spaced, plain, value }) => {
      const body = parse(`{"a":[${spaced},1] , "payload" :${spaced},"z":{"payload":0}}`, "member");
      expect(JSON.stringify((body.value as { payload: unknown }).payload)).toBe(JSON.stringify(value));
      expect(body.payloadTexts).toEqual([plain]);
    }),
  );
});

test("whatever JSON.parse refuses is refused, and nothing else but depth and duplicates", () => {
  const pieces = [
    '"a"',
    '"payload"',
    '"\\"',
    '"\\u0061"',
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    " ",
    "1",
    "-",
    "true",
    "\\",
  ];
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...pieces), { maxLength: 9 }), fc.boolean(), (parts, isObject) => {
      const text = isObject ? `{"b":${parts.join("")}}` : parts.join("");
      let value: unknown;
      try {
        value = JSON.parse(text);
      } catch {
        expect(refusalOf(text, "member")[0]).toBe("invalid_request");
        return;
      }
      try {
        expect(parse(text, "member").value).toEqual(value);
      } catch (error) {
        expect((error as Error).message).toContain("same name");
      }
    }),
    { numRuns: 2_000 },
  );
});

test("numbers and escapes of a payload stay as they were written", () => {
  const payload = '{"a":9007199254740993,"b":1.0e+5,"c":-0,"d":1e400,"e":"\\ud800\\u0000\\/ \\" é","f":[ ]}';
  const body = parse(`{"payload": ${payload.replaceAll(",", " ,\n")} }`, "member");
  expect(body.payloadTexts[0]).toBe(payload.replace("[ ]", "[]"));
});

test("the payload is found under any spelling of its name, at its own depth only", () => {
  expect(parse('{"p\\u0061yload":{"payload":1},"x":{"payload":2}}', "member").payloadTexts).toEqual([
    '{"payload":1}',
  ]);
  expect(parse('{"x":"payload","y":{"payload":2}}', "member").payloadTexts).toEqual([]);
  expect(parse('{"payload":{}}', "none").payloadTexts).toEqual([]);
  expect(parse('{"payload":{"a":"payload"} }', "member").payloadTexts).toEqual(['{"a":"payload"}']);
});

test("a batch has the payload text of each entry at the entry's index", () => {
  const text = `{"other": [{"payload": 0}, 1],
    "jobs" : [ {"payload": {"a": [1, 2]}}, {"x": {"payload": 5}, "y": [1, 2]}, 7, {"y": 1 , "payload" : [ {} ] } ],
    "more": [{"payload": 0}]}`;
  const body = parse(text, "each job");
  expect([...body.payloadTexts]).toEqual(['{"a":[1,2]}', undefined, undefined, "[{}]"]);
});

test("a payload of 262,144 bytes passes, one more does not; white space is not counted", () => {
  const payload = (bytes: number, filler: string) => {
    const count = Math.floor((bytes - 8) / Buffer.byteLength(filler));
    return `{"a":"${filler.repeat(count)}${"x".repeat(bytes - 8 - count * Buffer.byteLength(filler))}"}`;
  };
  for (const filler of ["x", "é", "😀"]) {
    const fits = payload(262_144, filler);
    expect(Buffer.byteLength(fits)).toBe(262_144);
    expect(parse(`{"payload": \n\n ${fits} }`, "member").payloadTexts[0]).toBe(fits);
    const refusal = refusalOf(`{"payload":${payload(262_145, filler)}}`, "member");
    expect(refusal).toEqual(["payload_too_large", "payload"]);
  }
  // An entry of a batch is judged on its own, with its index.
  expect(parse(`{"jobs":[{"payload":${payload(262_145, "x")}}]}`, "each job").payloadTexts).toHaveLength(1);
});

test("64 nested containers pass, 65 do not, and a million are refused fast", () => {
  const nested = (depth: number) => "[".repeat(depth) + "]".repeat(depth);
  expect(parse(nested(DEPTH_MAX)).value).toBeArray();
  expect(refusalOf(nested(DEPTH_MAX + 1))).toEqual(invalid);
  const objects = (depth: number) => `${'{"a":'.repeat(depth)}1${"}".repeat(depth)}`;
  expect(parse(objects(DEPTH_MAX)).value).toBeObject();
  expect(refusalOf(objects(DEPTH_MAX + 1))).toEqual(invalid);
  expect(parse(`"${"[".repeat(100)}"`).value).toBe("[".repeat(100));
  const start = performance.now();
  expect(refusalOf("[".repeat(1_000_000))).toEqual(invalid);
  expect(performance.now() - start).toBeLessThan(500);
});

test("broken UTF-8, other encodings, trailing garbage and an empty body are refused", () => {
  const bad = [
    Uint8Array.of(0x22, 0xff, 0x22),
    Uint8Array.of(0x22, 0xc0, 0xaf, 0x22),
    Uint8Array.of(0x22, 0xed, 0xa0, 0x80, 0x22),
    Uint8Array.of(0x22, 0xe2, 0x82, 0x22),
    Buffer.from('{"a":1}', "utf16le"),
    ...[
      "\ufeff{}",
      "{}x",
      "{} {}",
      "{},",
      "",
      " ",
      "{'a':1}",
      "{a:1}",
      "[1,]",
      "01",
      "NaN",
      '"\n"',
      "{} //",
      "\u00a0{}",
    ],
  ];
  for (const body of bad) expect([body, refusalOf(body)]).toEqual([body, invalid]);
});

test("duplicate members are refused anywhere, whatever their spelling", () => {
  const golden: [string, string][] = [
    ['{"a":1,"a":1}', "a"],
    ['{"a":1,"\\u0061":2}', "a"],
    ['{"a":{"b":1},"c":{"b":1,"b":2}}', "c.b"],
    ['{"__proto__":1,"__proto__":2}', "__proto__"],
    ['{"1":1,"1":2}', "1"],
    ['{"":1,"":2}', ""],
    ['{"retry_policy":{"max_attempts":1,"max_attempts":25}}', "retry_policy.max_attempts"],
    ['{"jobs":[{"a":[1,2]},{"x":[{}],"run_at":"a","run_at":"b"}]}', "jobs[1].run_at"],
    // The names inside a payload are the customer's own.
    ['{"payload":{"x":[{"secret":1,"secret":2}]}}', "payload"],
    ['{"jobs":[{},{"payload":{"secret":1,"secret":2}}]}', "jobs[1].payload"],
    ['{"payload":{},"payload":{}}', "payload"],
  ];
  for (const [text, param] of golden)
    expect([text, refusalOf(text)]).toEqual([text, ["invalid_request", param]]);
  for (const text of ['{"a":{"a":{"a":1}}}', '[{"a":1},{"a":1}]', '{"a":"a\\":1","b":1}', '{"a":1,"A":2}']) {
    expect(parse(text).value).toEqual(JSON.parse(text));
  }
});

test("__proto__ is a member like any other and changes no prototype", () => {
  const { value, payloadTexts } = parse('{"payload":{"__proto__":{"x":1}}, "__proto__":{"y":1}}', "member");
  expect(Object.keys(value as object)).toEqual(["payload", "__proto__"]);
  expect((value as { y?: number }).y).toBeUndefined();
  expect(payloadTexts).toEqual(['{"__proto__":{"x":1}}']);
});

test("ten times as many members take about ten times as long", () => {
  const objectOf = (count: number) =>
    Buffer.from(`{${Array.from({ length: count }, (_, i) => `"k${i}":0`).join(",")}}`);
  const timeOf = (bytes: Uint8Array) => {
    const start = performance.now();
    parseBody(bytes, "none");
    return performance.now() - start;
  };
  const [small, large] = [objectOf(100_000), objectOf(1_000_000)];
  const best = (bytes: Uint8Array) => Math.min(timeOf(bytes), timeOf(bytes), timeOf(bytes));
  // Quadratic work would be a hundred times.
  expect(best(large)).toBeLessThan(Math.max(best(small), 5) * 40);
});

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
  ];
  for (const [text, canonical] of golden) expect(canonicalText(text)).toBe(canonical);
  expect(canonicalText("1.0")).not.toBe(canonicalText("1"));
});

test("canonical text does not depend on white space or member order, and loses nothing", () => {
  fc.assert(
    fc.property(jsonTexts, ({ spaced, plain, value }) => {
      const canonical = canonicalText(spaced);
      expect(canonical).toBe(canonicalText(plain));
      expect(canonical).toBe(canonicalText(canonical));
      expect(canonical).toBe(canonicalText(JSON.stringify(reversed(value))));
      expect(JSON.parse(canonical)).toEqual(JSON.parse(plain));
    }),
  );
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
