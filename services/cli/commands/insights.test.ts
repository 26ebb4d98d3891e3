import { expect, test } from "bun:test";
import { barsOf } from "./insights.ts";

test("bars are as high as their values, and nothing has the lowest one to itself", () => {
  expect(barsOf([0, 1, 50, 100])).toBe("▁▂▅█");
  expect(barsOf([0, 0])).toBe("▁▁");
});

test("neighbours are drawn together where there are many, and none of the greatest is lost", () => {
  const week = Array.from({ length: 168 }, (_, hour) => (hour === 100 ? 7 : 0));
  expect(barsOf(week)).toBe(`${"▁".repeat(33)}█${"▁".repeat(22)}`);
});
