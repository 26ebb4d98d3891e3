import { sendHints } from "../../../shared/bus/hints.ts";
import {
  brokenOffDelivery,
  DELIVERY_WINDOW_SECONDS,
  settleDelivery,
} from "../../../shared/domain/delivery.ts";
import { LOST_ERROR, lostOutcome, settleAttempt } from "../../../shared/domain/run.ts";
import type { Cell } from "../../../shared/process/cell.ts";
import {
  type LostAttempt,
  type LostDelivery,
  listLostAttempts,
  listLostDeliveries,
  type Overdue,
} from "../../../shared/store/cell/nodes.ts";
import { type DeliverySettlement, settleDeliveries } from "../../../shared/store/queue/delivery-settle.ts";
import { type Settlement, settleAttempts } from "../../../shared/store/queue/settle.ts";
import type { ClockWatch } from "./clock-watch.ts";
import { declareGoneNodesDead } from "./dead-nodes.ts";

/** An attempt may outlive its deadline by this much before its node is taken to be gone for good. */
export const RESCUE_GRACE_MS = 30_000;
const RESCUES_PER_STATEMENT = 500;
const STATEMENTS_PER_TICK_MAX = 20;

export interface RescueOptions {
  attemptTimeoutMs: number;
  webhookTimeoutMs: number;
  /** Multiplies every wait of the deliveries' retries. */
  webhookRetryScale: number;
  /** Whether a node's description of its process proves that the process is gone. */
  isProvedDead(process: string): boolean;
}

/**
 * Ends attempts that their node will not settle: those of nodes whose death is proved, and those long past their
 * deadline. Their outcome at the target is unknown. The run says so, and the next attempt, if one remains, follows at
 * once. The permit comes back with the settlement; a node that was only slow finds its attempt settled.
 */
export function createRescue(options: RescueOptions, clockWatch: ClockWatch): (cell: Cell) => Promise<void> {
  // After an outage living nodes settle what ended meanwhile. An overdue attempt counts as lost after they have had the
  // time for that.
  let answeredSince = performance.now();

  /** The attempts that are lost even if their node lives; none while the clock is not known to have run evenly. */
  function overdue(timeoutMs: number): Overdue {
    const afterMs = timeoutMs + RESCUE_GRACE_MS;
    const isSettled = performance.now() > answeredSince + RESCUE_GRACE_MS;
    const now = isSettled ? clockWatch.nowIfSteadyFor(afterMs) : null;
    return { beganBefore: now === null ? Number.NEGATIVE_INFINITY : now - afterMs, afterMs };
  }

  return async function rescue(cell) {
    try {
      await clockWatch.noteOnce();
      await declareGoneNodesDead(cell, options.isProvedDead);
      await rescueAttempts(cell, overdue(options.attemptTimeoutMs));
      await rescueDeliveries(cell, overdue(options.webhookTimeoutMs), options.webhookRetryScale);
    } catch (error) {
      answeredSince = performance.now();
      throw error;
    }
  };
}

async function rescueAttempts({ db, bus, log, metrics }: Cell, overdue: Overdue): Promise<void> {
  await inBatches(
    () => listLostAttempts(db, overdue, RESCUES_PER_STATEMENT),
    async (lost) => {
      const settled = await settleAttempts(db, lost.map(settlementOf));
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

async function rescueDeliveries(
  { db, bus, log, metrics }: Cell,
  overdue: Overdue,
  scale: number,
): Promise<void> {
  await inBatches(
    () => listLostDeliveries(db, overdue, RESCUES_PER_STATEMENT),
    async (lost) => {
      const settlements = lost.map((delivery) => deliverySettlementOf(delivery, scale));
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

function settlementOf(attempt: LostAttempt): Settlement {
  const outcome = lostOutcome();
  const { attempt: number, attemptsAllowed } = attempt;
  // A lost attempt is retried at once, so the waits of the policy do not matter.
  const retryPolicy = { maxAttempts: attemptsAllowed, baseSeconds: 1, capSeconds: 1 };
  return {
    ...attempt,
    status: "failed" as const,
    responseStatus: null,
    error: outcome.error,
    durationMs: attempt.elapsedMs,
    next: settleAttempt({ number, attemptsAllowed, retryPolicy }, outcome, () => 0),
  };
}

function deliverySettlementOf(delivery: LostDelivery, scale: number): DeliverySettlement {
  const outcome = brokenOffDelivery(LOST_ERROR);
  const { waits, startedAt, firstStartedAt, byHand } = delivery;
  return {
    ...delivery,
    status: "failed",
    responseStatus: null,
    error: outcome.error,
    isOurFault: true,
    durationMs: delivery.elapsedMs,
    next: settleDelivery({ waits, startedAt, firstStartedAt, byHand }, outcome, { random: () => 0, scale }),
  };
}
