import { describe, expect, test } from "bun:test";
import { ApiError } from "../errors.ts";
import { checkGap, parseCron } from "./cron.ts";
import { firingsAfter } from "./firings.ts";
import { parseZone } from "./zone.ts";

const UTC = parseZone("UTC");
/** A Thursday, in a year that is no leap year. */
const NEW_YEAR = Date.parse("2026-01-01T00:00:00Z");

/** The first firings from New Year 2026 on, as `MM-DD hh:mm:ss`. */
function firingsOf(expression: string, count: number): string[] {
  return [...firingsAfter(parseCron(expression), UTC, NEW_YEAR - 1_000).take(count)].map(({ at }) =>
    new Date(at).toISOString().slice(5, 19).replace("T", " "),
  );
}

/** The first days, as `MM-DD`, that an expression matches with these two day fields. */
function daysOf(dayOfMonth: string, dayOfWeek: string, count: number): string {
  const firings = firingsOf(`0 0 ${dayOfMonth} * ${dayOfWeek}`, count);
  expect(firings.every((firing) => firing.endsWith(" 00:00:00"))).toBe(true);
  return firings.map((firing) => firing.slice(0, 5)).join(" ");
}

function refusalOf(act: () => unknown): { code: string; param: string | undefined } | null {
  try {
    act();
    return null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return { code: error.code, param: error.param };
  }
}

describe("a cron expression", () => {
  test.each([
    ["five fields fire at second 0", "30 4 * * *", "01-01 04:30:00|01-02 04:30:00"],
    ["six fields begin with the second", "*/30 30 4 * * *", "01-01 04:30:00|01-01 04:30:30|01-02 04:30:00"],
    ["any blanks separate and surround", " \t30   4\t*\n* \u00a0*  ", "01-01 04:30:00|01-02 04:30:00"],
    ["numbers may have leading zeros", "05 007 * * *", "01-01 07:05:00|01-02 07:05:00"],
    ["lists are sets", "30,10,30,10-10 4 * * *", "01-01 04:10:00|01-01 04:30:00|01-02 04:10:00"],
    ["ranges include both ends", "58-59 4 * * *", "01-01 04:58:00|01-01 04:59:00|01-02 04:58:00"],
    [
      "ranges, lists and steps overlap",
      "0-20/10,5-10/5 4 * * *",
      "01-01 04:00:00|01-01 04:05:00|01-01 04:10:00|01-01 04:20:00|01-02 04:00:00",
    ],
    [
      "*/n counts from the field's first",
      "0 */9 * * *",
      "01-01 00:00:00|01-01 09:00:00|01-01 18:00:00|01-02 00:00:00",
    ],
    [
      "a/n goes to the end of the field",
      "50/3 4 * * *",
      "01-01 04:50:00|01-01 04:53:00|01-01 04:56:00|01-01 04:59:00|01-02 04:50:00",
    ],
    ["a step as large as the largest value", "*/59 4 * * *", "01-01 04:00:00|01-01 04:59:00|01-02 04:00:00"],
    [
      "month names in any case, in ranges and lists",
      "0 0 1 feb-Apr,DEC *",
      "02-01 00:00:00|03-01 00:00:00|04-01 00:00:00|12-01 00:00:00|02-01 00:00:00",
    ],
    ["month names with a step", "0 0 1 AUG/3 *", "08-01 00:00:00|11-01 00:00:00|08-01 00:00:00"],
    ["@hourly", "@hourly", "01-01 00:00:00|01-01 01:00:00"],
    ["@daily", "@daily", "01-01 00:00:00|01-02 00:00:00"],
    ["@midnight, blanks around it", " @midnight ", "01-01 00:00:00|01-02 00:00:00"],
    ["@weekly", "@weekly", "01-04 00:00:00|01-11 00:00:00"],
    ["@monthly", "@monthly", "01-01 00:00:00|02-01 00:00:00"],
    ["@yearly", "@yearly", "01-01 00:00:00|01-01 00:00:00"],
    ["@annually", "@annually", "01-01 00:00:00|01-01 00:00:00"],
    ["the last second of the year", "59 59 23 31 12 ?", "12-31 23:59:59|12-31 23:59:59"],
  ])("%s: %s", (_, expression, expected) => {
    const firings = expected.split("|");
    expect(firingsOf(expression, firings.length)).toEqual(firings);
  });

  test.each([
    ["*", "1-5", "01-01 01-02 01-05 01-06"],
    ["?", "mon", "01-05 01-12 01-19"],
    ["*", "SUN", "01-04 01-11"],
    ["*", "0", "01-04 01-11"],
    ["*", "7", "01-04 01-11"],
    ["*", "7-7", "01-04 01-11"],
    ["*", "SUN-SUN", "01-04 01-11"],
    ["*", "SUN-TUE", "01-04 01-05 01-06 01-11"],
    ["*", "FRI-SUN", "01-02 01-03 01-04 01-09"],
    ["*", "5-7", "01-02 01-03 01-04 01-09"],
    ["*", "FRI-7/2", "01-02 01-04 01-09"],
    ["*", "0-7", "01-01 01-02 01-03 01-04 01-05"],
    ["*", "1/2", "01-02 01-05 01-07 01-09"],
    ["*", "7/2", "01-01 01-03 01-04 01-06 01-08"],
    ["*", "SUN/2", "01-01 01-03 01-04 01-06 01-08"],
    ["*", "*/7", "01-04 01-11"],
    ["L", "*", "01-31 02-28 03-31 04-30"],
    ["l", "?", "01-31 02-28 03-31 04-30"],
    ["15,L", "*", "01-15 01-31 02-15 02-28"],
    ["31", "*", "01-31 03-31 05-31"],
    ["*", "FRIL", "01-30 02-27 03-27"],
    ["*", "5L", "01-30 02-27 03-27"],
    ["*", "0L", "01-25 02-22 03-29"],
    ["*", "7l", "01-25 02-22 03-29"],
    ["*", "MON#2", "01-12 02-09 03-09"],
    ["*", "1#1,fri#5", "01-05 01-30 02-02 03-02 04-06"],
    ["*", "MON#2,MONL,TUE", "01-06 01-12 01-13 01-20 01-26 01-27"],
    ["*", "THU#5", "01-29 04-30 07-30"],
  ])("day of month %s and day of week %s match %s", (dayOfMonth, dayOfWeek, expected) => {
    expect(daysOf(dayOfMonth, dayOfWeek, expected.split(" ").length)).toBe(expected);
  });

  test.each([
    ["13", "FRI", "01-02 01-09 01-13 01-16"],
    ["1-31", "FRI", "01-01 01-02 01-03"],
    ["5,*", "FRI", "01-01 01-02 01-03"],
    ["L", "MON", "01-05 01-12 01-19 01-26 01-31"],
    ["13", "0-6", "01-01 01-02 01-03"],
  ])("either day matches where both fields restrict: %s, %s", (dayOfMonth, dayOfWeek, expected) => {
    expect(daysOf(dayOfMonth, dayOfWeek, expected.split(" ").length)).toBe(expected);
  });

  test.each([
    ["*/2", "MON", "01-05 01-19 02-09 02-23"],
    ["*,5", "FRI", "01-02 01-09"],
    ["13", "*/5", "02-13 03-13 09-13"],
    ["?", "?", "01-01 01-02 01-03"],
    ["*/10", "*/2", "01-01 01-11 01-31 02-01 02-21"],
  ])("both days match where a field begins with a star: %s, %s", (dayOfMonth, dayOfWeek, expected) => {
    expect(daysOf(dayOfMonth, dayOfWeek, expected.split(" ").length)).toBe(expected);
  });

  test("that matches only in some leap years is accepted", () => {
    const years = [...firingsAfter(parseCron("0 0 * 2 MON#5"), UTC, NEW_YEAR).take(4)].map(({ at }) =>
      new Date(at).toISOString().slice(0, 10),
    );
    expect(years).toEqual(["2044-02-29", "2072-02-29", "2112-02-29", "2140-02-29"]);
  });
});

test.each(["TZ=UTC 0 0 * * *", "CRON_TZ=Europe/Berlin 0 0 * * *", " tz= * * * * *"])(
  "%s is told where zones are given",
  (expression) => {
    expect(() => parseCron(expression)).toThrow(
      "cron must not name a time zone (TZ=): give it in the field timezone.",
    );
  },
);

describe("refused as invalid_cron_expression", () => {
  test.each([
    "",
    " ",
    "*",
    "* * * *",
    "* * * * * * *",
    "0 0 1 1 * 2030",
    "0 0 0 1 1 * 2030",
    ...["60 * * * *", "* 24 * * *", "* * 32 * *", "* * 0 * *", "* * * 13 *", "* * * 0 *", "* * * * 8"],
    ...["60 * * * * *", "-1 * * * *", "+5 * * * *", "1.5 * * * *", "1e1 * * * *", "0x5 * * * *", "٣ * * * *"],
    ...["22-2 * * * *", "0 22-2 * * *", "0 0 * DEC-JAN *", "0 0 * * 5-0", "0 0 * * 7-1", "0 0 * * SAT-MON"],
    ...["*/60 * * * *", "*/60 * * * * *", "* */24 * * *", "* * */32 * *", "* * * */13 *", "* * * * */8"],
    ...[
      "0-59/60 * * * *",
      "5/60 * * * *",
      "*/0 * * * *",
      "*/ * * * *",
      "/5 * * * *",
      "*/-5 * * * *",
      "*/5/5 * * * *",
    ],
    ...["1, * * * *", ",1 * * * *", "1,,2 * * * *", ", * * * *", "1- * * * *", "-5 * * * *", "1-2-3 * * * *"],
    ...["** * * * *", "*5 * * * *", "5* * * * *", "*-5 * * * *", "1-* * * * *", "#1 * * * *", "1#1 * * * *"],
    ...["? * * * *", "* ? * * *", "* * * ? *", "? * * * * *", "0 0 ?/2 * *", "0 0 ?,1 * *", "0 0 ?? * *"],
    ...["0 0 15W * *", "0 0 LW * *", "0 0 L-3 * *", "0 0 1-L * *", "0 0 L/2 * *", "0 0 5L * *", "0 0 LL * *"],
    ...[
      "0 0 * * L",
      "0 0 * * L,1",
      "0 0 * * LL",
      "0 0 * * 8L",
      "0 0 * * FRIL/2",
      "0 0 * * MON-FRIL",
      "0 0 * L *",
    ],
    ...[
      "0 0 * * MON#0",
      "0 0 * * MON#6",
      "0 0 * * MON#",
      "0 0 * * #2",
      "0 0 * * MON#2/2",
      "0 0 * * MON#1-2",
      "0 0 1#1 * *",
    ],
    ...[
      "H * * * *",
      "H/15 * * * *",
      "H(0-5) * * * *",
      "0 0 * * MONDAY",
      "0 0 * january *",
      "0 0 * MON *",
      "0 0 * * JAN",
    ],
    ...[
      "MON * * * *",
      "0 0 FEB * *",
      "0 0 * * MO",
      "TZ=UTC 0 0 * * *",
      "CRON_TZ=UTC 0 0 * * *",
      "0;0 * * * *",
      "0 0 * * _",
    ],
    ...[
      "@reboot",
      "@every 5m",
      "@Daily",
      "@DAILY",
      "@daily 5",
      "daily",
      "@",
      "@hourly @daily",
      "__proto__",
      "constructor",
    ],
    ...["0 0 * * *\u0000", "0 0 * * \ud800", "0 0 * * 😀", "０ 0 * * *", "0 0 * * MON\u0130"],
  ])("%p", (expression) => {
    const refusal = { code: "invalid_cron_expression", param: "cron" };
    expect(refusalOf(() => parseCron(expression))).toEqual(refusal);
  });

  test.each(["0 0 30 2 *", "0 0 31 4,6,9,11 *", "* * * 30 2 *", "0 0 30-31 FEB ?", "0 0 */29 2 MON#2"])(
    "what never matches, too short or not: %p",
    (expression) => {
      expect(() => parseCron(expression)).toThrow("cron never fires");
    },
  );

  test("an expression of more than 256 characters", () => {
    expect(refusalOf(() => parseCron(`0 0 * * *${" ".repeat(247)}`))).toBeNull();
    expect(refusalOf(() => parseCron(`0 0 * * *${" ".repeat(248)}`))?.code).toBe("invalid_cron_expression");
    expect(refusalOf(() => parseCron("0".repeat(1_000_000)))?.code).toBe("invalid_cron_expression");
  });

  test("with a message that names the field and does not quote the rest of the expression", () => {
    expect(() => parseCron("0 25 * * secret")).toThrow('cron, hour: "25" needs 0 to 23.');
  });
});

describe("interval_too_short", () => {
  const check = (expression: string) => refusalOf(() => checkGap(parseCron(expression)));

  test.each([
    "*/30 * * * * *",
    "0,30 * * * * *",
    "15,45 * * * * *",
    "29 * * * * *",
    "59 * * * * *",
    "0 * * * * *",
    "0,59 0 0 * * *",
    "59,0 58 * * * *",
    "29,59 * * * * *",
    "*/59 */2 * * * *",
    "0,45 30 * * * *",
    "* * * * *",
    "*/30 59 23 31 12 *",
  ])("does not refuse %p", (expression) => {
    expect(check(expression)).toBeNull();
  });

  test.each([
    ["within a minute", "0,10 * * * * *"],
    ["within a minute", "*/29 0 0 1 1 *"],
    ["within a minute", "0,29 0 0 29 2 *"],
    ["over the border of a minute", "*/31 * * * * *"],
    ["over the border of a minute", "0,31 0,1 0 * * *"],
    ["over the border of an hour", "0,45 0,59 * * * *"],
    ["over the border of an hour", "0,31 0,59 4-5 * * *"],
    ["over midnight", "0,31 0,59 0,23 * * *"],
    ["over the border of a month", "0,31 0,59 0,23 L,1 * *"],
    ["over the border of a month", "0,31 0,59 0,23 31,1 7,8 *"],
    ["over New Year", "0,31 0,59 0,23 31,1 12,1 *"],
    ["over a leap day", "0,31 0,59 0,23 1,29 2,3 *"],
    ["over a leap day, in few years of a century", "0,31 0,59 0,23 */28 2,3 MON#5,TUE#1"],
  ])("refuses %s: %s", (_, expression) => {
    expect(check(expression)).toEqual({ code: "interval_too_short", param: "cron" });
  });

  test.each([
    ["minutes that are not adjacent", "0,31 */2 * * * *"],
    ["hours that are not adjacent", "0,31 0,59 */2 * * *"],
    ["days that are not adjacent", "0,31 0,59 0,23 1,31 2,4 *"],
    ["months that are not adjacent", "0,31 0,59 0,23 1,31 3,5 *"],
    ["a year that does not follow", "0,31 0,59 0,23 29 2 ?"],
  ])("does not refuse %s: %s", (_, expression) => {
    expect(check(expression)).toBeNull();
  });

  test("tells how close two firings come", () => {
    expect(() => checkGap(parseCron("0,10 * * * * *"))).toThrow("two of its firings are 10 s apart");
  });
});
