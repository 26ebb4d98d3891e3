import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { PAYLOAD_BYTES_MAX } from "../../shared/domain/job.ts";
import { type ReadGateways, startReadGateways } from "./attacked-gateways.ts";

/**
 * The time that the flood may add to another project's request. On some virtual machines fresh memory is so dear that this process
 * needs a hundred milliseconds for the text of one page. There the flood may add a third of that.
 */
const ADDED_MS_MAX = 20;
const ADDED_PART_OF_PAGE = 1 / 3;
const PAGE_PAYLOADS = 16;
const PAGE_LOOKS = 9;
/** All waves together stay within a minute's requests of the plan scale. */
const CLIENTS = 450;
const WAVES = 3;
/**
 * A round in which the machine stood still is no proof of harm. Nor is one with a 503: its request may have waited for a processor
 * for longer than a request's time. A harmful flood shows in every round.
 */
const ROUNDS_MAX = 12;
const ROUND_MS_MAX = 200_000;
/**
 * A request that the quiet gateway does not serve, or only after half of a request's time, tells that the machine stood still. A flood
 * that keeps Postgres from serving both gateways does so for more than this part of the requests.
 */
const STILL_MS_MIN = 900;
const SKIPPED_PART_MAX = 0.05;
const ASK_EVERY_MS = 5;
const CALM_QUESTIONS = 200;
const TIMETABLES = 1_000;

setDefaultTimeout(ROUNDS_MAX * ROUND_MS_MAX);

let gateways: ReadGateways;
let neighbour: string;

beforeAll(async () => {
  gateways = await startReadGateways();
  neighbour = await gateways.addProject({ asksOften: true });
});
afterAll(() => gateways.stop());

interface Harm {
  /**
   * The time that the neighbour's median request took longer than at the quiet gateway, at the same time. It leaves out
   * the waits of either gateway for a processor: on a busy machine the gateway that works more waits longer.
   */
  p50Ms: number;
  /**
   * The time that the gateway worked for any project while a request of the neighbour waited, less the time of that request
   * at the quiet gateway: the 99th percentile. Postgres and this process take as long for both requests.
   */
  p99WorkMs: number;
}

/** Answers null if a request of the neighbour got a 503 from the attacked gateway alone, or if many could not be judged. */
async function measureHarm(isOver: (asked: number) => boolean): Promise<Harm | null> {
  const { attacked, quiet } = gateways;
  let isServed = true;
  const ask = async ({ port, waitedMs }: typeof quiet) => {
    const [startedAt, waitedBefore] = [performance.now(), waitedMs()];
    const headers = { authorization: `Bearer ${neighbour}` };
    const response = await fetch(`http://127.0.0.1:${port}/v2/jobs?limit=1`, { headers });
    await response.text();
    expect([200, 503]).toContain(response.status);
    const tookMs = performance.now() - startedAt;
    return { isServed: response.status === 200, tookMs, ownMs: tookMs - (waitedMs() - waitedBefore) };
  };
  const longerMs: number[] = [];
  const workMs: number[] = [];
  let skipped = 0;
  for (; !isOver(workMs.length + skipped); await Bun.sleep(ASK_EVERY_MS)) {
    const workedBefore = attacked.workedMs();
    const asked = ask(attacked).then((answer) => ({
      ...answer,
      workedMs: attacked.workedMs() - workedBefore,
    }));
    const [answer, control] = await Promise.all([asked, ask(quiet)]);
    if (!control.isServed || (!answer.isServed && control.tookMs > STILL_MS_MIN)) {
      skipped++;
      continue;
    }
    isServed &&= answer.isServed;
    longerMs.push(answer.ownMs - control.ownMs);
    workMs.push(answer.workedMs - control.ownMs);
  }
  const areFew = skipped <= SKIPPED_PART_MAX * (workMs.length + skipped);
  return isServed && areFew ? { p50Ms: quantile(longerMs, 0.5), p99WorkMs: quantile(workMs, 0.99) } : null;
}

function quantile(values: number[], share: number): number {
  return values.toSorted((a, b) => a - b)[Math.floor(share * (values.length - 1))] ?? Number.NaN;
}

/** A round in which the neighbour got a 503, or the flood no 200. */
const NOT_SERVED: Harm = { p50Ms: Number.POSITIVE_INFINITY, p99WorkMs: Number.POSITIVE_INFINITY };

/** Measures the time that a flood adds to the figures of a calm gateway. A flood needs at least one answer of 200. */
async function flood({ key, path }: Flooder): Promise<Harm> {
  const calm = await measureHarm((asked) => asked === CALM_QUESTIONS);
  const crowd = gateways.startCrowd(key, path, CLIENTS, "reads");
  let said = "";
  let isOver = false;
  const waves = (async () => {
    for (let wave = 0; wave < WAVES; wave++) said += await crowd.wave();
  })().finally(() => (isOver = true));
  const flooded = await measureHarm(() => isOver);
  await waves;
  await crowd.stop();
  if (calm === null || flooded === null || !said.includes('"200"')) return NOT_SERVED;
  return { p50Ms: flooded.p50Ms - calm.p50Ms, p99WorkMs: flooded.p99WorkMs - calm.p99WorkMs };
}

/** A key and the path that it floods. */
interface Flooder {
  key: string;
  path: string;
}

/** The processor time, in milliseconds, in which this process writes and reads the text of a page of 4 MiB: the median. */
function measurePage(): number {
  const page = Array.from({ length: PAGE_PAYLOADS }, () => ({
    payload: `${"y".repeat(PAYLOAD_BYTES_MAX)}世`,
  }));
  const looks = Array.from({ length: PAGE_LOOKS }, () => {
    const before = process.cpuUsage();
    JSON.parse(new TextDecoder().decode(new TextEncoder().encode(JSON.stringify(page))));
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1_000;
  });
  return quantile(looks, 0.5);
}

async function expectNeighbourServed(addFlooder: () => Promise<Flooder>): Promise<void> {
  let addedMsMax = Number.NaN;
  let harm: Harm = { p50Ms: Number.NaN, p99WorkMs: Number.NaN };
  const isHarmless = () => harm.p50Ms <= addedMsMax && harm.p99WorkMs <= addedMsMax;
  for (let round = 0; round < ROUNDS_MAX && !isHarmless(); round++) {
    addedMsMax = Math.max(ADDED_MS_MAX, ADDED_PART_OF_PAGE * measurePage());
    harm = await flood(await addFlooder());
  }
  expect(harm.p50Ms).toBeLessThanOrEqual(addedMsMax);
  expect(harm.p99WorkMs).toBeLessThanOrEqual(addedMsMax);
}

describe("a project that floods a gateway with its dearest reads adds at most 20 ms to another's median request, and to the p99 of the gateway's work during one", () => {
  test("with the firings of a schedule that was changed 1,000 times", () =>
    expectNeighbourServed(async () => {
      const key = await gateways.addProject();
      const id = await gateways.addChangedSchedule(key, TIMETABLES);
      return { key, path: `/v2/schedules/${id}/firings?limit=200` };
    }));

  test("with pages of 4 MiB of payloads", () =>
    expectNeighbourServed(async () => {
      const key = await gateways.addProject();
      await gateways.fillPage(key);
      return { key, path: "/v2/schedules?limit=200" };
    }));
});
