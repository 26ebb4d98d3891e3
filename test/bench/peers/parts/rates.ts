import { quantileOf, quantilesOf } from "../../harness/quantiles.ts";
import type { Measured, Stage } from "../stage.ts";
import type { Part } from "./part.ts";

const IMMEDIATE_PER_S = 50;
const RATES = [100, 500, 1_000, 2_000, 4_000];
const WARM_UP_SECONDS = 1;
/** The connections of patient clients: so many that a request seldom waits for a free one. */
const CONNECTIONS = 256;

/** Jobs that are due at once, at a rate far below any product's limit. They are the first jobs over HTTP after the start. */
export const immediate = {
  title: `immediate, ${IMMEDIATE_PER_S} jobs/s`,
  points: ({ seconds }) => [
    {
      wish: {},
      async measure(stage) {
        const cold = await measureRate(stage, IMMEDIATE_PER_S, seconds / 2, { what: "cold, the first jobs" });
        return [await measureRate(stage, IMMEDIATE_PER_S, seconds, { what: "warm" }), cold];
      },
    },
  ],
} satisfies Part;

/** The cost and the latency of a job that is due at once, at rising rates. */
export const rates = {
  title: "rates",
  points: ({ seconds }) =>
    RATES.map((rate) => ({
      wish: {},
      async measure(stage) {
        await stage.beginReceiving();
        const { answeredCount } = await stage.load({ seconds: WARM_UP_SECONDS });
        await stage.untilReceived(answeredCount);
        await stage.untilSettled();
        await stage.analyze();
        return [await measureRate(stage, rate, seconds, { what: `${rate} jobs/s`, x: rate })];
      },
    })),
} satisfies Part;

/** Open loop: all latencies except "201 to receipt" count from the instant when the request should have been sent. */
async function measureRate(
  stage: Stage,
  ratePerS: number,
  seconds: number,
  about: Pick<Measured, "what" | "x">,
): Promise<Measured> {
  await stage.beginReceiving("receipts");
  return stage.measure(async () => {
    const begunAt = Date.now();
    const wish = { ratePerS, seconds, connections: CONNECTIONS, tellsAnswers: true };
    const { answers, answeredCount: jobs, latencyMs } = await stage.load(wish);
    const { receipts, lastAt, count } = await stage.untilReceived(jobs);
    await stage.untilSettled();
    const receivedAt = new Map(receipts.map(([id, at]) => [id, at]));
    const after = (since: (answer: (typeof answers)[number]) => number) =>
      quantilesOf(answers.map((answer) => (receivedAt.get(answer[0]) ?? Number.NaN) - since(answer)));
    const fromAnswer = after(([, answeredAt]) => answeredAt);
    const fromRequest = after(([, , askedAt]) => askedAt);
    const figures = {
      "201 to receipt p50, ms": quantileOf(fromAnswer, 0.5),
      "201 to receipt p99, ms": quantileOf(fromAnswer, 0.99),
      "request to 201 p50, ms": quantileOf(latencyMs, 0.5),
      "request to 201 p99, ms": quantileOf(latencyMs, 0.99),
      "request to receipt p50, ms": quantileOf(fromRequest, 0.5),
      "request to receipt p99, ms": quantileOf(fromRequest, 0.99),
      "jobs/s": (jobs * 1_000) / (lastAt - begunAt),
      "requests more than jobs": count - jobs,
    };
    return { jobs, left: 0, figures };
  }, about);
}
