import { ApiError } from "../errors.ts";
import { didYouMean } from "../nearest.ts";
import { guessZone } from "./zone-names.ts";

/** The zone with an IANA name in any case. Its `name` has the canonical spelling. Throws invalid_cron_expression. */
export function parseZone(text: string): Zone {
  // The pattern refuses offsets, which the engine accepts as zones, and non-ASCII letters whose lower case is ASCII.
  const key = NAME_PATTERN.test(text) ? text.toLowerCase() : "";
  const known = zones.get(key);
  if (known !== undefined) return known;
  const name = key === "" ? null : findName(text);
  if (name === null) {
    throw new ApiError(
      "invalid_cron_expression",
      `timezone must be the name of a zone of the IANA database, such as Europe/Berlin or UTC.${didYouMean(guessZone(text))}`,
      "timezone",
    );
  }
  const zone = new Zone(name);
  zones.set(key, zone);
  return zone;
}

/**
 * A time zone as a sequence of stretches without a clock change, numbered from 0. Instants, local times and offsets are whole
 * seconds; a local time is the instant at which a clock in UTC shows the same time. The changes are read from the engine's
 * database on demand and kept, up to 2500: 5 KB a zone for the present, 17 KB for all of them. In that database every change
 * of the rules lies before 2100, and the rules in force then repeat with the calendar every 400 years.
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

  /** The first instant of a stretch; minus infinity for the first stretch. */
  beginOf(stretch: number): number {
    const cycles = this.cyclesTo(stretch);
    return (this.begins[stretch - cycles * this.changesInCycle] as number) + cycles * CYCLE_S;
  }

  /** The first instant after a stretch; infinity if the clocks are never changed again. */
  endOf(stretch: number): number {
    if (stretch + 1 === this.begins.length && !this.isComplete) this.readOn();
    const isLast = stretch + 1 === this.begins.length && this.changesInCycle === 0;
    return isLast ? Number.POSITIVE_INFINITY : this.beginOf(stretch + 1);
  }

  /** The offset that is added to an instant of the stretch to get its local time. */
  offsetOf(stretch: number): number {
    return this.offsets[stretch - this.cyclesTo(stretch) * this.changesInCycle] as number;
  }

  /** The offset of the stretch before; the first stretch's own offset for the first one. */
  offsetBefore(stretch: number): number {
    return this.offsetOf(Math.max(0, stretch - 1));
  }

  /** How many cycles of 400 years lie between a stretch and the stretch that was read and that it repeats. */
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

/** Hours and minutes, and seconds if there are any, as in the local mean times of the past. */
function sexagesimal(seconds: number): string {
  const parts = [Math.floor(seconds / 3_600), Math.floor(seconds / 60) % 60];
  if (seconds % 60 !== 0) parts.push(seconds % 60);
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

const NAME_PATTERN = /^[A-Za-z][A-Za-z0-9_+/-]{0,63}$/;
/** The zones used so far, by name in lower case. There are some 600 names. */
const zones = new Map<string, Zone>();

/** The first and last instant of the years with four digits. */
export const EARLIEST_AT = Date.parse("0000-01-01T00:00:00Z") / 1_000;
export const LATEST_AT = Date.parse("9999-12-31T23:59:59Z") / 1_000;
const CYCLE_BEGIN_AT = Date.parse("2100-01-01T00:00:00Z") / 1_000;
const CYCLE_END_AT = Date.parse("2500-01-01T00:00:00Z") / 1_000;
const CYCLE_S = CYCLE_END_AT - CYCLE_BEGIN_AT;
/** How many changes are read at a time. Summer time makes two a year. */
const PAGE = 64;

function zonedAt(at: number, name: string): Temporal.ZonedDateTime {
  return Temporal.Instant.fromEpochMilliseconds(at * 1_000).toZonedDateTimeISO(name);
}

/** The name in its canonical case; an alias stays that alias. */
function findName(text: string): string | null {
  try {
    return new Intl.DateTimeFormat("en-US", { timeZone: text }).resolvedOptions().timeZone;
  } catch {
    return null;
  }
}
