/** When the clocks of a time zone change, as this browser knows it. */

export interface ClockChange {
  /** The first quarter of an hour with the new offset. Milliseconds since 1970. */
  at: number;
  /** How far the clocks go ahead; negative if back. */
  minutes: number;
}

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
/** A zone whose clocks change has two changes in this time. From one to the same of the next year are up to 53 weeks. */
const DAYS_SEARCHED = 53 * 7 + 1;

/** The changes of the 53 weeks after `from`; none for a zone that this browser does not know. */
export function findClockChanges(timezone: string, from: number): ClockChange[] {
  const offsetAt = offsetsOf(timezone);
  if (offsetAt === null) return [];
  const changes: ClockChange[] = [];
  let before = offsetAt(from);
  for (let day = 1; day <= DAYS_SEARCHED; day++) {
    const end = from + day * DAY_MS;
    const after = offsetAt(end);
    if (after === before) continue;
    let at = end - DAY_MS;
    while (offsetAt(at) === before && at < end) at += HOUR_MS / 4;
    changes.push({ at: Math.floor(at / (HOUR_MS / 4)) * (HOUR_MS / 4), minutes: after - before });
    before = after;
  }
  return changes;
}

/** Minutes ahead of UTC; null for an unknown zone. */
function offsetsOf(timezone: string): ((at: number) => number) | null {
  try {
    const format = new Intl.DateTimeFormat("en", { timeZone: timezone, timeZoneName: "longOffset" });
    return (at) => {
      const name = format.formatToParts(at).find(({ type }) => type === "timeZoneName")?.value ?? "GMT";
      const [, sign, hours = "0", minutes = "0"] = /GMT([+-])(\d\d):(\d\d)/.exec(name) ?? [];
      return (sign === "-" ? -1 : 1) * (Number(hours) * 60 + Number(minutes));
    };
  } catch {
    return null;
  }
}

/** The day on the zone's wall clock, such as `2026-03-29`. */
export function dayIn(timezone: string, at: number): string {
  try {
    return new Intl.DateTimeFormat("sv", { timeZone: timezone, dateStyle: "short" }).format(at);
  } catch {
    return new Date(at).toISOString().slice(0, 10);
  }
}
