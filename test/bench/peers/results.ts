import { median } from "../harness/measure.ts";
import type { Measured } from "./stage.ts";

export interface Sample extends Measured {
  part: string;
  product: string;
  round: number;
}

/** The whole result of one run of the command, as it is written to a file. */
export interface Results {
  begunAt: string;
  endedAt: string;
  machine: string;
  command: string;
  versions: Record<string, string>;
  /** Products in the order in which they are shown. */
  products: string[];
  /** Titles by the names of the parts. */
  titles: Record<string, string>;
  samples: Sample[];
  /** Measurements that failed, each with its reason. */
  faults: string[];
}

type FigureOf = (sample: Sample) => number | undefined;

/** The medians over the rounds, a point for each `x` of the samples. */
export function lineOf(samples: readonly Sample[], yOf: FigureOf, xOf: FigureOf): [x: number, y: number][] {
  const medianOf = (own: readonly Sample[], figureOf: FigureOf) =>
    median(own.flatMap((sample) => figureOf(sample) ?? []));
  return [...Map.groupBy(samples, ({ x }) => x)]
    .map(([, own]): [number, number] => [medianOf(own, xOf), medianOf(own, yOf)])
    .filter((point) => point.every(Number.isFinite))
    .sort((a, b) => a[0] - b[0]);
}
