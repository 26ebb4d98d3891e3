/**
 * The firings of cron expressions by brute force: it looks at every minute of a window on the zone's wall clock, as
 * Intl shows it. It shares no code with the rules that it judges, and follows the specification alone.
 */

const MINUTE_MS = 60_000;
const QUARTER_MINUTES = 15;
const DAY_MINUTES = 1_440;
const NAMES: Record<string, number> = Object.fromEntries(
  [
    ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"].map((name, day) => [name, day] as const),
    "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"
      .split(" ")
      .map((name, month) => [name, month + 1] as const),
  ].flat(),
);

export interface ExpectedFiring {
  at: number;
  moved: boolean;
}

/** The local time of a zone at each minute of a window. Offsets must be whole minutes in it. */
export class WallClock {
  /** The local minute of each real minute since `fromAt`, counted from 1970 on a calendar without clock changes. */
  readonly minutes: Int32Array;
  /** The instants at which the local time differs from a minute before by anything but a minute. */
  readonly changes: number[] = [];
  private readonly least: number;
  /** The first real minute that shows each local minute since `least`; -1 for a skipped one. */
  private readonly firstShown: Int32Array;

  constructor(
    readonly zone: string,
    readonly fromAt: number,
    toAt: number,
  ) {
    this.minutes = new Int32Array((toAt - fromAt) / MINUTE_MS);
    const show = localMinutes(zone);
    for (let begin = 0; begin < this.minutes.length; begin += QUARTER_MINUTES) {
      const end = Math.min(begin + QUARTER_MINUTES, this.minutes.length);
      const first = show(fromAt + begin * MINUTE_MS);
      const isSteady = show(fromAt + (end - 1) * MINUTE_MS) - first === end - 1 - begin;
      for (let minute = begin; minute < end; minute++) {
        this.minutes[minute] = isSteady ? first + minute - begin : show(fromAt + minute * MINUTE_MS);
      }
    }
    this.least = this.minutes.reduce((a, b) => Math.min(a, b));
    this.firstShown = new Int32Array(this.minutes.reduce((a, b) => Math.max(a, b)) + 1 - this.least).fill(-1);
    this.minutes.forEach((local, minute) => {
      if (minute > 0 && local !== (this.minutes[minute - 1] ?? 0) + 1)
        this.changes.push(fromAt + minute * MINUTE_MS);
      if (this.firstShown[local - this.least] === -1) this.firstShown[local - this.least] = minute;
    });
  }

  /** All firings in the window, in order, except those skipped just before the window and moved into it. */
  firings(expression: string): ExpectedFiring[] {
    const rule = readRule(expression);
    const found = new Map<number, boolean>();
    const add = (minute: number, moved: boolean) => {
      for (const second of rule.seconds) {
        const at = this.fromAt + minute * MINUTE_MS + second * 1_000;
        found.set(at, moved && (found.get(at) ?? true));
      }
    };
    const matches = minuteMatcher(rule);
    if (rule.hourText.includes("*")) {
      this.minutes.forEach((local, minute) => {
        if (matches(local)) add(minute, false);
      });
    } else {
      this.addFixed(matches, add);
    }
    return [...found].map(([at, moved]) => ({ at, moved })).sort((a, b) => a.at - b.at);
  }

  private addFixed(matches: (local: number) => boolean, add: (minute: number, moved: boolean) => void): void {
    for (let place = 0; place < this.firstShown.length; place++) {
      const local = this.least + place;
      if (!matches(local)) continue;
      const minute = this.firstShown[place] ?? -1;
      if (minute !== -1) {
        add(minute, false);
        continue;
      }
      const afterGap = this.minutes.findIndex((shown) => shown > local);
      const gap = (this.minutes[afterGap] ?? 0) - (this.minutes[afterGap - 1] ?? 0) - 1;
      const shifted = this.firstShown[place + gap] ?? -1;
      if (shifted !== -1) add(shifted, true);
    }
  }
}

/** A function that answers the local minute at an instant. */
export function localMinutes(zone: string): (at: number) => number {
  const format = new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "short" });
  return (at) => Date.parse(`${format.format(at).replace(" ", "T")}Z`) / MINUTE_MS;
}

interface Rule {
  seconds: Set<number>;
  minutes: Set<number>;
  hours: Set<number>;
  hourText: string;
  months: Set<number>;
  dayMatches(date: Date): boolean;
}

export function readRule(expression: string): Rule {
  const texts = expression.trim().split(/\s+/);
  if (texts.length === 5) texts.unshift("0");
  const [second = "", minute = "", hour = "", dayOfMonth = "", month = "", dayOfWeek = ""] = texts;
  const isFree = (text: string) => text.startsWith("*") || text.startsWith("?");
  return {
    seconds: expand(second, 0, 59),
    minutes: expand(minute, 0, 59),
    hours: expand(hour, 0, 23),
    hourText: hour,
    months: expand(month, 1, 12),
    dayMatches(date) {
      const byDate = dayOfMonth.split(",").some((item) => dateMatches(item, date));
      const byWeekday = dayOfWeek.split(",").some((item) => weekdayMatches(item, date));
      return isFree(dayOfMonth) || isFree(dayOfWeek) ? byDate && byWeekday : byDate || byWeekday;
    },
  };
}

function dateMatches(item: string, date: Date): boolean {
  if (item === "L") return new Date(date.getTime() + DAY_MINUTES * MINUTE_MS).getUTCDate() === 1;
  return expand(item, 1, 31).has(date.getUTCDate());
}

function weekdayMatches(item: string, date: Date): boolean {
  const day = date.getUTCDay();
  if (item.endsWith("L")) {
    const nextWeek = new Date(date.getTime() + 7 * DAY_MINUTES * MINUTE_MS);
    return numberOf(item.slice(0, -1)) % 7 === day && nextWeek.getUTCMonth() !== date.getUTCMonth();
  }
  const [weekday = "", week] = item.split("#");
  if (week !== undefined)
    return numberOf(weekday) % 7 === day && Math.ceil(date.getUTCDate() / 7) === Number(week);
  const days = expand(item.replace(/-SUN/, "-7"), 0, item.includes("-") ? 7 : 6);
  return days.has(day) || (day === 0 && days.has(7));
}

/** The numbers of a list without the words of day fields. */
function expand(text: string, first: number, last: number): Set<number> {
  const numbers = new Set<number>();
  for (const item of text.split(",")) {
    const [range = "", step] = item.split("/");
    const [from = "", to] = range === "*" || range === "?" ? [String(first), String(last)] : range.split("-");
    const end = to === undefined ? (step === undefined ? numberOf(from) : last) : numberOf(to);
    for (let number = numberOf(from); number <= end; number += Number(step ?? 1)) numbers.add(number);
  }
  return numbers;
}

function numberOf(text: string): number {
  return NAMES[text.toUpperCase()] ?? Number(text);
}

/** A function that tells whether a local minute matches. It looks at each day once for all its minutes. */
function minuteMatcher({ hours, minutes, months, dayMatches }: Rule): (local: number) => boolean {
  const times = Array.from(
    { length: DAY_MINUTES },
    (_, time) => hours.has(Math.floor(time / 60)) && minutes.has(time % 60),
  );
  let knownDay = Number.NaN;
  let isMatch = false;
  return (local) => {
    const day = Math.floor(local / DAY_MINUTES);
    if (day !== knownDay) {
      const date = new Date(day * DAY_MINUTES * MINUTE_MS);
      knownDay = day;
      isMatch = months.has(date.getUTCMonth() + 1) && dayMatches(date);
    }
    return isMatch && (times[local - day * DAY_MINUTES] ?? false);
  };
}
