import type { DueItem } from "../../shared/bus/messages.ts";
import type { Environment, Region } from "../../shared/domain/scope.ts";
import type { ProcessLog } from "../../shared/platform/log.ts";
import { type BatcherOptions, createBatcher } from "../../shared/store/database/batch.ts";
import type { Claimed, KeyPlaces } from "../../shared/store/queue/claim.ts";
import type { ParkOutcome } from "../../shared/store/queue/parking.ts";

/** An owed attempt that the node was told of, with its region and environment. */
export type OwedItem = DueItem & { region: Region; environment: Environment };

/**
 * A claimed attempt, and an instant shortly before it began, by performance.now(): when its statement was asked for. Null if
 * an earlier claim had begun it.
 */
export type Asked<Granted> = Granted & { askedAt: number | null };

/** Adds to the answers of a statement when it was asked for. `hasBegun` tells whether the claim began the attempt. */
export function noteAsked<Granted, Claim, Answer extends Claimed<Granted> | null>(
  answers: readonly Answer[],
  claims: readonly Claim[],
  { askedAt, hasBegun }: { askedAt: number; hasBegun(attempt: Granted, claim: Claim): boolean },
): (Claimed<Asked<Granted>> | Exclude<Answer, Claimed<Granted>>)[] {
  return answers.map((answer, index) => {
    if (answer?.kind !== "granted") return answer as Exclude<Answer, Claimed<Granted>>;
    const isNew = hasBegun(answer.attempt, claims[index] as Claim);
    return { kind: "granted", attempt: { ...answer.attempt, askedAt: isNew ? askedAt : null } };
  });
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
  /** The places of a claimed attempt's flow key; null if it has none, or they are not known. */
  keyOf(granted: Granted): KeyPlaces | null;
  /** Sends the attempt to the host of its URL, and returns how it ended. */
  send(item: OwedItem, granted: Granted, host: string | null): Promise<Sent>;
  /** Whether another attempt may be started by the settlement of this one. */
  mayTakeNext(sent: Sent): boolean;
  /**
   * Settles an attempt that was sent. It asks until Postgres has answered. With `takesNext` the statement may start another attempt in
   * the place of this one, which is the answer.
   */
  settle(sent: Sent, takesNext: boolean): Promise<Next<Granted> | null>;
}

/** An attempt that a settlement has started on this node. */
export interface Next<Granted> {
  item: OwedItem;
  attempt: Granted;
  /** Asked once the attempt is about to be sent: false if a claim of this node has got it meanwhile, which sends it. */
  isLeft(): boolean;
}

/** Gathers a node's questions to Postgres, so that one statement answers many. */
export const inBatches = <Item, Result>(
  run: (items: Item[]) => Promise<Result[]>,
  gathering: Gathering<NoInfer<Item>> = {},
) => createBatcher({ run, itemsMax: 200, ...gathering });

/** How a batcher gathers; see BatcherOptions. */
export type Gathering<Item> = Pick<BatcherOptions<Item, unknown>, "gatherMs" | "gatheredEnough" | "turns">;

/** Notes the settlements of a committed statement. A thrown error would run the statement again, so it is logged. */
export function noteCommitted(log: ProcessLog, note: () => void): void {
  try {
    log.together(note);
  } catch (error) {
    log.error({ err: error }, "settle.not_noted");
  }
}
