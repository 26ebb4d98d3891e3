import { OPERATIONS, type OperationId } from "../../../shared/contract/operations/all.ts";
import { STATUS_OF_CODE } from "../../../shared/domain/errors.ts";
import type { Metrics } from "../../../shared/platform/metrics/metrics.ts";

/** The label of requests to paths and methods that the API does not have. */
const NO_OPERATION = "none";
/** The first digits of all statuses that the API answers. */
const STATUS_CLASSES = [2, 4, 5];

/** Returns a function that counts an answer and its time. The operation is null for an unknown path or method. */
export function createRequestMetrics(
  metrics: Metrics,
): (operation: OperationId | null, status: number, durationMs: number) => void {
  // Refusals are shown from the start, like the answers below.
  for (const code of Object.keys(STATUS_OF_CODE)) metrics.refusals.of({ code });
  const names = [...(Object.keys(OPERATIONS) as OperationId[]), NO_OPERATION];
  const notes = new Map(
    names.map((operation) => {
      const seconds = metrics.requestSeconds.of({ operation });
      const byClass = STATUS_CLASSES.map((digit) => {
        const count = metrics.requests.of({ operation, status: `${digit}xx` });
        return [digit, count] as const;
      });
      return [operation, { seconds, byClass: new Map(byClass) }] as const;
    }),
  );
  return (operation, status, durationMs) => {
    const note = notes.get(operation ?? NO_OPERATION);
    note?.seconds.observe(durationMs / 1_000);
    note?.byClass.get(Math.floor(status / 100))?.inc();
  };
}
