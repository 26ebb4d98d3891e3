import { invalidRequest } from "./errors.ts";
import { parseInstant } from "./job.ts";

/** How far a test clock is to go: by so many milliseconds, or to an instant in milliseconds since 1970. */
export type Advance = { by: number } | { to: number };

const UNIT_MS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;
const ADVANCE_DAYS_MAX = 366;
const ADVANCE_MS_MAX = ADVANCE_DAYS_MAX * UNIT_MS.d;
/** It lies far before the last year that instants of the API can have, so that jobs and schedules have a future. */
const LATEST_AT = Date.UTC(9000, 0);

/** Reads the advance that is asked of a test clock that stands at `now`. Throws invalid_request. */
export function readAdvance({ by, to }: { by?: string; to?: string }, now: number): Advance {
  if (by !== undefined && to !== undefined) throw invalidRequest("Only one of by and to may be given.", "to");
  const advance = by === undefined ? readTo(to, now) : readBy(by);
  const ms = "by" in advance ? advance.by : advance.to - now;
  const param = "by" in advance ? "by" : "to";
  if (ms > ADVANCE_MS_MAX)
    throw invalidRequest(
      `A clock goes ${ADVANCE_DAYS_MAX} days ahead at most. Advance it several times.`,
      param,
    );
  if (now + ms > LATEST_AT) throw invalidRequest("A clock goes no further than the year 9000.", param);
  return advance;
}

function readBy(text: string): Advance {
  const [, number, unit] = /^([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])$/.exec(text) ?? [];
  if (number === undefined)
    throw invalidRequest("by must be one number and s, m, h or d, such as 48h.", "by");
  return { by: Math.round(Number(number) * UNIT_MS[unit as keyof typeof UNIT_MS]) };
}

function readTo(text: string | undefined, now: number): Advance {
  if (text === undefined)
    throw invalidRequest('by or to is required: {"by": "48h"} or {"to": "2027-01-01T00:00:00Z"}.', "by");
  const to = parseInstant(text);
  if (to === null) {
    throw invalidRequest(
      "to must be an ISO 8601 date and time with Z or an offset, such as 2027-01-01T00:00:00Z.",
      "to",
    );
  }
  if (to < now) throw invalidRequest("to is in the past of this clock, which never goes back.", "to");
  return { to };
}
