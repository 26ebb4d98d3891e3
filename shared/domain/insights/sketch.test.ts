import { expect, test } from "bun:test";
import fc from "fast-check";
import { Sketch } from "./sketch.ts";

const RELATIVE_ERROR_PROMISED = 0.02;
const SHARES = [0, 0.01, 0.5, 0.9, 0.99, 1];

const sketchOf = (values: readonly number[]) => {
  const sketch = new Sketch();
  for (const value of values) sketch.add(value);
  return sketch;
};
const stateOf = (sketch: Sketch) => sketch.encode()?.toString("hex");
/** Short durations, long ones, and any that the database can hold. */
const milliseconds = fc.oneof(
  fc.integer({ min: 0, max: 60 }),
  fc.integer({ min: 0, max: 100_000 }),
  fc.integer({ min: 0, max: 2_147_483_647 }),
);
const values = fc.array(milliseconds, { minLength: 1, maxLength: 300 });

test("each percentile is a whole number within 2 % of the true one, and the greatest value is exact", () => {
  fc.assert(
    fc.property(values, (all) => {
      const sketch = sketchOf(all);
      const sorted = all.toSorted((a, b) => a - b);
      for (const share of SHARES) {
        const truth = sorted[Math.max(1, Math.ceil(share * all.length)) - 1] ?? -1;
        const told = sketch.quantile(share) ?? -1;
        expect(Number.isInteger(told)).toBe(true);
        expect(Math.abs(told - truth)).toBeLessThanOrEqual(truth * RELATIVE_ERROR_PROMISED);
      }
      const { p50, p90, p99, max } = sketch.percentiles();
      expect(max).toBe(sorted.at(-1) ?? -1);
      expect([p50, p90, p99]).toEqual([sketch.quantile(0.5), sketch.quantile(0.9), sketch.quantile(0.99)]);
    }),
    { numRuns: 500 },
  );
});

test("every value is told within 2 %, and every one below 50 ms exactly", () => {
  const told = (value: number) => sketchOf([value, 2_147_483_647]).quantile(0.5) ?? -1;
  for (let value = 0; value < 50; value++) expect(told(value)).toBe(value);
  for (let value = 50; value < 2e9; value = Math.ceil(value * 1.003)) {
    expect(Math.abs(told(value) - value)).toBeLessThanOrEqual(value * RELATIVE_ERROR_PROMISED);
  }
});

test("sketches add up to the sketch of all values, in whatever order and grouping", () => {
  fc.assert(
    fc.property(
      fc.array(fc.array(milliseconds, { maxLength: 50 }), { minLength: 1, maxLength: 6 }),
      (groups) => {
        const whole = stateOf(sketchOf(groups.flat()));
        const fromLeft = new Sketch();
        for (const group of groups) fromLeft.addAll(sketchOf(group));
        const fromRight = new Sketch();
        for (const group of groups.toReversed()) fromRight.addEncoded(sketchOf(group).encode());
        expect(stateOf(fromLeft)).toBe(whole as string);
        expect(stateOf(fromRight)).toBe(whole as string);
      },
    ),
  );
});

test("counts of billions survive being written and read", () => {
  const sketch = new Sketch();
  sketch.add(0, 5_000_000_000);
  sketch.add(120_000, 5_000_000_001);
  const read = new Sketch();
  read.addEncoded(sketch.encode());
  expect(read.count).toBe(10_000_000_001);
  expect(read.percentiles()).toEqual(sketch.percentiles());
  expect(read.percentiles().max).toBe(120_000);
});

test("a sketch of nothing has no percentiles and takes no room, and half a sketch is refused", () => {
  expect(new Sketch().percentiles()).toEqual({ p50: null, p90: null, p99: null, max: null });
  expect(new Sketch().encode()).toBeNull();
  const bytes = sketchOf([1_000_000]).encode() ?? Buffer.alloc(0);
  expect(() => new Sketch().addEncoded(bytes.subarray(0, bytes.length - 1))).toThrow("too early");
});
