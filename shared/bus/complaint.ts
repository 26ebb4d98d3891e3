import type { Log } from "../platform/log.ts";

/** A flood of bad messages must not become a flood of log lines. */
const COMPLAINT_INTERVAL_MS = 1_000;

/** A warning that may be raised at any rate and is written at most once a second, with how often it was raised. */
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
