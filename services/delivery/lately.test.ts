import { expect, test } from "bun:test";
import { Lately } from "./lately.ts";

test("remembers what was noted for the time that it is given, and for no longer than twice that time", () => {
  let now = 0;
  const lately = new Lately<string>(1_000, () => now);
  lately.note("a");
  now = 1_000;
  expect([lately.has("a"), lately.has("b")]).toEqual([true, false]);
  now = 1_001;
  lately.note("b");
  expect([lately.has("a"), lately.has("b")]).toEqual([true, true]);
  now = 2_002;
  expect([lately.has("a"), lately.has("b")]).toEqual([false, true]);
  now = 9_000;
  expect(lately.has("b")).toBe(false);
});
