import { heapStats } from "bun:jsc";
import { CronExpressionParser } from "cron-parser";
import { Cron as Croner } from "croner";
import { checkGap, parseCron } from "../../shared/domain/cron/cron.ts";
import { nextFiring } from "../../shared/domain/cron/firings.ts";
import { parseZone, Zone } from "../../shared/domain/cron/zone.ts";
import { formatCount, median, printTable } from "./measure.ts";

/**
 * The next firing of ordinary and of the worst cron expressions, from instants of 40 years: ours, cron-parser, croner and
 * Bun.cron; then what a year of firings differs by, what hostile expressions cost to refuse, and memory.
 */

const ORDINARY = [
  ["* * * * *", "UTC"],
  ["*/5 * * * *", "America/New_York"],
  ["*/30 * * * * *", "Europe/Berlin"],
  ["0 * * * *", "Asia/Kolkata"],
  ["30 2 * * *", "America/New_York"],
  ["15 2 * * *", "Australia/Lord_Howe"],
  ["0 9 * * MON-FRI", "Europe/London"],
  ["0 0 * * *", "America/Santiago"],
  ["0,30 8-18 1,15 * *", "Africa/Casablanca"],
  ["0 0 L * *", "Pacific/Apia"],
  ["0 12 * * FRI#2", "Europe/Dublin"],
  ["0 0 1 1 *", "America/Sao_Paulo"],
] as const;
/** Found by trying: the rarest days, in zones with the most changes on the way to them. */
const WORST = [
  ["0 0 29 2 *", "America/New_York"],
  ["0 0 * 2 MON#5", "America/New_York"],
  ["59 59 23 * 2 SUN#5", "Antarctica/Troll"],
  ["59 59 * * 2 SUN#5", "Africa/Casablanca"],
  ["0 0 */28 2 MONL", "Australia/Lord_Howe"],
] as const;

const FROM_AT = Date.parse("2026-01-01T00:00:00Z");
const SPAN_MS = 40 * 365.25 * 86_400_000;
const YEAR_MS = 365 * 86_400_000;
const WARM_UPS = 200;
const STEPS = 5_000;
const PEER_STEPS = 400;
const CRONS = 100_000;
/** Of each zone the best of three counts: what else the machine does is not the zone's cost. */
const COLD_TRIES = [1, 2, 3];
const GOAL_ORDINARY_US = 50;
const GOAL_WORST_US = 5_000;

/** Answers the first firing after an instant; throws if it cannot read the expression. */
type Step = (after: number) => number | null;
type Open = (expression: string, zone: string) => Step;

const IMPLEMENTATIONS: Record<string, Open> = {
  ours: (expression, name) => {
    const [cron, zone] = [parseCron(expression), parseZone(name)];
    return (after) => nextFiring(cron, zone, after)?.at ?? null;
  },
  "cron-parser": (expression, tz) => {
    const cron = CronExpressionParser.parse(expression, { tz });
    return (after) => {
      cron.reset(new Date(after));
      return cron.next().getTime();
    };
  },
  croner: (expression, timezone) => {
    const cron = new Croner(expression, { timezone, paused: true });
    return (after) => cron.nextRun(new Date(after))?.getTime() ?? null;
  },
  "Bun.cron": (expression, tz) => (after) => Bun.cron.parse(expression, after, { tz })?.getTime() ?? null,
};

/** 256 characters of everything that a parser could stumble over. */
const HOSTILE: Record<string, string> = {
  "stars in a list": "*,".repeat(128),
  "ranges in a list, too short": `${"0-59,".repeat(49)}1 * * * * *`,
  "ranges in a list, never": `${"0-59,".repeat(46)}1 ${"0,".repeat(3)}0 * 30 2 *`,
  "one long number": "9".repeat(256),
  "zeros before a number": `${"0".repeat(240)}5 * * * *`,
  "words of one letter": "L".repeat(256),
  "nothing but hashes": "MON#".repeat(64),
  "nothing but steps": `0${"/1".repeat(127)}`,
  "nothing but dashes": `1${"-1".repeat(127)}`,
  "many fields": "* ".repeat(128),
  blanks: " ".repeat(256),
  "weekdays in a list, never": `0 0 */30 2 ${"MON#5,".repeat(40)}1L`,
  "not plain text": "\u0130\ud800".repeat(128),
  "a million characters": "*".repeat(1_000_000),
};

const names = Object.keys(IMPLEMENTATIONS);

function main(): void {
  console.log(`${process.versions.bun} on ICU ${process.versions.icu}\n`);
  compareSteps();
  compareYears();
  measureColdZones();
  measureRefusals();
  measureMemory();
}

function compareSteps(): void {
  const oursUs = new Map<string, number[]>();
  const rows = [...ORDINARY, ...WORST].map(([expression, zone]) => {
    const cells = names.map((name) => {
      const samples = sampleSteps(name, expression, zone);
      if (samples === null) return "cannot";
      if (name === "ours") oursUs.set(expression, samples);
      return `${formatCount(median(samples))} / ${formatCount(percentile(samples, 0.99))}`;
    });
    return [`${expression}  ${zone}`, ...cells];
  });
  console.log("µs to the next firing, from random instants of 40 years: median / 99th percentile");
  printTable(["", ...names], rows);
  const medians = ORDINARY.map(([expression]) => median(oursUs.get(expression) ?? []));
  const worst = WORST.map(([expression]) => percentile(oursUs.get(expression) ?? [], 0.99));
  report(
    `ordinary expressions under ${GOAL_ORDINARY_US} µs at the median`,
    Math.max(...medians),
    GOAL_ORDINARY_US,
  );
  report(
    `the worst ones under ${GOAL_WORST_US} µs at the 99th percentile`,
    Math.max(...worst),
    GOAL_WORST_US,
  );
}

/** Microseconds of each step; null for an implementation that cannot read the expression. */
function sampleSteps(name: string, expression: string, zone: string): number[] | null {
  const random = randomNumbers();
  try {
    const step = IMPLEMENTATIONS[name]?.(expression, zone) as Step;
    const isOurs = name === "ours";
    for (let i = 0; i < (isOurs ? STEPS : WARM_UPS); i++) step(FROM_AT + random() * SPAN_MS);
    return Array.from({ length: isOurs ? STEPS : PEER_STEPS }, () => {
      const after = Math.floor(FROM_AT + random() * SPAN_MS);
      return timeUs(() => step(after));
    });
  } catch {
    return null;
  }
}

/** Every expression in a year with two clock changes: instants that only one of the two knows. */
function compareYears(): void {
  const rows = ORDINARY.filter(([expression]) => !expression.startsWith("*")).map(([expression, zone]) => {
    const wanted = new Set(firingsOfYear(IMPLEMENTATIONS.ours as Open, expression, zone));
    const cells = names.slice(1).map((name) => {
      try {
        const found = new Set(firingsOfYear(IMPLEMENTATIONS[name] as Open, expression, zone));
        return String(wanted.symmetricDifference(found).size);
      } catch {
        return "cannot";
      }
    });
    return [`${expression}  ${zone}`, ...cells];
  });
  console.log("\nfirings of 2026 that differ from ours");
  printTable(["", ...names.slice(1)], rows);
}

function firingsOfYear(open: Open, expression: string, zone: string): number[] {
  const step = open(expression, zone);
  const firings: number[] = [];
  for (let at = step(FROM_AT); at !== null && at < FROM_AT + YEAR_MS; at = step(at)) firings.push(at);
  return firings;
}

/** The first question about a zone reads its clock changes: those of the past, and those up to the instant asked for. */
function measureColdZones(): void {
  const cron = parseCron("30 2 * * *");
  const zoneNames = Intl.supportedValuesOf("timeZone");
  const rows = [FROM_AT, Date.parse("2400-01-01T00:00:00Z"), Date.parse("9999-01-01T00:00:00Z")].map(
    (after) => {
      const samples = zoneNames.map((name) =>
        Math.min(...COLD_TRIES.map(() => timeUs(() => nextFiring(cron, new Zone(name), after)))),
      );
      return [
        new Date(after).toISOString().slice(0, 4),
        formatCount(median(samples)),
        formatCount(Math.max(...samples)),
      ];
    },
  );
  console.log(`\nµs to the first next firing in a zone nobody has asked for, over ${zoneNames.length} zones`);
  printTable(["from", "median", "worst"], rows);
}

function measureRefusals(): void {
  const worst: number[] = [];
  const rows = Object.entries(HOSTILE).map(([name, expression]) => {
    const refuse = () => {
      try {
        checkGap(parseCron(expression));
        return "accepted";
      } catch (error) {
        return error instanceof Error ? error.message.slice(0, 40) : "";
      }
    };
    const outcome = refuse();
    const samples = Array.from({ length: PEER_STEPS }, () => timeUs(refuse));
    worst.push(percentile(samples, 0.99));
    return [name, formatCount(median(samples)), formatCount(percentile(samples, 0.99)), outcome];
  });
  console.log("\nµs to refuse what nobody means");
  printTable(["", "median", "99th percentile", "outcome"], rows);
  report(`every refusal under ${GOAL_WORST_US} µs at the 99th percentile`, Math.max(...worst), GOAL_WORST_US);
}

function measureMemory(): void {
  const crons: unknown[] = Array.from({ length: CRONS });
  const bytesBefore = heapBytes();
  for (let i = 0; i < CRONS; i++) crons[i] = parseCron(`${i % 60} ${i % 24} ${1 + (i % 28)} * *`);
  const bytes = (heapBytes() - bytesBefore) / crons.length;
  console.log(`\n${formatCount(crons.length)} parsed expressions: ${formatCount(bytes)} bytes each`);
}

function heapBytes(): number {
  Bun.gc(true);
  return heapStats().heapSize;
}

function timeUs(act: () => unknown): number {
  const startNs = Bun.nanoseconds();
  act();
  return (Bun.nanoseconds() - startNs) / 1_000;
}

function percentile(samples: readonly number[], part: number): number {
  return samples.toSorted((a, b) => a - b)[Math.floor((samples.length - 1) * part)] ?? Number.NaN;
}

/** Numbers in [0, 1), the same for every implementation (Numerical Recipes' linear congruential generator). */
function randomNumbers(): () => number {
  let state = 12_345;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

function report(goal: string, figureUs: number, goalUs: number): void {
  console.log(`${figureUs <= goalUs ? "met   " : "missed"}  ${goal}: ${formatCount(figureUs)}`);
}

main();
