import {
  checkHistory,
  listUnchecked,
  RULES,
  type Rule,
  type Violation,
} from "../../support/history/check-history.ts";
import { makePlan, type Plan, type Step } from "./plan.ts";
import { shrink } from "./shrink.ts";
import { simulate } from "./simulation.ts";

/** How many runs are spent on finding a shorter trace. */
const SHRINKING_RUNS_MAX = 150;
const TRACE_LINES_SHOWN = 60;
const LINE_CHARACTERS_MAX = 240;

export interface SeedsRun {
  seeds: number;
  simulatedMs: number;
  /** How often each path was met in all of them. */
  counts: Map<string, number>;
  failed: { seed: number; violations: Violation[] }[];
  /** The rules that no history said anything about. */
  unchecked: Set<Rule>;
}

/**
 * Runs so many seeds. Between two of them the event loop has its turn, since a run is synchronous. Ends early once
 * `failuresMax` seeds have failed.
 */
export async function runSeeds(from: number, count: number, failuresMax = 1): Promise<SeedsRun> {
  const unchecked = new Set(RULES);
  const run: SeedsRun = { seeds: 0, simulatedMs: 0, counts: new Map(), failed: [], unchecked };
  for (let seed = from; seed < from + count && run.failed.length < failuresMax; seed++) {
    const { history, counts, simulatedMs } = simulate(makePlan(seed));
    const violations = checkHistory(history);
    if (violations.length > 0) run.failed.push({ seed, violations });
    run.unchecked = run.unchecked.intersection(new Set(listUnchecked(history)));
    for (const [path, times] of counts) run.counts.set(path, (run.counts.get(path) ?? 0) + times);
    run.simulatedMs += simulatedMs;
    run.seeds++;
    await new Promise(setImmediate);
  }
  return run;
}

/** A text about a failing seed: its violations with the fewest steps found to fail alike, and how to repeat it. */
export function explain(seed: number, kept?: readonly number[]): string {
  const plan = makePlan(seed);
  const steps = kept === undefined ? plan.steps : plan.steps.filter((_, index) => kept.includes(index));
  const [first] = violationsOf(plan, steps);
  if (first === undefined) return `seed ${seed}: nothing is wrong`;
  const isSame = (fewer: readonly Step[]) =>
    violationsOf(plan, fewer).some(({ rule }) => rule === first.rule);
  const fewest = shrink(steps, isSame, SHRINKING_RUNS_MAX);
  const { history, trace } = simulate(plan, fewest, true);
  const violations = checkHistory(history);
  const subjects = violations.filter(({ rule }) => rule === first.rule).map(({ subject }) => subject);
  const places = fewest.map((step) => plan.steps.indexOf(step));
  return [
    `seed ${seed} fails with ${fewest.length} of ${plan.steps.length} steps`,
    ...violations.slice(0, 5).map(({ rule, subject, text }) => `  ${rule}: ${text} (${subject})`),
    "steps:",
    ...fewest.map((step) => `  ${JSON.stringify(step)}`),
    "trace:",
    ...linesAbout(trace, subjects).map((line) => `  ${line.slice(0, LINE_CHARACTERS_MAX)}`),
    "repeat it with the whole trace:",
    `  npm run test:simulation -- --seed ${seed} --keep ${places.join(",") || "none"} --trace`,
  ].join("\n");
}

const violationsOf = (plan: Plan, steps: readonly Step[]) => checkHistory(simulate(plan, steps).history);

/** The last lines that name the violation's subject, or a step. */
function linesAbout(trace: readonly string[], subjects: readonly string[]): string[] {
  const [subject = ""] = subjects;
  return trace.filter((line) => line.includes(subject) || line.includes(" ! ")).slice(-TRACE_LINES_SHOWN);
}
