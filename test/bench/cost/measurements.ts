import { median, range } from "../harness/measure.ts";
import type { Fullest } from "./fullest.ts";
import type { Disk, Part, PODS, Rows } from "./readings.ts";
import type { Sample } from "./sample.ts";

/** The measurements that `npm run bench -- cost --json` writes and the capacity page is computed from. */
export interface Measurements {
  measuredAt: string;
  command: string;
  machine: { cpu: string; cores: number; memoryBytes: number; kernel: string; bun: string };
  postgres: { version: string; settings: Record<string, string> };
  payloadBytes: number;
  /** Bytes for each job, by how long they stay. */
  disk: { waiting: Disk; over: Disk; overWithWebhook: Disk };
  fullest: Fullest;
  cases: Figures[];
}

/** The median, the least and the most of the rounds. */
export type Figure = [median: number, least: number, most: number];

/** The figures of one case, for each 1,000 jobs ("idle": for each 1,000 s) unless a name says otherwise. */
export interface Figures {
  name: string;
  ratePerS: number | null;
  /** Jobs per second that were processed. */
  reachedPerS: Figure;
  /** Attempts and deliveries for each job. */
  requestsPerJob: number;
  cpuSeconds: Record<Part, Figure>;
  /** Bytes of the log without full page images, which are counted separately. */
  walBytes: Figure;
  walRecords: Figure;
  imageBytes: Figure;
  natsMessages: Figure;
  natsBytes: Figure;
  /** Bytes through the gateway and through the delivery node, heads and bodies. */
  bytesIn: Figure;
  bytesOut: Figure;
  /** Rows come from a separate round in which nothing else was measured. */
  rows: Rows;
  /** The most memory in any round. */
  peakBytes: Record<(typeof PODS)[number], number>;
  /** At QUANTILES, each the median of the rounds. */
  latencyMs: number[] | null;
  latenessMs: number[] | null;
}

export function summarizeSamples(samples: readonly Sample[], rows: Rows): Omit<Figures, "name" | "ratePerS"> {
  const of = (figureOf: (sample: Sample) => number): Figure => {
    const figures = samples.map(figureOf);
    const { least, most } = range(figures);
    return [round(median(figures)), round(least), round(most)];
  };
  const cpuOf = (part: Part) => of(({ cpuSeconds }) => cpuSeconds[part]);
  const peakOf = (pod: (typeof PODS)[number]) => Math.max(...samples.map(({ peakBytes }) => peakBytes[pod]));
  return {
    reachedPerS: of(({ ratePerS }) => ratePerS),
    requestsPerJob: round(median(samples.map(({ requests, jobs }) => (jobs === 0 ? 0 : requests / jobs)))),
    cpuSeconds: {
      gateway: cpuOf("gateway"),
      worker: cpuOf("worker"),
      delivery: cpuOf("delivery"),
      postgres: cpuOf("postgres"),
      nats: cpuOf("nats"),
    },
    walBytes: of(({ walBytes }) => walBytes),
    walRecords: of(({ walRecords }) => walRecords),
    imageBytes: of(({ imageBytes }) => imageBytes),
    natsMessages: of(({ natsMessages }) => natsMessages),
    natsBytes: of(({ natsBytes }) => natsBytes),
    bytesIn: of(({ bytesIn }) => bytesIn),
    bytesOut: of(({ bytesOut }) => bytesOut),
    rows: {
      inserted: round(rows.inserted),
      updated: round(rows.updated),
      deleted: round(rows.deleted),
      transactions: round(rows.transactions),
      fsyncs: round(rows.fsyncs),
    },
    peakBytes: {
      gateway: peakOf("gateway"),
      worker: peakOf("worker"),
      delivery: peakOf("delivery"),
      nats: peakOf("nats"),
    },
    latencyMs: middle(samples.map(({ latencyMs }) => latencyMs)),
    latenessMs: middle(samples.map(({ latenessMs }) => latenessMs)),
  };
}

/** Four digits, more than the rounds agree on. */
const round = (figure: number) => Number(figure.toPrecision(4));

function middle(distributions: readonly (number[] | null)[]): number[] | null {
  const known = distributions.filter((each) => each !== null);
  return known[0]?.map((_, place) => round(median(known.map((each) => each[place] ?? 0)))) ?? null;
}
