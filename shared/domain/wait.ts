/**
 * What of the customer's own can keep an attempt that is due from starting: the project's concurrency limit, its target host,
 * the month's quota, an operator's hold, or its flow key. A reason's place is its code in rows and messages, so none is ever moved.
 */
export const WAIT_REASONS = ["concurrency", "host", "quota", "hold", "flow"] as const;
export type WaitReason = (typeof WAIT_REASONS)[number];

/** An attempt that started within so many milliseconds of its due time did not wait. */
export const WAITED_FROM_MS = 1_000;
