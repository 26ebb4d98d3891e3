import type { Figure, Figures, Measurements } from "../cost/measurements.ts";

/** What one process uses in a second at a rate of so many a second. */
export type Usage = (perS: number) => number;

/** From a case's figures, one that is for each 1,000 jobs. */
export type Pick = (figures: Figures) => number;

export const middleOf = ([middle]: Figure) => middle;

/**
 * Between the rates that were measured usage is taken for a straight line, from what the idle process uses on: so what is
 * done together at a higher rate costs less, as it was measured. Beyond the highest each costs what it cost there.
 */
export function usageOf(measurements: Measurements, name: string, pick: Pick): Usage {
  const idle = idleUsage(measurements, pick);
  const measured = measurements.cases
    .filter((each) => each.name === name)
    .map((each) => ({
      perS: middleOf(each.reachedPerS),
      used: (pick(each) * middleOf(each.reachedPerS)) / 1_000,
    }))
    .toSorted((a, b) => a.perS - b.perS);
  if (measured.length === 0) throw new Error(`nothing was measured of "${name}"`);
  const points = [{ perS: 0, used: idle }];
  for (const { perS, used } of measured) {
    // More jobs never take less; where it seems so it is noise.
    points.push({ perS, used: Math.max(used, points.at(-1)?.used ?? 0) });
  }
  return (perS) => {
    const last = points.at(-1);
    if (last === undefined || perS >= last.perS) return ((last?.used ?? idle) * perS) / (last?.perS ?? perS);
    const above = points.findIndex((point) => point.perS > perS);
    const [from, to] = [points[above - 1], points[above]];
    if (from === undefined || to === undefined) return idle;
    return from.used + ((perS - from.perS) * (to.used - from.used)) / (to.perS - from.perS);
  };
}

/** In a second, of a process that has nothing to do. */
export function idleUsage({ cases }: Measurements, pick: Pick): number {
  const idle = cases.find(({ name }) => name === "idle");
  if (idle === undefined) throw new Error("idleness was not measured");
  return pick(idle) / 1_000;
}

/** What a job of the one kind costs more than one of the other, where both were measured at the same rate. */
export function extraOf(measurements: Measurements, name: string, than: string, pick: Pick): number {
  const at = (wanted: string) =>
    measurements.cases.find((each) => each.name === wanted && each.ratePerS === 500);
  const [more, less] = [at(name), at(than)];
  if (more === undefined || less === undefined)
    throw new Error(`"${name}" and "${than}" were not measured alike`);
  return Math.max(0, pick(more) - pick(less)) / 1_000;
}
