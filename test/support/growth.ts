const ROUNDS_MIN = 3;
const ROUNDS_MAX = 20;
/** Shorter times count as this one, so that a clock's steps do not matter. */
const TIME_US_MIN = 1_000;

/**
 * How many times as much processor time `large` takes as `small`. The least time of each in several rounds counts.
 * There are more rounds while the answer is above `expectedMax`, since a busy machine can make any single one slow.
 */
export function measureGrowth<Input>(
  work: (input: Input) => void,
  small: Input,
  large: Input,
  expectedMax: number,
): number {
  // Other threads of the process count too. The least time is one in which the garbage collector did not run.
  const timeUs = (input: Input) => {
    const before = process.cpuUsage();
    work(input);
    return process.cpuUsage(before).user;
  };
  let [smallUs, largeUs] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  let growth = Number.POSITIVE_INFINITY;
  for (let round = 0; round < ROUNDS_MAX && (round < ROUNDS_MIN || growth > expectedMax); round++) {
    smallUs = Math.min(smallUs, timeUs(small));
    largeUs = Math.min(largeUs, timeUs(large));
    growth = largeUs / Math.max(smallUs, TIME_US_MIN);
  }
  return growth;
}
