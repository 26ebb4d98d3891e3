import { expect, test } from "bun:test";
import { ApiError } from "./errors.ts";
import { checkLabel, checkName } from "./name.ts";

test("characters are code points, and 80 of them are 80", () => {
  checkName("😀".repeat(80), "name", 80);
  checkName("x", "name", 80);
  for (const text of ["x".repeat(81), "😀".repeat(81), "x".repeat(1_000_000)]) {
    expect(() => checkName(text, "name", 80)).toThrow(ApiError);
  }
});

test("a name is not blank and can be stored and shown", () => {
  for (const text of ["", " ", "\u00a0\u2003", "a\u0000", "a\nb", "\u0085a", "\ud800"]) {
    expect(() => checkName(text, "name", 80)).toThrow(ApiError);
  }
});

test("a label may be empty", () => {
  checkLabel("", "description", 200);
  checkLabel(" ", "description", 200);
  expect(() => checkLabel("x".repeat(201), "description", 200)).toThrow(ApiError);
  expect(() => checkLabel("\u0000", "description", 200)).toThrow(ApiError);
});
