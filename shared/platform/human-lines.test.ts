import { expect, test } from "bun:test";
import { escapeControls, humanLine } from "./human-lines.ts";

const AT = Date.parse("2026-11-24T10:20:30.456Z");
const line = (fields: object, level = 30, msg = "attempt.settled") =>
  JSON.stringify({ level, time: AT, pid: 1, hostname: "here", name: "standalone", ...fields, msg });

test("a line tells the time, the level, the message and the fields that have a value", () => {
  const fields = {
    jobId: "job_1",
    durationMs: 12,
    responseStatus: null,
    why: "two words",
    regions: ["us-east"],
  };
  expect(humanLine(line(fields), false)).toBe(
    '10:20:30.456Z INFO  attempt.settled jobId=job_1 durationMs=12 why="two words" regions=["us-east"]\n',
  );
  expect(humanLine(line({}, 40, "regions.held"), false)).toBe("10:20:30.456Z WARN  regions.held\n");
});

test("colours are all that a terminal obeys", () => {
  const coloured = humanLine(line({ host: "a.example" }), true);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the colours begin with one.
  expect(coloured.replaceAll(/\u001b\[[0-9]+m/g, "")).toBe(humanLine(line({ host: "a.example" }), false));
  const hostile = "a\u001b[2Jb\u009b2Jc\u202ed\u2028e\nf\rg\u0007h\u{e0001}i\ud800j\u007f";
  const parts = [hostile, [hostile], { [hostile]: hostile }];
  for (const value of parts) {
    const text = humanLine(
      line({ value, [hostile]: 1, err: { type: hostile, message: hostile, stack: hostile } }),
      false,
    );
    expect(text.replaceAll("\n", "")).toBe(escapeControls(text.replaceAll("\n", "")));
    // The line itself, the error's first line, and one for each line of its stack.
    expect(
      text
        .trimEnd()
        .split("\n")
        .map((each) => each.startsWith("    ")),
    ).toEqual([false, true, true, true]);
  }
});

test("an error shows its stack and its causes, in a bounded number of bounded lines", () => {
  const cause = { type: "Error", message: "below" };
  const err = { type: "TypeError", message: "broken", stack: "at a (a.ts:1)\nat b (b.ts:2)", cause };
  expect(humanLine(line({ err }, 50, "attempt.failed"), false)).toBe(
    [
      "10:20:30.456Z ERROR attempt.failed",
      "    TypeError: broken",
      "      at a (a.ts:1)",
      "      at b (b.ts:2)",
      "    caused by Error: below",
      "",
    ].join("\n"),
  );
  const stack = Array.from({ length: 1_000 }, () => "x".repeat(10_000)).join("\n");
  const long = humanLine(line({ text: "y".repeat(100_000), err: { ...err, stack } }), false);
  expect(long.length).toBeLessThan(10_000);
});
