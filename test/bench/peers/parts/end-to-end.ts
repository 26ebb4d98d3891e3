import type { Measured, Stage } from "../stage.ts";
import type { Part } from "./part.ts";

/** End to end is measured for a minute where other parts are measured for ten seconds. */
const TIMES_AS_LONG = 6;
const COLD_SECONDS = 1;

/**
 * Jobs that are due at once are created one by one over HTTP from 64 connections for a minute, and delivered. The rate
 * is that of all jobs until the last receipt, so that a backlog counts.
 */
export const endToEnd = {
  title: "created over HTTP and delivered",
  points: ({ seconds }) => [
    {
      wish: {},
      async measure(stage) {
        const cold = await measureFlood(stage, COLD_SECONDS, "cold, the first second");
        await stage.analyze();
        return [await measureFlood(stage, seconds * TIMES_AS_LONG, "warm"), cold];
      },
    },
  ],
} satisfies Part;

async function measureFlood(stage: Stage, seconds: number, what: string): Promise<Measured> {
  await stage.beginReceiving();
  return stage.measure(
    async () => {
      const begunAt = Date.now();
      const { answeredCount: jobs } = await stage.load({ seconds });
      const { jobCount } = await stage.counts();
      const { lastAt, count } = await stage.untilReceived(jobs);
      await stage.untilSettled();
      const figures = {
        "jobs/s": (jobs * 1_000) / (lastAt - begunAt),
        "created meanwhile, jobs/s": jobs / seconds,
        "backlog at the end of creation, jobs": jobs - jobCount,
        "requests more than jobs": count - jobs,
      };
      return { jobs, left: 0, figures };
    },
    { what },
  );
}
