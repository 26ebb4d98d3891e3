import type { Figure, Figures, Measurements } from "../cost/measurements.ts";

/** The use of one process in a second, at a rate a second. */
export type Usage = (perS: number) => number;

/** Picks one of a case's figures, which are for each 1,000 jobs. */
export type Pick = (figures: Figures) => number;

export const middleOf = ([middle]: Figure) => middle;

/**
 * Usage between the measured rates is a straight line that begins at the idle process, so sharing at higher rates
 * counts as it was measured. Beyond the highest measured rate each job costs what it costs at that rate.
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
    // More jobs take at least as much as fewer jobs; a lower figure is noise.
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

/** The use of an idle process in a second. */
export function idleUsage({ cases }: Measurements, pick: Pick): number {
  const idle = cases.find(({ name }) => name === "idle");
  if (idle === undefined) throw new Error("idleness was not measured");
  return pick(idle) / 1_000;
}

/** How much more a job of one kind costs than one of the other, where both were measured at the same rate. */
export function extraOf(measurements: Measurements, name: string, than: string, pick: Pick): number {
  const at = (wanted: string) =>
    measurements.cases.find((each) => each.name === wanted && each.ratePerS === 500);
  const [more, less] = [at(name), at(than)];
  if (more === undefined || less === undefined)
    throw new Error(`"${name}" and "${than}" were not measured alike`);
  return Math.max(0, pick(more) - pick(less)) / 1_000;
}
