import type { Measured, Stage } from "../stage.ts";
import type { Part } from "./part.ts";

/** Every product stores at least so many jobs in a second, so that all are stored before they are due. */
const STORED_PER_S = 5_000;
const LEAD_MS = 2_000;

/** The rate of stored jobs that become due all at once, from the first receipt to the last. */
export const stored = {
  title: "stored due jobs",
  points: ({ jobs }) => [
    {
      wish: { isPunctual: true },
      async measure(stage) {
        const cold = await measureStored(stage, jobs, { what: "cold, the first jobs of the process" });
        return [await measureStored(stage, jobs, { what: "warm" }), cold];
      },
    },
  ],
} satisfies Part;

/** `waiting` other jobs are stored for later. */
export async function measureStored(
  stage: Stage,
  wanted: number,
  about: Pick<Measured, "what" | "x">,
  waiting = 0,
): Promise<Measured> {
  await stage.beginReceiving();
  const dueAt = Date.now() + LEAD_MS + (wanted * 1_000) / STORED_PER_S;
  const jobs = await stage.loadBatches({ count: wanted }, dueAt);
  if (Date.now() > dueAt) throw new Error("the jobs were due before the last was stored");
  await stage.analyze();
  // Work that follows their creation, such as commands and reads of coming jobs, is over by then.
  await Bun.sleep(Math.max(0, dueAt - LEAD_MS / 4 - Date.now()));
  return stage.measure(async () => {
    const { count, firstAt, lastAt } = await stage.untilReceived(jobs);
    await stage.untilSettled();
    const figures = {
      "jobs/s": ((jobs - 1) * 1_000) / (lastAt - firstAt),
      "first receipt after it was due, ms": firstAt - dueAt,
      "requests more than jobs": count - jobs,
    };
    return { jobs, left: waiting, figures };
  }, about);
}
