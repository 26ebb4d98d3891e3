import type { Stage } from "../stage.ts";
import { tomorrow } from "../stage.ts";
import type { Part } from "./part.ts";

const COLD_SECONDS = 1;

/**
 * Creation alone: jobs that are due tomorrow, from 64 connections that each ask as soon as they were answered. Latency
 * is left out: a slow answer delays the next request, so latencies would look too good. Each job must end up stored.
 */
export const create = {
  title: "creation alone, one by one",
  points: ({ seconds }) => [
    {
      wish: {},
      measure: (stage) =>
        measureCreation(stage, seconds, async (duration) => {
          const when = new Date(tomorrow()).toISOString();
          return (await stage.load({ seconds: duration }, when)).answeredCount;
        }),
    },
  ],
} satisfies Part;

/** Creation alone in batches of 100. */
export const batch = {
  title: "creation alone, in batches of 100",
  points: ({ seconds }) => [
    {
      wish: {},
      measure: (stage) =>
        measureCreation(stage, seconds, (duration) => stage.loadBatches({ seconds: duration }, tomorrow())),
    },
  ],
} satisfies Part;

async function measureCreation(stage: Stage, seconds: number, make: (seconds: number) => Promise<number>) {
  let stored = 0;
  const measureFor = (what: string, duration: number) =>
    stage.measure(
      async () => {
        const jobs = await make(duration);
        stored += jobs;
        return { jobs, left: stored, figures: { "jobs/s": jobs / duration } };
      },
      { what },
    );
  const cold = await measureFor("cold, the first second", COLD_SECONDS);
  await stage.analyze();
  return [await measureFor("warm", seconds), cold];
}
