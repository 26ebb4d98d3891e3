import { expect } from "bun:test";
import { fetchServed } from "./served.ts";
import type { ServiceProcess } from "./service-process.ts";
import type { Arrival, Target } from "./target.ts";

/** A client that posts jobs, and remembers which were accepted. */
export interface Load {
  /** The ids that were answered with 201. */
  accepted: Set<string>;
  /** The requests that ended in any other way. */
  refused: Refusal[];
  post(body: object): Promise<void>;
  /**
   * Posts every `everyMs` until it is stopped. It pauses while PENDING_MAX requests are under way and, with `countArrived`, while
   * BEHIND_MAX of its jobs have not arrived: a slow machine would fall behind for good.
   */
  begin(body: () => object, everyMs: number, countArrived?: () => number): RunningLoad;
}

export interface RunningLoad extends AsyncDisposable {
  /** Waits for everything posted by now. */
  untilAnswered(): Promise<unknown>;
  stop(): Promise<void>;
}

interface Refusal {
  /** The status, or NO_ANSWER. */
  outcome: string;
  /** When it was asked, and when it ended, in milliseconds since 1970. */
  fromAt: number;
  toAt: number;
}

const REQUEST_TIMEOUT_MS = 15_000;
const NO_ANSWER = "no answer";
const POLL_MS = 100;
const TOGETHER = 20;
/** Of so many jobs it is asked in turn whether they have ended. More questions would keep a slow machine from ending them. */
const ASKED_MAX = 60;
const SLOW_TIMES = 3;
/** No more requests are under way at once. */
const PENDING_MAX = 32;
/** No more jobs are posted while so many have not arrived. */
const BEHIND_MAX = 100;

/** With `fetchServed` for `send` each request is repeated after a 503, for `timeoutMs` in all. */
export function createLoad(
  base: () => string,
  key: string,
  { send = fetch, timeoutMs = REQUEST_TIMEOUT_MS }: { send?: typeof fetchServed; timeoutMs?: number } = {},
): Load {
  const accepted = new Set<string>();
  const refused: Refusal[] = [];
  async function post(body: object): Promise<void> {
    const fromAt = Date.now();
    let outcome = NO_ANSWER;
    try {
      const response = await send(`${base()}/v2/jobs`, {
        method: "POST",
        headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(timeoutMs),
      });
      outcome = String(response.status);
      const answer = (await response.json()) as { id?: string };
      if (response.status === 201 && answer.id !== undefined) {
        accepted.add(answer.id);
        return;
      }
    } catch {
      // The request's outcome is unknown, so nothing is expected of it.
    }
    refused.push({ outcome, fromAt, toAt: Date.now() });
  }
  return {
    accepted,
    refused,
    post,
    begin(body, everyMs, countArrived) {
      const pending = new Set<Promise<void>>();
      const acceptedBefore = accepted.size;
      const isBehind = () =>
        countArrived !== undefined && accepted.size - acceptedBefore - countArrived() >= BEHIND_MAX;
      const timer = setInterval(() => {
        if (pending.size >= PENDING_MAX || isBehind()) return;
        const request: Promise<void> = post(body()).finally(() => pending.delete(request));
        pending.add(request);
      }, everyMs);
      const stop = async () => {
        clearInterval(timer);
        await Promise.all(pending);
      };
      return { untilAnswered: () => Promise.all(pending), stop, [Symbol.asyncDispose]: stop };
    },
  };
}

/** Counts the names that `nameOf` gives to a target's arrivals from now on, each once. An arrival without a name counts nothing. */
export function countArrivals(
  { arrivals }: Target,
  nameOf: (arrival: Arrival) => string | undefined = ({ jobId }) => jobId || undefined,
): () => number {
  const names = new Set<string>();
  let read = arrivals.length;
  return () => {
    for (const arrival of arrivals.slice(read)) {
      const name = nameOf(arrival);
      if (name !== undefined) names.add(name);
    }
    read = arrivals.length;
    return names.size;
  };
}

/**
 * A gateway waits 1.8 s for Postgres, for several statements in turn. If the machine stands still for half of that
 * around a request, at once or in parts, the gateway may rightly answer 503.
 */
const EXCUSE_MS_MIN = 900;

/**
 * Expects that every job was accepted. A 503 is excused by the pauses that were measured around its own request, and so is a
 * request that ran into its time limit if they are half of it. `pauses` has stopped, so that it knows all of them. A failure
 * shows what the gateways logged.
 */
export function expectNothingRefused(
  { refused }: Load,
  pauses: { between(fromAt: number, toAt: number): number },
  gateways: readonly ServiceProcess[],
): void {
  const judged = refused.map((refusal) => {
    return { ...refusal, pausedMs: pauses.between(refusal.fromAt, refusal.toAt) };
  });
  const isExcused = ({ outcome, fromAt, toAt, pausedMs }: (typeof judged)[number]) =>
    outcome === "503"
      ? pausedMs >= EXCUSE_MS_MIN
      : outcome === NO_ANSWER && toAt - fromAt >= REQUEST_TIMEOUT_MS && pausedMs >= REQUEST_TIMEOUT_MS / 2;
  const unexcused = judged.filter((refusal) => !isExcused(refusal));
  if (unexcused.length > 0) {
    const reasons = gateways.flatMap(({ output }) =>
      output.split("\n").filter((line) => /not_served/.test(line)),
    );
    expect({ unexcused, reasons }).toBeNull();
  }
  if (judged.length > 0) console.log("refused while the machine stood still:", judged);
}

interface JobAnswer {
  id: string;
  status: string;
  attempts: number;
}

/**
 * Asks for every accepted job until all are terminal. Answers the jobs; fails once `timeoutMs` have passed without an end of one, or
 * SLOW_TIMES as much in all.
 */
export async function untilTerminal(
  base: string,
  key: string,
  load: Load,
  timeoutMs: number,
): Promise<JobAnswer[]> {
  const headers = { authorization: `Bearer ${key}` };
  const endBy = performance.now() + SLOW_TIMES * timeoutMs;
  let giveUpAt = performance.now() + timeoutMs;
  const ended = new Map<string, JobAnswer>();
  for (;;) {
    const endedBefore = ended.size;
    const open = [...load.accepted].filter((id) => !ended.has(id));
    if (open.length === 0) return [...ended.values()];
    await eachOf(open.slice(0, ASKED_MAX), async (id) => {
      const job = (await (await fetch(`${base}/v2/jobs/${id}`, { headers })).json()) as JobAnswer;
      if (job.status === "succeeded" || job.status === "failed" || job.status === "canceled")
        ended.set(id, job);
      else if (performance.now() > giveUpAt)
        throw new Error(`${open.length} jobs not terminal: ${JSON.stringify(job)}`);
    });
    if (ended.size > endedBefore) giveUpAt = Math.min(endBy, performance.now() + timeoutMs);
    await Bun.sleep(POLL_MS);
  }
}

/** Expects that no attempt arrived twice. */
export function expectNothingDoubled(target: Target): void {
  const counts = new Map<string, number>();
  for (const { jobId, attempt } of target.arrivals) {
    const name = `${jobId} attempt ${attempt}`;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  expect([...counts].filter(([, count]) => count > 1)).toEqual([]);
}

/** Expects each job to have as many runs as attempts, numbered without a gap. */
export async function expectRunsMatch(base: string, key: string, jobs: JobAnswer[]): Promise<void> {
  await eachOf(jobs, async (job) => {
    const response = await fetchServed(`${base}/v2/runs?job_id=${job.id}`, {
      headers: { authorization: `Bearer ${key}` },
    });
    const { data } = (await response.json()) as { data: { attempt: number; status: string }[] };
    expect(data.map((run) => run.attempt).reverse()).toEqual(
      Array.from({ length: job.attempts }, (_, index) => index + 1),
    );
  });
}

/** Acts on the items in groups, since there may be thousands. */
async function eachOf<T>(items: readonly T[], act: (item: T) => Promise<void>): Promise<void> {
  for (let begun = 0; begun < items.length; begun += TOGETHER)
    await Promise.all(items.slice(begun, begun + TOGETHER).map(act));
}
