import { afterAll, beforeAll, expect, test } from "bun:test";
import { startStore, type TestStore } from "../test-support.ts";
import { nextStartOf } from "./flow-start.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

const HOUR_S = 3_600;
/**
 * The seconds until the next attempt may start; null for now. `agos` are the instants of starts in seconds before now, and
 * `counts` the starts at each.
 */
async function nextStart(rate: number | null, agos: number[], counts: number[]): Promise<number | null> {
  const [row] = await store.query<{ seconds: string | null }>(
    `SELECT extract(epoch FROM ${nextStartOf("k")} - now()) AS seconds
       FROM (SELECT $1::int AS rate_count, ${HOUR_S} AS rate_seconds, $3::int[] AS started,
                    ARRAY (SELECT now() - ago * interval '1 s' FROM unnest($2::int[]) WITH ORDINALITY AS a (ago, n) ORDER BY n) AS started_at) k`,
    [rate, agos, counts],
  );
  return row?.seconds == null ? null : Math.round(Number(row.seconds));
}

test("the next start of a rate is when so many starts have left its window that one more fits", async () => {
  expect(await nextStart(null, [30, 20, 10], [1, 1, 1])).toBeNull();
  expect(await nextStart(1, [], [])).toBeNull();
  expect(await nextStart(4, [30, 20, 10], [1, 1, 1])).toBeNull();
  expect(await nextStart(3, [30, 20, 10], [1, 1, 1])).toBe(HOUR_S - 30);
  // The rate was lowered: two of the three starts have to leave the window.
  expect(await nextStart(2, [30, 20, 10], [1, 1, 1])).toBe(HOUR_S - 20);
  expect(await nextStart(9, [30, 20, 10], [4, 3, 2])).toBe(HOUR_S - 30);
  expect(await nextStart(10, [30, 20, 10], [4, 3, 2])).toBeNull();
  expect(await nextStart(5, [30, 20, 10], [4, 3, 2])).toBe(HOUR_S - 20);
  expect(await nextStart(2, [30, 20, 10], [4, 3, 2])).toBe(HOUR_S - 10);
  // A start that has left the window keeps nothing back.
  expect(await nextStart(1, [HOUR_S + 5], [1])).toBeNull();
});
