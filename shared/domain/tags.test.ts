import { expect, test } from "bun:test";
import { ApiError } from "./errors.ts";
import { checkTags, tagFilterOf } from "./tags.ts";

function paramOf(act: () => unknown): string | undefined {
  try {
    act();
  } catch (error) {
    if (error instanceof ApiError && error.code === "invalid_request") return error.param;
    throw error;
  }
  throw new Error("It was not refused.");
}

const EVERY_CHARACTER = ["ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz", "0123456789_.:/@+-"];

test("a tag is 1 to 64 of the allowed characters, and each is given once", () => {
  checkTags([...EVERY_CHARACTER, "x".repeat(64), "NULL", "null", "Null", "..", "-1"]);
  for (const bad of [
    "",
    "x".repeat(65),
    " a",
    "a ",
    "a,b",
    "a\nb",
    "a\n",
    "ä",
    "a\0",
    '"',
    "\\",
    "{}",
    "a%2Bb",
    "😀",
  ]) {
    expect(paramOf(() => checkTags(["a", bad]))).toBe("tags[1]");
  }
  expect(paramOf(() => checkTags(["a", "A", "a"]))).toBe("tags[2]");
});

test("a list is filtered by what may be a tag, and by nothing else", () => {
  expect(tagFilterOf(undefined)).toBeNull();
  for (const tag of EVERY_CHARACTER) expect(tagFilterOf(tag)).toBe(tag);
  for (const text of ["", " ", "a b", "a\n", "x".repeat(65)])
    expect(paramOf(() => tagFilterOf(text))).toBe("tag");
});
