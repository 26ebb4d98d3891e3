import type { DueItem } from "../../shared/bus/messages.ts";
import type { Environment, Region } from "../../shared/domain/scope.ts";
import type { ProcessLog } from "../../shared/platform/log.ts";
import { createBatcher } from "../../shared/store/database/batch.ts";
import type { Claimed } from "../../shared/store/queue/claim.ts";
import type { ParkOutcome } from "../../shared/store/queue/parking.ts";

/** An owed attempt that the node was told of, with its region and environment. */
export type OwedItem = DueItem & { region: Region; environment: Environment };

/** A claimed attempt, and when its claim was asked for, by performance.now(). Null if an earlier claim had brought it. */
export type Asked<Granted> = Granted & { askedAt: number | null };

/** `isNew` tells whether the attempt that was granted is the one that this claim began. */
export function noteAsked<Granted>(
  claimed: Claimed<Granted>,
  askedAt: number,
  isNew: (attempt: Granted) => boolean,
): Claimed<Asked<Granted>> {
  if (claimed.kind !== "granted") return claimed;
  const { attempt } = claimed;
  return { kind: "granted", attempt: { ...attempt, askedAt: isNew(attempt) ? askedAt : null } };
}

/** The settlement with what is left of the wait for its next attempt. The attempt ended at `endedAt`, by performance.now(). */
export function waitLeft<Settled extends { next: { status: string; waitMs?: number | null } }>(
  settlement: Settled,
  endedAt: number,
): Settled {
  const { next } = settlement;
  if (next.waitMs == null) return settlement;
  const waitMs = Math.max(0, next.waitMs - (performance.now() - endedAt));
  return { ...settlement, next: { ...next, waitMs } };
}

/** A kind of attempt, of jobs or of deliveries to endpoints: how its attempts are claimed, sent, settled and parked. */
export interface AttemptKind<Granted, Sent> {
  /** The URL of the attempt's target; null if there is none, as for a delivery that is not owed. */
  locate(item: OwedItem): Promise<string | null>;
  /** Sets the attempt aside, since its host takes no request now. */
  park(item: OwedItem, at: { host: string; url: string }): Promise<ParkOutcome>;
  claim(item: OwedItem): Promise<Claimed<Granted>>;
  /** The URL of a claimed attempt's target; null if its endpoint was deleted. */
  urlOf(granted: Granted): string | null;
  /** Sends the attempt to the host of its URL, and returns how it ended. */
  send(item: OwedItem, granted: Granted, host: string | null): Promise<Sent>;
  /** Settles an attempt that was sent. It asks until Postgres has answered. */
  settle(sent: Sent): Promise<void>;
}

/** Gathers a node's questions to Postgres, so that one statement answers many. */
export const inBatches = <Item, Result>(run: (items: Item[]) => Promise<Result[]>, gatherMs = 0) =>
  createBatcher({ run, itemsMax: 200, gatherMs });

/** Notes the settlements of a committed statement. A thrown error would run the statement again, so it is logged. */
export function noteCommitted(log: ProcessLog, note: () => void): void {
  try {
    log.together(note);
  } catch (error) {
    log.error({ err: error }, "settle.not_noted");
  }
}
