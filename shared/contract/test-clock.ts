import { type Static, Type } from "@sinclair/typebox";
import { Timestamp } from "./timestamp.ts";
import { validatorOf } from "./validator.ts";

/** The test clock's requests and answers, on OPS_PORT of `npm start -- --test-clock` alone. They are no part of the API's document. */

const closed = { additionalProperties: false } as const;

const AdvanceBody = Type.Object(
  { by: Type.Optional(Type.String()), to: Type.Optional(Type.String()) },
  closed,
);
export type AdvanceBody = Static<typeof AdvanceBody>;
export const readAdvanceBody = validatorOf(AdvanceBody);

const milliseconds = Type.Integer({ minimum: 0 });
const count = Type.Integer({ minimum: 0 });

export const ClockView = Type.Object(
  { now: Timestamp, offset_ms: milliseconds, advancing: Type.Boolean() },
  closed,
);
export type ClockView = Static<typeof ClockView>;

/** How much happened while the clock was advanced. */
export const Happened = Type.Object(
  {
    /** Attempts of jobs that ended. */
    attempts: count,
    /** Jobs that schedules made. */
    firings: count,
    /** Attempts of webhook deliveries that ended. */
    deliveries: count,
    expired_keys: count,
    purged_runs: count,
  },
  closed,
);
export type Happened = Static<typeof Happened>;

export const AdvanceView = Type.Object(
  { now: Timestamp, from: Timestamp, advanced_ms: milliseconds, happened: Happened },
  closed,
);
export type AdvanceView = Static<typeof AdvanceView>;
