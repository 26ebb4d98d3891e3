import { readFileSync } from "node:fs";
import type { Outcome } from "./run.ts";

const VIOLATIONS_SHOWN = 5;
const LINES_SHOWN = 40;
const LINE_CHARACTERS_MAX = 300;

export const isGood = ({ violations, faults }: Outcome): boolean =>
  violations.length === 0 && faults.length === 0;

/** One line on a run. */
export function summarize({ seed, isPooled, jobs, history, counts, unchecked, lastedMs }: Outcome): string {
  const struck = [...counts].filter(([path]) => path.startsWith("fault: "));
  const times = struck.reduce((sum, [, count]) => sum + count, 0);
  const sent = history.events.filter(({ kind }) => kind === "request arrived").length;
  return [
    `seed ${seed}${isPooled ? "" : " (no pooler)"}: ${jobs.asked} jobs asked for, ${jobs.accepted} accepted, ${history.final.jobs.length} made`,
    `${history.final.runs.length} runs, ${sent} requests arrived`,
    `${times} faults of ${struck.length} kinds`,
    `${(lastedMs / 1_000).toFixed(0)} s`,
    `not checked: ${unchecked.join(", ") || "nothing"}`,
  ].join("; ");
}

/** A text about a run that failed: what broke, the history of the first violation, the faults, and where to read on. */
export function explain(outcome: Outcome): string {
  const { seed, violations, faults, timeline, folder } = outcome;
  const [first] = violations;
  return [
    `seed ${seed} fails: ${violations.length} violations, ${faults.length} other faults`,
    ...violations
      .slice(0, VIOLATIONS_SHOWN)
      .map(({ rule, subject, text }) => `  ${rule}: ${text} (${subject})`),
    ...faults.slice(0, VIOLATIONS_SHOWN).map((fault) => `  ${fault.slice(0, 1_000)}`),
    ...(first === undefined ? [] : [`history of ${first.subject}:`, ...historyOf(outcome, first.subject)]),
    "faults, in seconds after the beginning of the load:",
    ...timeline.map((line) => `  ${line}`),
    `the logs of all processes, and the whole history, lie in ${folder}`,
    `run it again (the same plan, never the same run): npm run test:chaos -- --seed ${seed}`,
  ].join("\n");
}

/** All that the history and the logs say of a subject: a job, a run, an event, a schedule. */
function historyOf({ history, folder }: Outcome, subject: string): string[] {
  const [id = subject] = subject.split(" ");
  const requests = new Set(
    history.events.flatMap((event) =>
      event.kind === "request arrived" && JSON.stringify(event).includes(id) ? [event.request] : [],
    ),
  );
  const events = history.events.filter(
    (event) =>
      JSON.stringify(event).includes(id) || (event.kind === "request left" && requests.has(event.request)),
  );
  const { jobs, runs, events: ends, deliveries } = history.final;
  const rows = [...jobs, ...runs, ...ends, ...deliveries].filter((row) => JSON.stringify(row).includes(id));
  return [...[...events, ...rows].map((each) => JSON.stringify(each)), ...linesOf(folder, id)]
    .slice(0, LINES_SHOWN)
    .map((line) => `  ${line.slice(0, LINE_CHARACTERS_MAX)}`);
}

function linesOf(folder: string, id: string): string[] {
  return [...new Bun.Glob("*.log").scanSync({ cwd: folder })].flatMap((log) =>
    readFileSync(`${folder}/${log}`, "utf8")
      .split("\n")
      .filter((line) => line.includes(id))
      .map((line) => `${log}: ${line}`),
  );
}
