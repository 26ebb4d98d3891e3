import { expect, test } from "bun:test";
import fc from "fast-check";
import { measureGrowth } from "../../test/support/growth.ts";
import { ApiError } from "../domain/errors.ts";
import { TAGS_MAX } from "../domain/tags.ts";
import { canonicalParts } from "./canonical.ts";
import { type Body, BodyReader, checkPayloadSize, SLICE_CHARACTERS } from "./json.ts";
import { unescapeString } from "./json-names.ts";
import { DEPTH_MAX, JsonScanner, type PayloadPlace, SHELL_VALUES_MAX } from "./json-scanner.ts";
import { jsonTexts, parseBody } from "./test-support.ts";

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

test("a body has the value that JSON.parse finds, and its payload the text without white space", () => {
  fc.assert(
    fc.property(jsonTexts, ({ spaced, plain }) => {
      const body = parse(`{"a":[${spaced},1] , "payload" :${spaced},"z":{"payload":0}}`, "member");
      const { payload, ...others } = body.value as Record<string, unknown>;
      expect(JSON.stringify(others)).toBe(`{"a":[${plain},1],"z":{"payload":0}}`);
      expect(body.payloadTexts).toEqual([plain]);
      const shell = plain.startsWith("{") ? "{}" : plain.startsWith("[") ? "[]" : plain;
      expect(payload).toEqual(JSON.parse(shell));
    }),
  );
});

/** Pieces that make JSON text or nearly so. */
const pieces = [
  ...['"a"', '"payload"', '"\\"', '"\\u0061"', '"\\ud800"', '"\u0001"', '"', "\\", "\\x"],
  ...["{", "}", "[", "]", ":", ",", " ", "\n", "\u00a0"],
  ...["0", "1", "-", ".", "e", "E+", "01", "1.5e-3", "true", "fals", "null", "NaN"],
];
const nearlyJson = fc
  .tuple(
    fc.array(fc.constantFrom(...pieces), { maxLength: 9 }),
    fc.constantFrom("", '{"b":', '{"payload":', "["),
  )
  .map(([parts, start]) => start + parts.join("") + (start === "" ? "" : start === "[" ? "]" : "}"));

test("a body is refused if JSON.parse refuses it, if it is too deep or has duplicates, and else never", () => {
  fc.assert(
    fc.property(nearlyJson, (text) => {
      let value: unknown;
      try {
        value = JSON.parse(text);
      } catch {
        expect(refusalOf(text, "member")[0]).toBe("invalid_request");
        return;
      }
      try {
        expect(parse(text).value).toEqual(value);
      } catch (error) {
        expect((error as Error).message).toContain("same name");
      }
    }),
    { numRuns: 5_000 },
  );
});

test("a body read a few characters at a time is the same body", () => {
  const readBy = (text: string, place: PayloadPlace, charactersMax: number) => {
    const scanner = new JsonScanner(text, place);
    try {
      for (;;) {
        const scan = scanner.read(charactersMax);
        if (scan !== null) return scan;
      }
    } catch (error) {
      return error;
    }
  };
  const texts = fc.oneof(
    nearlyJson,
    fc.array(jsonTexts).map((parts) => `{"jobs":[${parts.map(({ spaced }) => `{"payload":${spaced}}`)}]}`),
  );
  fc.assert(
    fc.property(
      texts,
      fc.constantFrom("member", "each job"),
      fc.integer({ min: 1, max: 9 }),
      (text, place, step) => {
        expect(readBy(text, place, step)).toEqual(readBy(text, place, text.length + 1));
      },
    ),
    { numRuns: 1_000 },
  );
});

test("a large body is read slice by slice, and no further than it can be valid", () => {
  const slicesOf = (text: string, place: PayloadPlace) => {
    const reader = new BodyReader(Buffer.from(text), place);
    let count = 1;
    try {
      while (reader.read() === null) count++;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return `${error.code} ${error.param} after ${count}`;
    }
    return count;
  };
  const filled = (piece: string) => piece.repeat((SLICE_CHARACTERS * 10) / piece.length);
  for (const payload of [filled("1,"), filled("[],"), filled('"",'), filled('{"a":1},'), filled(" 1 , ")]) {
    const text = `{"jobs":[{"payload":[${payload}1]}]}`;
    expect(slicesOf(text, "each job")).toBe(Math.ceil(text.length / SLICE_CHARACTERS));
  }
  const string = `{"jobs":[{"payload":"${filled("\\n")}","target_url":"${filled("x")}"}]}`;
  expect(slicesOf(string, "each job")).toBe(Math.ceil(string.length / SLICE_CHARACTERS));
  expect(slicesOf(`{"payload":{"a":"${filled("x")}"}}`, "member")).toBe("payload_too_large payload after 5");
  expect(slicesOf(`{"payload":[${filled("1,")}1]}`, "member")).toBe("payload_too_large payload after 5");
  for (const values of [filled("1,"), filled("{},")]) {
    expect(slicesOf(`{"jobs":[${values}1]}`, "each job")).toBe("invalid_request jobs after 1");
    expect(slicesOf(`{"jobs":[],"x":{"y":[${values}1]}}`, "each job")).toBe("invalid_request x.y after 1");
  }
  expect(slicesOf(`{"jobs":[{"x":"${"x".repeat(8_388_608)}"}]}`, "each job")).toStartWith("invalid_request");
});

test("a long number is read slice by slice, in each of its parts", () => {
  const digits = "12".repeat(SLICE_CHARACTERS);
  for (const number of [digits, `-0.${digits}`, `1e-${digits}`, `${digits}.${digits}E+${digits}`]) {
    for (const place of ["none", "each job"] as const) {
      const text = `{"payload":${number}}`;
      const scanner = new JsonScanner(text, place);
      let sliceCount = 1;
      while (scanner.read(SLICE_CHARACTERS) === null) sliceCount++;
      expect(sliceCount).toBeGreaterThanOrEqual(Math.floor(text.length / SLICE_CHARACTERS));
    }
    expect(parse(`{"x":${number}}`).value).toEqual({ x: Number(number) });
  }
  // Reading stops as soon as a number alone is beyond the bound of a shell.
  const scanner = new JsonScanner("9".repeat(33_554_432), "each job");
  let readCount = 0;
  expect(() => {
    while (scanner.read(SLICE_CHARACTERS) === null) readCount++;
  }).toThrow("characters outside of payloads");
  expect(readCount).toBeLessThan(100);
});

test("a long number is one where JSON.parse finds one", () => {
  const part = fc.constantFrom(
    ...[
      "",
      "0",
      "7",
      ".",
      "e",
      "E-",
      "+",
      "-",
      "1".repeat(8_191),
      "0".repeat(8_192),
      "3".repeat(8_193),
      "9".repeat(20_000),
    ],
  );
  fc.assert(
    fc.property(fc.array(part, { maxLength: 7 }), fc.constantFrom("", ",1", " "), (parts, end) => {
      const text = `[${parts.join("")}${end}]`;
      let value: unknown;
      try {
        value = JSON.parse(text);
      } catch {
        expect(refusalOf(text)).toEqual(invalid);
        return;
      }
      expect(parse(text).value).toEqual(value);
    }),
    { numRuns: 3_000 },
  );
});

test("a batch whose entries have every field and some unknown ones is read to its end", () => {
  const entry = `{"target_url":"","payload":[${"0,".repeat(SHELL_VALUES_MAX)}0],"run_at":"","region":"",
    "retry_policy":{"max_attempts":1,"base_seconds":1,"cap_seconds":1},"tags":["0"${',"0"'.repeat(TAGS_MAX - 1)}],
    "flow":{"key":"","concurrency":1,"rate":{"count":1,"per_seconds":1},"hold":"job"},${Array.from({ length: 8 }, (_, n) => `"x${n}":0`)}}`;
  const { value } = parse(`{"jobs":[${Array<string>(100).fill(entry)}]}`, "each job");
  expect((value as { jobs: unknown[] }).jobs).toHaveLength(100);
});

test("names with equal hashes in the engine's tables are read as fast as others", () => {
  const bodyOf = (spell: (middle: string) => string) => {
    const names = Array.from({ length: 5_000 }, (_, n) => spell(n.toString(36).padEnd(8, "_")));
    return Buffer.from(`{"payload":{${names.map((name) => `"${name}":0`)}}}`);
  };
  const read = (bytes: Uint8Array) => {
    for (const _part of canonicalParts(parseBody(bytes, "member")));
  };
  // The engine's hash of such a name multiplies by zero, so the middle of the name does not count.
  const written = bodyOf((middle) => `\u0093K\u00b8\u008b${middle}\u00c9\u00ac.\u0096`);
  const escaped = bodyOf((middle) => `\\u0093K\\u00b8\\u008b${middle}\\u00c9\\u00ac.\\u0096`);
  const others = bodyOf((middle) => `áéíó${middle}áéíó`);
  const othersEscaped = bodyOf((middle) => `\\u00e1\\u00e9\\u00ed${middle}\\u00e1\\u00e9\\u00ed`);
  // These names would take sixty times as long in an object or a Set, or through JSON.parse alone.
  expect(measureGrowth(read, others, written, 10)).toBeLessThan(10);
  expect(measureGrowth(read, othersEscaped, escaped, 10)).toBeLessThan(10);
});

test("every escape is read as JSON.parse reads it", () => {
  fc.assert(
    fc.property(
      fc.array(
        fc.constantFrom(
          "\\n",
          "\\\\",
          '\\"',
          "\\/",
          "\\b\\f\\r\\t",
          "\\u0041",
          "\\uD83D\\ude00",
          "u0041",
          "é",
        ),
        { maxLength: 99 },
      ),
      (parts) => expect(unescapeString(parts.join(""))).toBe(JSON.parse(`"${parts.join("")}"`)),
    ),
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
  const batch = parse(
    `{"jobs":[{"payload":${payload(262_144, "é")}},{"payload":${payload(262_145, "é")},"a":1},{"payload":{}}]}`,
    "each job",
  );
  expect(batch.payloadTexts.map((text) => text?.length)).toEqual([131_076, undefined, 2]);
  expect(() => checkPayloadSize(batch, 1)).toThrow(ApiError);
  for (const entry of [0, 2]) expect(() => checkPayloadSize(batch, entry)).not.toThrow();
});

test("64 nested containers pass, 65 do not, and a million are refused fast", () => {
  const nested = (depth: number) => "[".repeat(depth) + "]".repeat(depth);
  expect(parse(nested(DEPTH_MAX)).value).toBeArray();
  expect(refusalOf(nested(DEPTH_MAX + 1))).toEqual(invalid);
  const objects = (depth: number) => `${'{"a":'.repeat(depth)}1${"}".repeat(depth)}`;
  expect(parse(objects(DEPTH_MAX)).value).toBeObject();
  expect(refusalOf(objects(DEPTH_MAX + 1))).toEqual(invalid);
  expect(parse(`"${"[".repeat(100)}"`).value).toBe("[".repeat(100));
  const times = [1, 2, 3].map(() => {
    const before = process.cpuUsage();
    expect(refusalOf("[".repeat(1_000_000))).toEqual(invalid);
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1_000;
  });
  expect(Math.min(...times)).toBeLessThan(500);
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
    // Names inside a payload are customer data and are not shown.
    ['{"payload":{"x":[{"secret":1,"secret":2}]}}', "payload"],
    ['{"jobs":[{},{"payload":{"secret":1,"secret":2}}]}', "jobs[1].payload"],
    ['{"payload":{},"payload":{}}', "payload"],
  ];
  for (const [text, param] of golden) {
    const place = text.includes("jobs") ? "each job" : "member";
    expect([text, refusalOf(text, place)]).toEqual([text, ["invalid_request", param]]);
  }
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
  const payloadOf = (count: number) =>
    Buffer.from(`{"payload":{${Array.from({ length: count }, (_, n) => `"${n.toString(36)}":0`)}}}`);
  const [small, large] = [payloadOf(2_500), payloadOf(25_000)];
  const read = (bytes: Uint8Array) => void parseBody(bytes, "member");
  // Quadratic work would take a hundred times as long.
  expect(measureGrowth(read, small, large, 40)).toBeLessThan(40);
});
