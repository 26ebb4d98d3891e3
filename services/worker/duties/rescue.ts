import type { Bus } from "../../../shared/bus/bus.ts";
import { lostOutcome, settleAttempt } from "../../../shared/domain/run.ts";
import type { Log } from "../../../shared/platform/log.ts";
import { sendHints } from "../../../shared/process/hints.ts";
import type { Database } from "../../../shared/store/database.ts";
import { type LostAttempt, listLostAttempts } from "../../../shared/store/nodes.ts";
import { settleAttempts } from "../../../shared/store/settle.ts";

/** An attempt may outlive its deadline by this much before its node is held to be gone for good. */
export const RESCUE_GRACE_MS = 30_000;
const RESCUES_PER_STATEMENT = 500;
const STATEMENTS_PER_TICK_MAX = 20;

/**
 * Ends attempts that their node will not settle: those of nodes whose death is proved, and those long past their
 * deadline. What became of them at the target is unknown, so the run says that, and what attempts remain follow at
 * once. The permit comes back with the settlement; a node that was only slow finds its attempt settled.
 */
export async function rescueAttempts(
  db: Database,
  { overdueMs, now, bus, log }: { overdueMs: number; now: number; bus: Bus; log: Log },
): Promise<void> {
  for (let statement = 0; statement < STATEMENTS_PER_TICK_MAX; statement++) {
    const lost = await listLostAttempts(db, overdueMs, RESCUES_PER_STATEMENT);
    if (lost.length === 0) return;
    const settlements = lost.map((attempt) => settlementOf(attempt, now));
    const settled = await settleAttempts(db, settlements);
    sendHints(bus, lost, settled);
    for (const [index, item] of settled.items.entries()) {
      if (item === null) continue;
      const { jobId, attempt, status } = item;
      log.warn({ jobId, attempt, nodeDead: lost[index]?.nodeDead, status }, "attempt.rescued");
    }
    if (lost.length < RESCUES_PER_STATEMENT) return;
  }
}

function settlementOf(attempt: LostAttempt, now: number) {
  const outcome = lostOutcome();
  const job = {
    status: "running" as const,
    attempts: attempt.attempt,
    attemptsAllowed: attempt.attemptsAllowed,
    // A lost attempt is retried at once, so the policy's waits do not matter.
    retryPolicy: { maxAttempts: attempt.attemptsAllowed, baseSeconds: 1, capSeconds: 1 },
  };
  const next = settleAttempt(job, outcome, { now, random: () => 0 });
  return {
    ...attempt,
    status: "failed" as const,
    responseStatus: null,
    error: outcome.error,
    durationMs: attempt.elapsedMs,
    next:
      next.status === "queued"
        ? { status: "queued" as const, dueAt: next.nextRetryAt }
        : { status: "failed" as const },
  };
}
