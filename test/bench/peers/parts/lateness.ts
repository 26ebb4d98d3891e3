import { quantileOf, quantilesOf } from "../../harness/quantiles.ts";
import { type Measured, RUN_AT, type Stage } from "../stage.ts";
import type { Part } from "./part.ts";

const PER_S = 250;
/** Every product stores at least so many jobs in a second one by one. */
const STORED_PER_S = 500;
const LEAD_MS = 3_000;
/** The part of the time that is cold. */
const COLD_PART = 0.25;

/** The time from due to receipt of jobs that were stored one by one and become due evenly, 250 a second. */
export const lateness = {
  title: `lateness of ${PER_S} jobs/s`,
  points: ({ seconds }) => [
    {
      wish: { isPunctual: true },
      measure: async (stage) => [await measureLateness(stage, 2 * seconds, {})],
    },
  ],
} satisfies Part;

/** Begins with a process that has delivered nothing yet. `waiting` other jobs are stored for later. */
export async function measureLateness(
  stage: Stage,
  seconds: number,
  about: Pick<Measured, "what" | "x">,
  waiting = 0,
): Promise<Measured> {
  await stage.beginReceiving("receipts");
  const jobs = PER_S * seconds;
  const firstAt = Date.now() + LEAD_MS + (jobs * 1_000) / STORED_PER_S;
  await stage.load({ count: jobs, spread: { firstAt, perS: PER_S } }, RUN_AT);
  if (Date.now() > firstAt) throw new Error("the first was due before the last was stored");
  await stage.analyze();
  await Bun.sleep(Math.max(0, firstAt - Date.now()));
  return stage.measure(async () => {
    const { receipts, count } = await stage.untilReceived(jobs);
    await stage.untilSettled();
    const warmAt = firstAt + COLD_PART * seconds * 1_000;
    const all = quantilesOf(receipts.map(([, at, dueAt]) => at - dueAt));
    const warm = quantilesOf(receipts.flatMap(([, at, dueAt]) => (dueAt < warmAt ? [] : [at - dueAt])));
    const figures = {
      "p50, ms": quantileOf(all, 0.5),
      "p99, ms": quantileOf(all, 0.99),
      "warm p50, ms": quantileOf(warm, 0.5),
      "warm p99, ms": quantileOf(warm, 0.99),
      "least, ms": quantileOf(all, 0),
      "most, ms": quantileOf(all, 1),
      "requests more than jobs": count - jobs,
    };
    return { jobs, left: waiting, figures };
  }, about);
}
