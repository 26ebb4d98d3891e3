/**
 * The customer's own reasons that can keep a due attempt from starting: the project's concurrency limit, the target host, the
 * month's quota, an operator's hold, or the flow key. A reason's place is its code in rows and messages, so it never moves.
 */
export const WAIT_REASONS = ["concurrency", "host", "quota", "hold", "flow"] as const;
export type WaitReason = (typeof WAIT_REASONS)[number];

/** An attempt that started within so many milliseconds of its due time did not wait. */
export const WAITED_FROM_MS = 1_000;
