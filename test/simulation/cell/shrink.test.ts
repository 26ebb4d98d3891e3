import { expect, test } from "bun:test";
import fc from "fast-check";
import { shrink } from "./shrink.ts";

test("what is left fails, and no single item of it can be left out", () => {
  const needed = fc.uniqueArray(fc.nat(29), { maxLength: 5 });
  fc.assert(
    fc.property(needed, (wanted) => {
      const fails = (fewer: readonly number[]) => wanted.every((item) => fewer.includes(item));
      const all = Array.from({ length: 30 }, (_, index) => index);
      expect([...shrink(all, fails, 10_000)]).toEqual(wanted.toSorted((one, other) => one - other));
    }),
  );
});

test("it ends after so many tries, with a list that fails", () => {
  let tries = 0;
  const fails = (fewer: readonly number[]) => {
    tries++;
    return fewer.includes(0) && fewer.includes(99);
  };
  const all = Array.from({ length: 100 }, (_, index) => index);
  const kept = shrink(all, fails, 6);
  expect(tries).toBe(6);
  expect([kept[0], kept.at(-1)]).toEqual([0, 99]);
});
