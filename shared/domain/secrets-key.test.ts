import { describe, expect, test } from "bun:test";
import { type GivenKeys, judgeKeys, type KnownKey } from "./secrets-key.ts";

/** `A` seals, `a` may have something left, `(a)` is retired; letters are fingerprints. */
function known(text: string): KnownKey[] {
  return text.split(" ").flatMap((word) => {
    const fingerprint = word.replace(/[()]/g, "").toLowerCase();
    return word === "" ? [] : [{ fingerprint, seals: /[A-Z]/.test(word), isRetired: word.startsWith("(") }];
  });
}
const judge = (keys: string, given: string) =>
  judgeKeys(known(keys), given.split("") as unknown as GivenKeys);

describe("a cell that seals with a", () => {
  test.each(["a", "ab", "abc"])("takes a process with %s, which changes nothing", (given) => {
    expect(judge("A", given)).toEqual({ kind: "present" });
  });

  test.each(["b", "bc"])("refuses a process with %s: it could open nothing", (given) => {
    expect(judge("A", given)).toEqual({ kind: "refused", missing: ["a"] });
  });

  test("takes another key beside its own, as a change", () => {
    expect(judge("A", "ba")).toEqual({ kind: "change" });
  });
});

describe("a cell that has changed from a to b", () => {
  test.each(["b", "bc", "cb"])("refuses a process with %s until nothing is left under a", (given) => {
    expect(judge("a B", given)).toEqual({ kind: "refused", missing: ["a"] });
  });

  test("refuses a process with a alone, which could not open what is new", () => {
    expect(judge("a B", "a")).toEqual({ kind: "refused", missing: ["b"] });
    expect(judge("(a) B", "a")).toEqual({ kind: "refused", missing: ["b"] });
  });

  test("takes a process of the step before, or a way back, which seals with a again", () => {
    expect(judge("a B", "ab")).toEqual({ kind: "change" });
    expect(judge("(a) B", "ab")).toEqual({ kind: "change" });
  });

  test("needs a no more once it is retired", () => {
    expect(judge("(a) B", "b")).toEqual({ kind: "present" });
  });

  test("asks a third key for both", () => {
    expect(judge("a B", "cb")).toEqual({ kind: "refused", missing: ["a"] });
    expect(judge("a B", "cba")).toEqual({ kind: "change" });
  });
});

test("a cell whose only key was declared lost takes any", () => {
  expect(judge("(a)", "b")).toEqual({ kind: "change" });
});
