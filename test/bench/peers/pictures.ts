import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Axis, drawLines, type Line } from "./picture.ts";
import { lineOf, type Results, type Sample } from "./results.ts";

/** A picture of a part's samples. Each product, or each kind of measurement, is a line. */
interface Picture {
  file: string;
  title: string;
  part: string;
  x: Axis;
  y: Axis;
  /** The line that a sample belongs to; null for none. */
  nameOf?: (sample: Sample) => string | null;
  xOf?: (sample: Sample) => number | undefined;
  yOf: (sample: Sample) => number | undefined;
}

const COST: Axis = { label: "CPU a job, µs" };
const cost = (sample: Sample) => sample.cpuUs.all;
const isAtOnce = ({ what = "" }: Sample) => what.endsWith("due at once");
const atOnce = (sample: Sample) => (isAtOnce(sample) ? sample.product : null);
const both = (sample: Sample) => `${sample.product}, ${isAtOnce(sample) ? "at once" : "250/s"}`;

const PICTURES: Picture[] = [
  {
    ...{ file: "latency", title: "From the request to the receipt, p99", part: "rates" },
    x: { label: "jobs created and delivered a second", isLogarithmic: true },
    y: { label: "ms", isLogarithmic: true },
    xOf: ({ figures }) => figures["jobs/s"],
    yOf: ({ figures }) => figures["request to receipt p99, ms"],
  },
  {
    ...{ file: "cost-by-rate", title: "What a job costs, created over HTTP and delivered", part: "rates" },
    x: { label: "jobs a second", isLogarithmic: true },
    ...{ y: { ...COST, isLogarithmic: true }, yOf: cost },
  },
  {
    ...{ file: "cost-by-waiting", title: "What a job costs beside jobs that wait", part: "waiting" },
    x: { label: "jobs that wait for tomorrow" },
    ...{ y: COST, nameOf: atOnce, yOf: cost },
  },
  {
    ...{ file: "cost-by-projects", title: "What a job costs among many projects", part: "projects" },
    x: { label: "projects" },
    ...{ y: COST, nameOf: both, yOf: cost },
  },
  {
    ...{ file: "cost-by-shards", title: "What a job costs beside empty shards", part: "shards" },
    x: { label: "shards of one worker" },
    ...{ y: COST, nameOf: both, yOf: cost },
  },
];

/** Draws the pictures that there are samples for. */
export function drawPictures({ samples }: Results, folder: string): void {
  mkdirSync(folder, { recursive: true });
  for (const { file, title, part, x, y, nameOf = productOf, xOf = placeOf, yOf } of PICTURES) {
    const own = samples.filter((sample) => sample.part === part);
    const lines = [...Map.groupBy(own, nameOf)].flatMap(([name, each]): Line[] =>
      name === null ? [] : [{ name, points: lineOf(each, yOf, xOf) }],
    );
    if (lines.length > 0) writeFileSync(join(folder, `${file}.svg`), drawLines(title, x, y, lines));
  }
}

const productOf = ({ product }: Sample) => product;
const placeOf = ({ x }: Sample) => x;
