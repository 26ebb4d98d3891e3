import * as attempts from "./attempt-rules.ts";
import * as bulks from "./bulk-rules.ts";
import { Facts, type Found } from "./facts.ts";
import * as gates from "./gate-rules.ts";
import type { History, HistoryEvent } from "./history.ts";
import * as records from "./record-rules.ts";
import * as requests from "./request-rules.ts";
import * as schedules from "./schedule-rules.ts";

/** A property that does not hold, and the evidence. `subject` is the id that the evidence is about. */
export interface Violation {
  rule: Rule;
  subject: string;
  text: string;
}

const RULE_CHECKS = {
  lost: attempts.findLost,
  doubled: attempts.findDoubled,
  overlapping: attempts.findOverlapping,
  early: attempts.findEarly,
  late: attempts.findLate,
  permits: attempts.findExcess,
  places: gates.findCrowded,
  starts: gates.findTooManyStarts,
  order: gates.findDisorder,
  gates: gates.findLeftAtGates,
  hosts: gates.findSpentAtHosts,
  cancel: attempts.findSentAfterCancel,
  runs: records.findWrongRuns,
  backoff: records.findWrongWaits,
  events: records.findWrongEvents,
  deliveries: records.findWrongDeliveries,
  firings: schedules.findWrongFirings,
  paused: schedules.findFiredWhilePaused,
  epochs: schedules.findStaleEpochs,
  usage: records.findMiscounted,
  idempotency: requests.findRepeated,
  bytes: requests.findWrongBytes,
  rate: requests.findOverRate,
  bulk: bulks.findWrongBulks,
  insights: records.findMistold,
} satisfies Record<string, (facts: Facts) => Found>;
export type Rule = keyof typeof RULE_CHECKS;
export const RULES = Object.keys(RULE_CHECKS) as Rule[];

/** Checks what always holds, as far as a history tells. Pure: it reads only the history. */
export function checkHistory(history: History): Violation[] {
  const facts = new Facts(history);
  return RULES.flatMap((rule) => [...RULE_CHECKS[rule](facts)].map((found) => ({ rule, ...found })));
}

const hasEvent = (kind: HistoryEvent["kind"]) => (history: History) =>
  history.events.some((event) => event.kind === kind);
const arrived = hasEvent("request arrived");
/** Whether a history tells anything that the rule could judge. */
const EVIDENCE: Record<Rule, (history: History) => boolean> = {
  lost: hasEvent("job accepted"),
  doubled: arrived,
  overlapping: arrived,
  early: arrived,
  late: arrived,
  permits: arrived,
  places: hasEvent("flow set"),
  starts: ({ events }) =>
    events.some((event) => event.kind === "flow set" && (event.rate !== null || event.paused)),
  order: ({ events, final }) =>
    events.some((event) => event.kind === "flow set" && event.concurrency === 1) &&
    final.jobs.some(({ flow }) => flow?.hold === "job"),
  gates: ({ final }) => (final.gates ?? []).length > 0,
  hosts: ({ final }) => (final.downTimes ?? []).length > 0,
  cancel: hasEvent("job canceled"),
  runs: ({ final }) => final.runs.length > 0,
  backoff: ({ final }) => final.runs.some(({ nextRetryAt }) => nextRetryAt !== null),
  events: ({ final }) => final.events.length > 0,
  deliveries: ({ final }) => final.deliveries.length > 0,
  firings: ({ final }) => final.firings.length > 0,
  paused: ({ events }) => events.some((event) => event.kind === "schedule set" && !event.isActive),
  epochs: hasEvent("epoch used"),
  usage: ({ final }) => final.usage.some(({ runs }) => runs > 0),
  idempotency: hasEvent("key answered"),
  bytes: ({ events }) =>
    events.some((event) => event.kind === "request arrived" && event.fault !== undefined),
  rate: hasEvent("request accepted"),
  bulk: hasEvent("bulk judged"),
  insights: ({ final }) => (final.insights ?? []).some(({ runs }) => runs > 0),
};

/** The rules that this history says nothing about: they were not checked, rather than found to hold. */
export const listUnchecked = (history: History): Rule[] => RULES.filter((rule) => !EVIDENCE[rule](history));
