import type { DueItem } from "../../shared/bus/messages.ts";
import type { Environment, Region } from "../../shared/domain/scope.ts";
import type { ProcessLog } from "../../shared/platform/log.ts";
import { createBatcher } from "../../shared/store/database/batch.ts";
import type { Claimed } from "../../shared/store/queue/claim.ts";
import type { ParkOutcome } from "../../shared/store/queue/parking.ts";

/** An owed attempt that the node was told of, and where it belongs. */
export type OwedItem = DueItem & { region: Region; environment: Environment };

/** A kind of attempt, of jobs or of deliveries to endpoints: how one is claimed, sent and settled, or else parked. */
export interface AttemptKind<Granted, Sent> {
  /** The URL of its target; null if nothing of that id is owed. */
  locate(item: OwedItem): Promise<string | null>;
  /** Sets it aside, since its host takes none now. */
  park(item: OwedItem, at: { host: string; url: string }): Promise<ParkOutcome>;
  claim(item: OwedItem): Promise<Claimed<Granted>>;
  /** The URL of the target of what was claimed; null if it has none any more. */
  urlOf(granted: Granted): string | null;
  /** Sends it to the host of its URL, and returns how that ended. */
  send(item: OwedItem, granted: Granted, host: string | null): Promise<Sent>;
  /** Settles what was sent. It asks until Postgres has answered. */
  settle(sent: Sent): Promise<void>;
}

/** Puts a node's questions to Postgres together. */
export const inBatches = <Item, Result>(run: (items: Item[]) => Promise<Result[]>, gatherMs = 0) =>
  createBatcher({ run, itemsMax: 200, gatherMs });

/** Notes what a committed statement has settled. An error here must not look like the statement's, which would run again. */
export function noteCommitted(log: ProcessLog, note: () => void): void {
  try {
    log.together(note);
  } catch (error) {
    log.error({ err: error }, "settle.not_noted");
  }
}
