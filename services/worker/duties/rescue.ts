import type { OwedAttempt } from "../../../shared/bus/messages.ts";
import { lostOutcome, settleAttempt } from "../../../shared/domain/run.ts";
import type { Region } from "../../../shared/domain/scope.ts";
import type { Log } from "../../../shared/platform/log.ts";
import type { Database } from "../../../shared/store/database.ts";
import { type LostAttempt, listLostAttempts } from "../../../shared/store/nodes.ts";
import { settleAttempts } from "../../../shared/store/settle.ts";

/** An attempt may outlive its deadline by this much before its node is held to be gone for good. */
export const RESCUE_GRACE_MS = 30_000;
const RESCUES_PER_TICK = 500;

/**
 * Ends attempts that their node will not settle: those of nodes whose death is proved, and those long past their
 * deadline. What became of them at the target is unknown, so the run says that, and what attempts remain follow at
 * once. The permit comes back with the settlement; a node that was only slow finds its attempt settled.
 */
export async function rescueAttempts(
  db: Database,
  { attemptTimeoutMs, now, log }: { attemptTimeoutMs: number; now: number; log: Log },
): Promise<{ region: Region; shard: number; owed: OwedAttempt }[]> {
  const lost = await listLostAttempts(db, attemptTimeoutMs + RESCUE_GRACE_MS, RESCUES_PER_TICK);
  if (lost.length === 0) return [];
  const settled = await settleAttempts(
    db,
    lost.map((attempt) => settlementOf(attempt, now)),
  );
  const owedAgain: { region: Region; shard: number; owed: OwedAttempt }[] = [];
  for (const [index, item] of settled.items.entries()) {
    const attempt = lost[index];
    if (item === null || attempt === undefined) continue;
    log.warn(
      { jobId: item.jobId, attempt: item.attempt, nodeDead: attempt.nodeDead, status: item.status },
      "attempt.rescued",
    );
    if (item.nextRetryAt === null || attempt.shard === null) continue;
    const { projectNo, environment, region, shard } = attempt;
    const owed = {
      projectNo,
      environment,
      jobId: item.jobId,
      attempt: item.attempt + 1,
      dueAt: item.nextRetryAt,
    };
    owedAgain.push({ region, shard, owed });
  }
  return owedAgain;
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
