import { describe, expect, test } from "bun:test";
import { type GivenKeys, judgeKeys, type KnownKey } from "./secrets-key.ts";

/** Letters are fingerprints. `A` is the sealing key, `a` may have sealed secrets, `(a)` is retired. */
function known(text: string): KnownKey[] {
  return text.split(" ").flatMap((word) => {
    const fingerprint = word.replace(/[()]/g, "").toLowerCase();
    return word === "" ? [] : [{ fingerprint, seals: /[A-Z]/.test(word), isRetired: word.startsWith("(") }];
  });
}
const judge = (keys: string, given: string) =>
  judgeKeys(known(keys), given.split("") as unknown as GivenKeys);

describe("a cell that seals with a", () => {
  test.each(["a", "ab", "abc"])("accepts a process with %s, which changes nothing", (given) => {
    expect(judge("A", given)).toEqual({ kind: "present" });
  });

  test.each(["b", "bc"])("refuses a process with %s: it could open nothing", (given) => {
    expect(judge("A", given)).toEqual({ kind: "refused", missing: ["a"] });
  });

  test("accepts another key beside its own, as a change of the key", () => {
    expect(judge("A", "ba")).toEqual({ kind: "change" });
  });
});

describe("a cell that has changed from a to b", () => {
  test.each(["b", "bc", "cb"])("refuses a process with %s until no secret is sealed with a", (given) => {
    expect(judge("a B", given)).toEqual({ kind: "refused", missing: ["a"] });
  });

  test("refuses a process with a alone, which could not open new secrets", () => {
    expect(judge("a B", "a")).toEqual({ kind: "refused", missing: ["b"] });
    expect(judge("(a) B", "a")).toEqual({ kind: "refused", missing: ["b"] });
  });

  test("accepts a process that still or again seals with a", () => {
    expect(judge("a B", "ab")).toEqual({ kind: "change" });
    expect(judge("(a) B", "ab")).toEqual({ kind: "change" });
  });

  test("does not ask for a once it is retired", () => {
    expect(judge("(a) B", "b")).toEqual({ kind: "present" });
  });

  test("asks a process with a third key for both", () => {
    expect(judge("a B", "cb")).toEqual({ kind: "refused", missing: ["a"] });
    expect(judge("a B", "cba")).toEqual({ kind: "change" });
  });
});

test("a cell whose only key was declared lost accepts any key", () => {
  expect(judge("(a)", "b")).toEqual({ kind: "change" });
});
