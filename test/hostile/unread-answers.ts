import { expect } from "bun:test";
import { until } from "../runtime-contract/until.ts";
import { type ReadGateways, startReadGateways } from "./attacked-gateways.ts";

const PAGE = "/v2/schedules?limit=200";
/** Just below the number of requests that a project may have in progress. */
const CLIENTS = 480;
const RSS_BYTES_MAX = 512_000_000;
/**
 * The growth that compiled code and former connections may leave, relative to the resting memory after clients have
 * read some such pages.
 */
const GROWTH_MAX = 1.5;
const BACK_MS_MAX = 60_000;
const LOOK_EVERY_MS = 50;
const READERS = 4;
const READ_WAVES = 10;
const READ_WAVES_MAX = 60;
/** A slow machine may take longer than a request's time to read four such pages from Postgres, or to answer the neighbour. */
const READ_OR_TOO_LATE = /^\{("200":\d)?,?("503":\d)?\}$/;
/** Memory that has not shrunk for this long is at rest. */
const REST_MS = 5_000;
const REST_MS_MAX = 60_000;

export interface UnreadAnswers {
  baseBytes: number;
  peakBytes: number;
  backMs: number;
}

/**
 * Expects that the gateway's memory is bounded while clients of some projects ask for pages of 4 MiB and read none of
 * them, and that the memory comes back afterwards.
 */
export async function expectMemoryBounded(attack: {
  projects: number;
  holdMs: number;
}): Promise<UnreadAnswers> {
  const gateways = await startReadGateways();
  try {
    const { rssBytes } = gateways.attacked;
    const keys = await Promise.all(Array.from({ length: attack.projects }, () => gateways.addProject()));
    for (const key of keys) await gateways.fillPage(key);
    await readSome(gateways, keys[0] ?? "");
    const baseBytes = await restingBytes(rssBytes);
    const peakBytes = await attackFor(gateways, keys, attack.holdMs);
    expect(peakBytes).toBeLessThan(RSS_BYTES_MAX);
    const stoppedAt = performance.now();
    // The neighbour keeps the gateway at work, since an idle process collects no garbage.
    const neighbour = gateways.startCrowd(
      await gateways.addProject({ asksOften: true }),
      "/v2/project",
      1,
      "reads",
    );
    let isServed = false;
    await until(
      async () => {
        const answer = await neighbour.wave();
        expect(answer).toMatch(READ_OR_TOO_LATE);
        isServed ||= answer.includes('"200"');
        return isServed && rssBytes() < GROWTH_MAX * baseBytes;
      },
      () => `${rssBytes()} bytes are in memory, ${baseBytes} before`,
      BACK_MS_MAX,
    );
    return { baseBytes, peakBytes, backMs: performance.now() - stoppedAt };
  } finally {
    await gateways.stop();
  }
}

async function readSome(gateways: ReadGateways, key: string): Promise<void> {
  const readers = gateways.startCrowd(key, PAGE, READERS, "reads");
  let readCount = 0;
  const isRead = () => readCount >= READ_WAVES / 2;
  for (let wave = 0; wave < READ_WAVES || (wave < READ_WAVES_MAX && !isRead()); wave++) {
    const answers = await readers.wave();
    expect(answers).toMatch(READ_OR_TOO_LATE);
    if (answers.includes('"200"')) readCount++;
  }
  // The comparison needs memory at rest after pages were read.
  expect(readCount).toBeGreaterThanOrEqual(READ_WAVES / 2);
  await readers.stop();
}

async function restingBytes(rssBytes: () => number): Promise<number> {
  let least = rssBytes();
  let leastAt = performance.now();
  await until(
    () => {
      const bytes = rssBytes();
      if (bytes < least) [least, leastAt] = [bytes, performance.now()];
      return performance.now() - leastAt > REST_MS;
    },
    () => "the gateway has no rest",
    REST_MS_MAX,
  );
  return least;
}

/** The most memory during the attack. */
async function attackFor(gateways: ReadGateways, keys: string[], holdMs: number): Promise<number> {
  const { rssBytes } = gateways.attacked;
  let peakBytes = 0;
  const watch = setInterval(() => (peakBytes = Math.max(peakBytes, rssBytes())), LOOK_EVERY_MS);
  try {
    const crowds = keys.map((key) => gateways.startCrowd(key, PAGE, CLIENTS, "does not read"));
    for (const crowd of crowds) expect(await crowd.wave()).toBe("sent");
    await Bun.sleep(holdMs);
    for (const crowd of crowds) await crowd.stop();
  } finally {
    clearInterval(watch);
  }
  return peakBytes;
}
