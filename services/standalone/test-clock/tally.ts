import type { Happened } from "../../../shared/contract/test-clock.ts";
import type { Count } from "../../../shared/platform/metrics/families.ts";
import type { Metrics } from "../../../shared/platform/metrics/metrics.ts";

/** The counts of what has happened since the process began. */
export interface Tally extends Happened {
  /** Members of bulk operations that were judged. */
  judged: number;
}

/** The metrics of a worker and a delivery node, which also count for the tally. */
export function createTally(metrics: Metrics): { tally: Tally; metrics: Metrics } {
  const tally: Tally = {
    attempts: 0,
    firings: 0,
    deliveries: 0,
    expired_keys: 0,
    purged_runs: 0,
    judged: 0,
  };
  const alsoIn = (name: keyof Tally, count: Count): Count => ({
    inc(by = 1) {
      tally[name] += by;
      count.inc(by);
    },
  });
  const outcomesIn = (name: keyof Tally, counts: Metrics["attemptsSettled"]) => ({
    succeeded: alsoIn(name, counts.succeeded),
    failed: alsoIn(name, counts.failed),
    timed_out: alsoIn(name, counts.timed_out),
  });
  const { jobsCreated, bulkMembers } = metrics;
  return {
    tally,
    metrics: {
      ...metrics,
      attemptsSettled: outcomesIn("attempts", metrics.attemptsSettled),
      deliveriesSettled: outcomesIn("deliveries", metrics.deliveriesSettled),
      jobsCreated: {
        of: (labels) =>
          labels.origin === "schedule" ? alsoIn("firings", jobsCreated.of(labels)) : jobsCreated.of(labels),
      },
      bulkMembers: { of: (labels) => alsoIn("judged", bulkMembers.of(labels)) },
    },
  };
}
