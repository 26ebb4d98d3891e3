import type { Bus } from "../../../shared/bus/bus.ts";
import { sendHints } from "../../../shared/bus/hints.ts";
import {
  brokenOffDelivery,
  DELIVERY_WINDOW_SECONDS,
  settleDelivery,
} from "../../../shared/domain/delivery.ts";
import { LOST_ERROR, lostOutcome, settleAttempt } from "../../../shared/domain/run.ts";
import type { Log } from "../../../shared/platform/log.ts";
import type { Metrics } from "../../../shared/platform/metrics/metrics.ts";
import {
  type LostAttempt,
  type LostDelivery,
  listLostAttempts,
  listLostDeliveries,
} from "../../../shared/store/cell/nodes.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { type DeliverySettlement, settleDeliveries } from "../../../shared/store/queue/delivery-settle.ts";
import { type Settlement, settleAttempts } from "../../../shared/store/queue/settle.ts";

/** An attempt may outlive its deadline by this much before its node is held to be gone for good. */
export const RESCUE_GRACE_MS = 30_000;
const RESCUES_PER_STATEMENT = 500;
const STATEMENTS_PER_TICK_MAX = 20;

export interface Rescue {
  bus: Bus;
  log: Log;
  metrics: Metrics;
  /** By the database's clock. */
  now: number;
  /** An attempt that began before this instant is lost, whether its node lives or not; -Infinity while nobody knows. */
  lostBefore: number;
}

/**
 * Ends attempts that their node will not settle: those of nodes whose death is proved, and those long past their
 * deadline. What became of them at the target is unknown, so the run says that, and what attempts remain follow at
 * once. The permit comes back with the settlement; a node that was only slow finds its attempt settled.
 */
export async function rescueAttempts(
  db: Database,
  { lostBefore, now, bus, log, metrics }: Rescue,
): Promise<void> {
  await inBatches(
    () => listLostAttempts(db, lostBefore, RESCUES_PER_STATEMENT),
    async (lost) => {
      const settled = await settleAttempts(
        db,
        lost.map((attempt) => settlementOf(attempt, now)),
      );
      sendHints(bus, settled);
      for (const [index, item] of settled.items.entries()) {
        if (item === null) continue;
        const { jobId, attempt, status } = item;
        metrics.attemptsRescued.jobs.inc();
        log.warn({ jobId, attempt, nodeDead: lost[index]?.nodeDead, status }, "attempt.rescued");
      }
    },
  );
}

/** The same for deliveries to endpoints, of which the next attempt follows at once as well. */
export async function rescueDeliveries(
  db: Database,
  { lostBefore, now, bus, log, metrics, scale }: Rescue & { scale: number },
): Promise<void> {
  await inBatches(
    () => listLostDeliveries(db, lostBefore, RESCUES_PER_STATEMENT),
    async (lost) => {
      const settlements = lost.map((delivery) => deliverySettlementOf(delivery, now, scale));
      const settled = await settleDeliveries(db, settlements, DELIVERY_WINDOW_SECONDS * 1_000 * scale);
      sendHints(bus, settled);
      for (const [index, item] of settled.items.entries()) {
        if (item === null) continue;
        const { deliveryId, nodeDead } = lost[index] ?? {};
        const { attempt, status, isDisabling } = item;
        metrics.attemptsRescued.webhooks.inc();
        if (isDisabling) metrics.webhooksDisabled.inc();
        log.warn({ deliveryId, attempt, nodeDead, status, isDisabling }, "delivery.rescued");
      }
    },
  );
}

async function inBatches<Lost>(
  list: () => Promise<Lost[]>,
  end: (lost: Lost[]) => Promise<void>,
): Promise<void> {
  for (let statement = 0; statement < STATEMENTS_PER_TICK_MAX; statement++) {
    const lost = await list();
    if (lost.length > 0) await end(lost);
    if (lost.length < RESCUES_PER_STATEMENT) return;
  }
}

function settlementOf(attempt: LostAttempt, now: number): Settlement {
  const outcome = lostOutcome();
  const { attempt: number, attemptsAllowed } = attempt;
  // A lost attempt is retried at once, so the policy's waits do not matter.
  const retryPolicy = { maxAttempts: attemptsAllowed, baseSeconds: 1, capSeconds: 1 };
  return {
    ...attempt,
    status: "failed" as const,
    responseStatus: null,
    error: outcome.error,
    durationMs: attempt.elapsedMs,
    next: settleAttempt({ number, attemptsAllowed, retryPolicy }, outcome, { now, random: () => 0 }),
  };
}

function deliverySettlementOf(delivery: LostDelivery, now: number, scale: number): DeliverySettlement {
  const outcome = brokenOffDelivery(LOST_ERROR);
  const { waits, startedAt, firstStartedAt, byHand } = delivery;
  return {
    ...delivery,
    status: "failed",
    responseStatus: null,
    error: outcome.error,
    isOurFault: true,
    durationMs: delivery.elapsedMs,
    next: settleDelivery({ waits, startedAt, firstStartedAt, byHand }, outcome, {
      now,
      random: () => 0,
      scale,
    }),
  };
}
