import * as attempts from "./attempt-rules.ts";
import { Facts, type Found } from "./facts.ts";
import type { History } from "./history.ts";
import * as records from "./record-rules.ts";
import * as schedules from "./schedule-rules.ts";

/** A property that does not hold, and what shows it. `subject` is the id that it is about. */
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
  cancel: attempts.findSentAfterCancel,
  runs: records.findWrongRuns,
  backoff: records.findWrongWaits,
  events: records.findWrongEvents,
  deliveries: records.findWrongDeliveries,
  firings: schedules.findWrongFirings,
  paused: schedules.findFiredWhilePaused,
  epochs: schedules.findStaleEpochs,
  usage: records.findMiscounted,
} satisfies Record<string, (facts: Facts) => Found>;
export type Rule = keyof typeof RULE_CHECKS;
export const RULES = Object.keys(RULE_CHECKS) as Rule[];

/** What always holds (design/architecture.md), as far as a history tells it. Pure: it looks at nothing but the history. */
export function checkHistory(history: History): Violation[] {
  const facts = new Facts(history);
  return RULES.flatMap((rule) => [...RULE_CHECKS[rule](facts)].map((found) => ({ rule, ...found })));
}
