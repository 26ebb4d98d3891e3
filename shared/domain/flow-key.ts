import { invalidRequest } from "./errors.ts";
import { TAG_CHARACTERS, TAG_CHARACTERS_MAX, TAG_PATTERN } from "./tags.ts";

/**
 * Flow keys: words under which a customer limits jobs further than the project's limit does. What a key is and may be told is
 * decided here; which attempt starts is decided by the statements that claim and settle (store/queue/).
 */

export const FLOW_CONCURRENCY_BOUNDS = { min: 1, max: 2_000 } as const;
export const FLOW_RATE_BOUNDS = {
  count: { min: 1, max: 10_000 },
  perSeconds: { min: 1, max: 86_400 },
} as const;

/** So many keys of an environment are pinned or paused. What jobs alone have made known is forgotten by itself. */
export const FLOW_KEYS_KEPT_MAX = 10_000;

/** For how long a job holds its place of the key's concurrency: for each attempt, or from its first attempt until it is over. */
export const FLOW_HOLDS = ["attempt", "job"] as const;
export type FlowHold = (typeof FLOW_HOLDS)[number];

/** So many attempts start in no window of `per_seconds` more. By the names of the API. */
export interface FlowRate {
  count: number;
  per_seconds: number;
}

/** What a job or a schedule says of its flow, by the names of the API and as it was given; types and bounds already checked. */
export interface Flow {
  key: string;
  concurrency?: number;
  rate?: FlowRate;
  hold?: FlowHold;
}

/** What of a key a client sets by hand. Null takes a limit away. */
export interface FlowKeyTerms {
  concurrency: number | null;
  rate: FlowRate | null;
  /** Nothing of it starts. */
  paused: boolean;
  /** Jobs and schedules do not change its limits, and it is not forgotten. */
  pinned: boolean;
}

/** A key that is not known has no limits. */
export const NEW_FLOW_KEY: FlowKeyTerms = { concurrency: null, rate: null, paused: false, pinned: false };

/** Whether a text can be a key. No path leads to the other two words. */
export function isFlowKey(text: string): boolean {
  return TAG_PATTERN.test(text) && text !== "." && text !== "..";
}

/** Checks what the type leaves open: the key. Throws invalid_request. */
export function checkFlow({ key }: Flow): void {
  if (!isFlowKey(key)) throw notKey("flow.key");
}

/** The key that a list is filtered by, null if it is absent. Throws invalid_request for what no job can have. */
export function flowKeyFilterOf(key: string | undefined): string | null {
  if (key === undefined || isFlowKey(key)) return key ?? null;
  throw notKey("flow_key", " In a query string a + is written as %2B.");
}

const notKey = (param: string, hint = "") =>
  invalidRequest(
    `${param} must be 1 to ${TAG_CHARACTERS_MAX} ${TAG_CHARACTERS}, and neither "." nor "..".${hint}`,
    param,
  );
