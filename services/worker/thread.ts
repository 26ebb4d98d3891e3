import { dlopen } from "bun:ffi";

const LIBC = process.platform === "darwin" ? "libSystem.B.dylib" : "libc.so.6";
const US_PER_MS = 1_000;

const { usleep } = dlopen(LIBC, { usleep: { args: ["u32"], returns: "i32" } }).symbols;

/** An object, so that a simulation may bring a sleep of its own. */
export const thread = {
  /**
   * Holds the thread for `ms` milliseconds, whose fractions count, and some 0.1 ms more. Setting the machine's clock does
   * not move the end of this sleep. It would move the end of `Atomics.wait`: Bun waits for an instant of the wall clock,
   * so a clock that is set back by minutes meanwhile holds the thread for as long.
   */
  sleep(ms: number): void {
    usleep(ms * US_PER_MS);
  },
};
