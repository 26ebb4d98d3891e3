import { CYCLE_DAYS, CYCLE_MONTHS, firstDayOf, matchingDays } from "./days.ts";
import { type Cron, lowestBit, NONE, nextOfSixty } from "./fields.ts";
import { DAY_S, firstTime, HOUR_S, lastTime, MINUTE_S } from "./matches.ts";

/**
 * The seconds between the two closest consecutive firings of the timetable. Clock changes are ignored, so that a new tz
 * database never makes the interval of a stored schedule too short. All matching days have the same times, so the closest
 * pair is within a day, or it is the last time of a day and the first one of the next matching day.
 */
export function minGapSeconds(cron: Cron): number {
  const withinDay = minGapWithinDay(cron);
  const overnight = DAY_S - (lastTime(cron) - firstTime(cron));
  // If not even two matching days in a row are closer, it does not matter which days match.
  if (withinDay <= overnight) return withinDay;
  return Math.min(withinDay, overnight + (minDaysApart(cron) - 1) * DAY_S);
}

/** The smallest gap within a day; infinity if only one time of day matches. */
function minGapWithinDay(cron: Cron): number {
  const first = firstTime(cron);
  const last = lastTime(cron);
  const secondStep = minStep((from) => nextOfSixty(cron.secondsLow, cron.secondsHigh, from));
  const minuteStep = minStep((from) => nextOfSixty(cron.minutesLow, cron.minutesHigh, from));
  const hourStep = minStep((from) => lowestBit(cron.hours & (-1 << from)));
  return Math.min(
    secondStep,
    minuteStep * MINUTE_S - ((last % MINUTE_S) - (first % MINUTE_S)),
    hourStep * HOUR_S - ((last % HOUR_S) - (first % HOUR_S)),
  );
}

/** The smallest difference between neighbouring members of a set; infinity if there is only one. */
function minStep(next: (from: number) => number): number {
  let least = Number.POSITIVE_INFINITY;
  let member = next(0);
  for (let later = next(member + 1); later !== NONE; later = next(member + 1)) {
    least = Math.min(least, later - member);
    member = later;
  }
  return least;
}

/** The fewest days from one matching day to the next, over the 400 years after which the calendar repeats. */
function minDaysApart(cron: Cron): number {
  let least = Number.POSITIVE_INFINITY;
  let first = Number.NaN;
  let last = Number.NaN;
  for (let month = 0; month < CYCLE_MONTHS && least > 1; month++) {
    for (let days = matchingDays(cron, month); days !== 0; days &= days - 1) {
      const day = firstDayOf(month) + lowestBit(days);
      if (Number.isNaN(first)) first = day;
      else least = Math.min(least, day - last);
      last = day;
    }
  }
  return Math.min(least, first + CYCLE_DAYS - last);
}
