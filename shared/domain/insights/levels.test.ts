import { expect, test } from "bun:test";
import fc from "fast-check";
import {
  bucketEnd,
  bucketStart,
  bucketsOf,
  coverFrom,
  INSIGHT_PERIODS,
  keptSince,
  LEVELS,
  levelOf,
} from "./levels.ts";

const NOW = Date.parse("2026-11-24T13:47:12.345Z");
const MINUTE_MS = 60_000;

test("a period has its number of buckets, which begin at full ones in UTC, and the last one is in progress", () => {
  const shown = INSIGHT_PERIODS.map((period) => {
    const starts = bucketsOf(period, NOW);
    return [
      starts.length,
      new Date(starts[0] ?? 0).toISOString(),
      new Date(starts.at(-1) ?? 0).toISOString(),
    ];
  });
  expect(shown).toEqual([
    [60, "2026-11-24T12:48:00.000Z", "2026-11-24T13:47:00.000Z"],
    [144, "2026-11-23T13:50:00.000Z", "2026-11-24T13:40:00.000Z"],
    [168, "2026-11-17T14:00:00.000Z", "2026-11-24T13:00:00.000Z"],
    [120, "2026-10-25T18:00:00.000Z", "2026-11-24T12:00:00.000Z"],
    [90, "2026-08-27T00:00:00.000Z", "2026-11-24T00:00:00.000Z"],
  ]);
});

/** For each level how many of its buckets are closed after those of the level above it. */
const closings = fc.tuple(...LEVELS.map(() => fc.integer({ min: 0, max: 9 }))).map((more) => {
  const closed: number[] = [];
  for (let level = LEVELS.length - 1; level > 0; level--) {
    const above = closed[0] ?? bucketStart(level, NOW - 30 * 86_400_000);
    const latest = bucketStart(level, NOW);
    closed.unshift(
      Math.min(above + (more[level] ?? 0) * (LEVELS[level]?.widthMs ?? 0), Math.max(latest, above)),
    );
  }
  return closed;
});

test("what a period is read from lies end to end, begins where the period does, and has only closed buckets", () => {
  fc.assert(
    fc.property(closings, fc.constantFrom(...INSIGHT_PERIODS), fc.boolean(), (closed, period, coarse) => {
      const fromAt = bucketsOf(period, NOW)[0] ?? 0;
      const levelMax = coarse ? LEVELS.length - 1 : levelOf(period);
      const cover = coverFrom(fromAt, closed, levelMax);
      expect(cover[0]?.fromAt).toBe(fromAt);
      expect(cover.at(-1)).toMatchObject({ level: 0, untilAt: Number.POSITIVE_INFINITY });
      for (const [n, { level, fromAt: at, untilAt }] of cover.entries()) {
        expect(level).toBeLessThanOrEqual(levelMax);
        expect(bucketStart(level, at)).toBe(at);
        if (n > 0) expect(at).toBe(cover[n - 1]?.untilAt ?? -1);
        if (level === 0) continue;
        expect(bucketStart(level, untilAt)).toBe(untilAt);
        expect(untilAt).toBeLessThanOrEqual(closed[level - 1] ?? 0);
      }
    }),
  );
});

test("thirty days are some thirty rows for hosts, and no more buckets than are shown for figures", () => {
  const closed = [1, 2, 3, 4].map((level) => bucketStart(level, NOW - 3 * MINUTE_MS));
  const rows = (levelMax?: number) =>
    coverFrom(bucketsOf("30d", NOW)[0] ?? 0, closed, levelMax)
      .filter(({ level }) => level > 0)
      .reduce(
        (sum, { level, fromAt, untilAt }) => sum + (untilAt - fromAt) / (LEVELS[level]?.widthMs ?? 1),
        0,
      );
  expect(rows()).toBeLessThan(45);
  expect(rows(levelOf("30d"))).toBeLessThan(135);
});

test("each level is kept for as long as some period reads it", () => {
  for (const period of INSIGHT_PERIODS) {
    const closed = [1, 2, 3, 4].map((level) => bucketStart(level, NOW));
    for (const levelMax of [levelOf(period), LEVELS.length - 1]) {
      for (const { level, fromAt } of coverFrom(bucketsOf(period, NOW)[0] ?? 0, closed, levelMax)) {
        expect(fromAt).toBeGreaterThan(keptSince(level, NOW));
      }
    }
  }
  expect(keptSince(4, NOW)).toBeLessThan(NOW - 90 * 86_400_000);
  expect(bucketEnd(0, NOW)).toBe(NOW + MINUTE_MS);
});
