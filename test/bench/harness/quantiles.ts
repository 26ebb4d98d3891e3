/** The quantiles that are kept of a measured distribution. They are dense at its end, which decides lateness. */
export const QUANTILES = [0, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1];

/** The wall clock with fractions of a millisecond. */
export const preciseNow = () => performance.timeOrigin + performance.now();

/** The samples' values at QUANTILES. */
export function quantilesOf(samples: readonly number[]): number[] {
  const sorted = samples.toSorted((a, b) => a - b);
  return QUANTILES.map((part) => sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] ?? 0);
}

/** One of the values at QUANTILES. */
export const quantileOf = (values: readonly number[], part: number) =>
  values[QUANTILES.indexOf(part)] ?? Number.NaN;
