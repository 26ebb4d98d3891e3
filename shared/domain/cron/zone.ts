import { ApiError } from "../errors.ts";

/** The zone of an IANA name in any case, under its canonical spelling. Throws invalid_cron_expression. */
export function parseZone(text: string): Zone {
  // The pattern keeps out offsets, which the engine takes for zones, and letters whose lower case is plain ASCII.
  const key = NAME_PATTERN.test(text) ? text.toLowerCase() : "";
  const known = zones.get(key);
  if (known !== undefined) return known;
  const name = key === "" ? null : findName(text);
  if (name === null) {
    throw new ApiError(
      "invalid_cron_expression",
      "timezone must be the name of a zone of the IANA database, such as Europe/Berlin or UTC.",
      "timezone",
    );
  }
  const zone = new Zone(name);
  zones.set(key, zone);
  return zone;
}

/**
 * A time zone as a row of stretches without a clock change, numbered from 0. Instants, local times and offsets are
 * whole seconds; a local time is what a calendar in UTC would call by the same name. The changes are read from the
 * engine's database as they are asked for and kept, up to 2500: 5 KB a zone for the present, 17 KB for all of them.
 * Whatever is not forever has ended by 2100 there, and what is repeats with the calendar every 400 years.
 */
export class Zone {
  readonly name: string;
  private readonly begins: number[] = [Number.NEGATIVE_INFINITY];
  private readonly offsets: number[];
  private isComplete = false;
  /** The changes from 2100 to 2500, once they are all read. */
  private changesInCycle = 0;

  constructor(name: string) {
    this.name = name;
    this.offsets = [zonedAt(EARLIEST_AT, name).offsetNanoseconds / 1e9];
  }

  /** The number of the stretch that an instant lies in. */
  stretchAt(at: number): number {
    while (!this.isComplete && (this.begins.at(-1) as number) <= at) this.readOn();
    const isBeyond = this.changesInCycle > 0 && at >= CYCLE_END_AT;
    const cycles = isBeyond ? Math.floor((at - CYCLE_BEGIN_AT) / CYCLE_S) : 0;
    return this.search(at - cycles * CYCLE_S) + cycles * this.changesInCycle;
  }

  /** The first instant of a stretch: minus infinity for the first one. */
  beginOf(stretch: number): number {
    const cycles = this.cyclesTo(stretch);
    return (this.begins[stretch - cycles * this.changesInCycle] as number) + cycles * CYCLE_S;
  }

  /** The first instant after a stretch: infinity if the clocks are never changed again. */
  endOf(stretch: number): number {
    if (stretch + 1 === this.begins.length && !this.isComplete) this.readOn();
    const isLast = stretch + 1 === this.begins.length && this.changesInCycle === 0;
    return isLast ? Number.POSITIVE_INFINITY : this.beginOf(stretch + 1);
  }

  /** What is added to an instant of the stretch for its local time. */
  offsetOf(stretch: number): number {
    return this.offsets[stretch - this.cyclesTo(stretch) * this.changesInCycle] as number;
  }

  /** The offset of the stretch before; of the first stretch its own. */
  offsetBefore(stretch: number): number {
    return this.offsetOf(Math.max(0, stretch - 1));
  }

  /** How many cycles a stretch lies after the one of the same kind that was read. */
  private cyclesTo(stretch: number): number {
    const beyond = stretch - this.begins.length;
    return beyond < 0 ? 0 : Math.floor(beyond / this.changesInCycle) + 1;
  }

  private search(at: number): number {
    let low = 0;
    let high = this.begins.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if ((this.begins[middle] as number) <= at) low = middle;
      else high = middle;
    }
    return low;
  }

  private readOn(): void {
    let zoned = zonedAt(Math.max(EARLIEST_AT, this.begins.at(-1) as number), this.name);
    for (let count = 0; count < PAGE; count++) {
      const changed = zoned.getTimeZoneTransition("next");
      if (changed === null || changed.epochMilliseconds >= CYCLE_END_AT * 1_000) {
        this.isComplete = true;
        this.changesInCycle = this.begins.length - 1 - this.search(CYCLE_BEGIN_AT - 1);
        return;
      }
      this.begins.push(changed.epochMilliseconds / 1_000);
      this.offsets.push(changed.offsetNanoseconds / 1e9);
      zoned = changed;
    }
  }
}

/** An instant, in milliseconds since 1970, as the clocks of the zone show it: `2026-03-29T03:30:00+02:00`. */
export function localTimeOf(zone: Zone, at: number): string {
  const seconds = Math.floor(at / 1_000);
  const offset = zone.offsetOf(zone.stretchAt(seconds));
  const clock = new Date((seconds + offset) * 1_000).toISOString().slice(0, -".000Z".length);
  return `${clock}${offset < 0 ? "-" : "+"}${sexagesimal(Math.abs(offset))}`;
}

/** Hours and minutes, and the seconds that only the local mean times of the past had. */
function sexagesimal(seconds: number): string {
  const parts = [Math.floor(seconds / 3_600), Math.floor(seconds / 60) % 60];
  if (seconds % 60 !== 0) parts.push(seconds % 60);
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

const NAME_PATTERN = /^[A-Za-z][A-Za-z0-9_+/-]{0,63}$/;
/** By the name in lower case; there are some 600. */
const zones = new Map<string, Zone>();

/** The years that are written with four digits. */
export const EARLIEST_AT = Date.parse("0000-01-01T00:00:00Z") / 1_000;
export const LATEST_AT = Date.parse("9999-12-31T23:59:59Z") / 1_000;
const CYCLE_BEGIN_AT = Date.parse("2100-01-01T00:00:00Z") / 1_000;
const CYCLE_END_AT = Date.parse("2500-01-01T00:00:00Z") / 1_000;
const CYCLE_S = CYCLE_END_AT - CYCLE_BEGIN_AT;
/** Changes that are read together: two a year where there is summer time. */
const PAGE = 64;

function zonedAt(at: number, name: string): Temporal.ZonedDateTime {
  return Temporal.Instant.fromEpochMilliseconds(at * 1_000).toZonedDateTimeISO(name);
}

/** The name in its own spelling; an alias stays what it is. */
function findName(text: string): string | null {
  try {
    return new Intl.DateTimeFormat("en-US", { timeZone: text }).resolvedOptions().timeZone;
  } catch {
    return null;
  }
}
