import type { Log } from "../platform/log.ts";

/** The least time between two log lines, so that a flood of bad messages is no flood of log lines. */
const COMPLAINT_INTERVAL_MS = 1_000;

/** A warning that is written at most once a second, with the number of times that it was raised. */
export function createComplaint(log: Log, message: string): (fields: object) => void {
  let raisedCount = 0;
  let writtenAt = Number.NEGATIVE_INFINITY;
  return (fields) => {
    raisedCount++;
    const now = performance.now();
    if (now - writtenAt < COMPLAINT_INTERVAL_MS) return;
    log.warn({ ...fields, raisedCount }, message);
    writtenAt = now;
    raisedCount = 0;
  };
}
