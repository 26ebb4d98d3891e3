import { until } from "../runtime-contract/until.ts";

/** A test that counts hours or days is over much sooner. */
const NEAR_MS = 20_000;

/** Waits for the end of the period if it is near, so that the test sees one of them alone. Periods are counted from 1970. */
export async function passNearEnd(periodMs: number): Promise<void> {
  await until(
    () => periodMs - (Date.now() % periodMs) > NEAR_MS,
    () => "the end of the period",
    2 * NEAR_MS,
  );
}
