/**
 * The grains in which a project's figures are kept, and how a period is read from them. A level's rows begin at whole multiples
 * of its width since 1970. Each row of a level holds the sum of the rows of the level before it. The first level has every
 * figure as soon as it is counted; a later one has a bucket once the bucket is closed, which is soon after its end.
 */

const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
const DAY_MS = 86_400_000;

export const INSIGHT_PERIODS = ["1h", "24h", "7d", "30d", "90d"] as const;
export type InsightPeriod = (typeof INSIGHT_PERIODS)[number];
export const INSIGHT_PERIOD_DEFAULT: InsightPeriod = "24h";

export interface Level {
  widthMs: number;
  /** How many buckets the period of this level has. */
  bucketCount: number;
}

/** Each level belongs to the period at the same place of INSIGHT_PERIODS. */
export const LEVELS: readonly Level[] = [
  { widthMs: MINUTE_MS, bucketCount: 60 },
  { widthMs: 10 * MINUTE_MS, bucketCount: 144 },
  { widthMs: HOUR_MS, bucketCount: 168 },
  { widthMs: 6 * HOUR_MS, bucketCount: 120 },
  { widthMs: DAY_MS, bucketCount: 90 },
];

export const levelOf = (period: InsightPeriod): number => INSIGHT_PERIODS.indexOf(period);
const widthOf = (level: number): number => LEVELS[level]?.widthMs ?? DAY_MS;

/** The start of the bucket of a level in which an instant lies. */
export function bucketStart(level: number, at: number): number {
  return Math.floor(at / widthOf(level)) * widthOf(level);
}

export function bucketEnd(level: number, startAt: number): number {
  return startAt + widthOf(level);
}

/** The starts of a period's buckets at `now`, the oldest first. The last one is in progress. */
export function bucketsOf(period: InsightPeriod, now: number): number[] {
  const level = levelOf(period);
  const { widthMs, bucketCount } = LEVELS[level] as Level;
  const lastAt = bucketStart(level, now);
  return Array.from({ length: bucketCount }, (_, n) => lastAt - (bucketCount - 1 - n) * widthMs);
}

/** Rows are kept so much longer than their level's period reaches back, for requests that began earlier and read them. */
const KEPT_LONGER_MS = 2 * HOUR_MS;

/** The instant from which on rows of a level are kept at `now`. */
export function keptSince(level: number, now: number): number {
  const { widthMs, bucketCount } = LEVELS[level] as Level;
  return now - widthMs * bucketCount - KEPT_LONGER_MS;
}

/** A stretch of time that is read from one level. Instants are milliseconds since 1970; the end is not part of it. */
export interface Stretch {
  level: number;
  fromAt: number;
  untilAt: number;
}

/**
 * Covers the time from an instant on with as few rows as possible: each stretch is read from the coarsest level of which a bucket
 * begins there and is closed. `closedUntil` holds, for each level from 1 on, the instant until which its buckets are closed; it is
 * no later than that of the level before. No level above `levelMax` is used.
 */
export function coverFrom(
  fromAt: number,
  closedUntil: readonly number[],
  levelMax = LEVELS.length - 1,
): Stretch[] {
  const stretches: Stretch[] = [];
  let at = fromAt;
  for (;;) {
    let level = levelMax;
    while (
      level > 0 &&
      !(bucketStart(level, at) === at && bucketEnd(level, at) <= closedAt(closedUntil, level))
    )
      level--;
    if (level === 0 && at >= closedAt(closedUntil, 1)) break;
    const untilAt = bucketEnd(level, at);
    const last = stretches.at(-1);
    if (last?.level === level) last.untilAt = untilAt;
    else stretches.push({ level, fromAt: at, untilAt });
    at = untilAt;
  }
  const last = stretches.at(-1);
  if (last?.level === 0) last.untilAt = Number.POSITIVE_INFINITY;
  else stretches.push({ level: 0, fromAt: at, untilAt: Number.POSITIVE_INFINITY });
  return stretches;
}

const closedAt = (closedUntil: readonly number[], level: number) =>
  closedUntil[level - 1] ?? Number.NEGATIVE_INFINITY;
