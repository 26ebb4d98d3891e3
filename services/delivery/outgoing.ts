import type { DueItem } from "../../shared/bus/messages.ts";
import type { Environment, Region } from "../../shared/domain/scope.ts";
import type { Claimed } from "../../shared/store/queue/claim.ts";
import type { ParkOutcome } from "../../shared/store/queue/parking.ts";

/** An owed attempt that the node was told of, and where it belongs. */
export type OwedItem = DueItem & { region: Region; environment: Environment };

/** One kind of what goes out, attempts of jobs or of deliveries: how it is claimed, sent and settled. */
export interface Outgoing<Granted> {
  /** Where it leads; null if nothing of that id is owed. */
  locate(item: OwedItem): Promise<string | null>;
  /** Sets it aside, for its host takes none now. */
  park(item: OwedItem, at: { host: string; url: string }): Promise<ParkOutcome>;
  claim(item: OwedItem): Promise<Claimed<Granted>>;
  /** Where what was claimed leads; null if it goes nowhere any more. */
  urlOf(granted: Granted): string | null;
  /** Sends it. What is answered settles it, and does not give up before Postgres has answered. */
  send(item: OwedItem, granted: Granted): Promise<() => Promise<void>>;
}
