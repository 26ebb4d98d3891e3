import { invalidRequest } from "./errors.ts";
import { TAG_CHARACTERS, TAG_CHARACTERS_MAX, TAG_PATTERN } from "./tags.ts";

/**
 * Flow keys: words under which a customer limits jobs further than the project's limit does. This file decides which keys
 * and settings are valid. The statements that claim and settle decide which attempt starts (store/queue/).
 */

export const FLOW_CONCURRENCY_BOUNDS = { min: 1, max: 2_000 } as const;
export const FLOW_RATE_BOUNDS = {
  count: { min: 1, max: 10_000 },
  perSeconds: { min: 1, max: 86_400 },
} as const;

/** The most keys of an environment that are pinned or paused. Other keys are forgotten some time after their last use. */
export const FLOW_KEYS_KEPT_MAX = 10_000;

/** For how long a job holds its place of the key's concurrency: for each attempt, or from its first attempt until it is over. */
export const FLOW_HOLDS = ["attempt", "job"] as const;
export type FlowHold = (typeof FLOW_HOLDS)[number];

/** At most `count` attempts start in any window of `per_seconds` seconds. The names are those of the API. */
export interface FlowRate {
  count: number;
  per_seconds: number;
}

/** The flow of a job or a schedule as it was given, by the names of the API. Its types and bounds are already checked. */
export interface Flow {
  key: string;
  concurrency?: number;
  rate?: FlowRate;
  hold?: FlowHold;
}

/** The settings of a key that a client makes by hand. Null takes a limit away. */
export interface FlowKeyTerms {
  concurrency: number | null;
  rate: FlowRate | null;
  /** No attempt of the key starts. */
  paused: boolean;
  /** Jobs and schedules do not change the key's limits, and the key is not forgotten. */
  pinned: boolean;
}

/** Whether a text can be a key. `.` and `..` cannot, because no path leads to them. */
export function isFlowKey(text: string): boolean {
  return TAG_PATTERN.test(text) && text !== "." && text !== "..";
}

/** Checks what the type leaves open: the key. Throws invalid_request. */
export function checkFlow({ key }: Flow): void {
  if (!isFlowKey(key)) throw notKey("flow.key");
}

/** The key that a list is filtered by, null if it is absent. Throws invalid_request for a text that no job can have. */
export function flowKeyFilterOf(key: string | undefined): string | null {
  if (key === undefined || isFlowKey(key)) return key ?? null;
  throw notKey("flow_key", " In a query string a + is written as %2B.");
}

const notKey = (param: string, hint = "") =>
  invalidRequest(
    `${param} must be 1 to ${TAG_CHARACTERS_MAX} ${TAG_CHARACTERS}, and neither "." nor "..".${hint}`,
    param,
  );
