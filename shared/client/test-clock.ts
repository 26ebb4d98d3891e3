import type { AdvanceView, ClockView } from "../contract/test-clock.ts";
import type { Call } from "./answer.ts";
import type { RequestOptions, Send } from "./send.ts";

export type ClockState = ClockView;
export type ClockAdvance = AdvanceView;

/** The clock of an instance that was started with `npm start -- --test-clock`; others answer resource_not_found. */
export interface TestClock {
  get(options?: RequestOptions): Call<ClockState>;
  /**
   * Puts the clock ahead, by one number and s, m, h or d ("48h"), or to an instant, and resolves once all that was due on the
   * way is done. The call is tried once, without a time limit unless one is given. If the connection breaks, the clock stays
   * at the instant that it has reached: `get` tells it.
   */
  advance(by: string | { by: string } | { to: string | Date }, options?: RequestOptions): Call<ClockAdvance>;
}

/** A walk through months may take minutes. The longest time of a timer is 24 days. */
const UNLIMITED = {
  timeoutMs: Number.POSITIVE_INFINITY,
  deadlineMs: Number.POSITIVE_INFINITY,
  retriesMax: 0,
};

/** `send` goes to OPS_PORT. */
export function createTestClock(send: Send): TestClock {
  return {
    get: (options) => send({ method: "GET", path: "/clock", options }),
    advance: (by, options) =>
      send({
        method: "POST",
        path: "/clock/advance",
        body: () => JSON.stringify(typeof by === "string" ? { by } : by),
        options: { ...UNLIMITED, ...options },
        makesNothing: true,
      }),
  };
}
