import { until } from "../runtime-contract/until.ts";

/** A test that counts hours or days takes much less than this. */
const NEAR_MS = 20_000;

/**
 * Waits for the end of the present period if it is near, so that the test falls into one period. Periods are counted
 * from 1970.
 */
export async function passNearEnd(periodMs: number): Promise<void> {
  await until(
    () => periodMs - (Date.now() % periodMs) > NEAR_MS,
    () => "the end of the period",
    2 * NEAR_MS,
  );
}
