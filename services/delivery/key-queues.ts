import type { ProjectNo } from "../../shared/domain/scope.ts";
import type { KeyPlaces } from "../../shared/store/queue/claim.ts";
import type { OwedItem } from "./attempt-kind.ts";
import { Lately } from "./lately.ts";

/** An attempt that is kept back is offered again after this long to twice as long, unless it has started. */
export const KEPT_BACK_MS = 750;
/** How many attempts of a key are kept back at once. Others are parked, since those kept back are in the way of other keys of their lane. */
const KEPT_BACK_MAX = 16;
/** A project hands places on if one of its settlements has done so within this time, or twice as long. */
const HANDS_ON_MS = 1_000;

/** A flow key of which this node has attempts in flight. */
export interface KeyInFlight {
  name: string;
  /** How many of its attempts may be in flight at once, over all nodes. */
  places: number;
  inFlight: number;
  keptBack: OwedItem[];
}

/**
 * Keeps attempts of a flow key back whose claims would only park them: the node has as many attempts of the key in flight as may be at
 * once, so one of the key's settlements is about to start the next of its queue, parked or not (settle-keyed.ts). So a row is written once
 * less, and the node's claims are for other keys. Only projects whose settlements do hand places on are concerned. An attempt that comes
 * again within some seconds is claimed. If a settlement hands its place on to no attempt, one that was kept back is claimed at once.
 *
 * It knows hashes of keys, which messages tell. Two keys of one hash keep each other's attempts back.
 */
export class KeyQueues {
  private readonly keys = new Map<string, KeyInFlight>();
  private readonly firstClaims = new Map<string, Promise<void>>();
  private readonly handingOn = new Lately<ProjectNo>(HANDS_ON_MS);
  private readonly wereKeptBack = new Lately<string>(3 * KEPT_BACK_MS);
  /** Keys whose claims have not told how many places there are: they have no limit, for instance. */
  private readonly withoutPlaces = new Lately<string>(HANDS_ON_MS);

  /** The first claim of the attempt's key, if it is under way: it tells how many places the key has. It never rejects. */
  firstClaimOf(item: OwedItem): Promise<void> | undefined {
    const name = nameOf(item);
    return this.isConcerned(item) && !this.withoutPlaces.has(name) ? this.firstClaims.get(name) : undefined;
  }

  /** Whether the attempt is kept back. */
  keepsBack(item: OwedItem): boolean {
    const key = this.isConcerned(item) ? this.keys.get(nameOf(item)) : undefined;
    if (key === undefined) return false;
    const attempt = `${item.id} ${item.attempt}`;
    if (this.wereKeptBack.has(attempt)) {
      forget(key, item);
      return false;
    }
    if (key.inFlight < key.places || key.keptBack.length >= KEPT_BACK_MAX) return false;
    this.wereKeptBack.note(attempt);
    key.keptBack.push({ ...item, waitedFor: "flow" });
    return true;
  }

  /** A claim of the attempt begins. Call what it answers when the claim is over. */
  claims(item: OwedItem): () => void {
    const name = nameOf(item);
    if (item.keyHash === undefined || this.keys.has(name) || this.firstClaims.has(name))
      return () => undefined;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.firstClaims.set(name, promise);
    return () => {
      this.firstClaims.delete(name);
      if (!this.keys.has(name)) this.withoutPlaces.note(name);
      resolve();
    };
  }

  /** A claimed attempt is in flight. `places` is null if its key has no limit, or is not known: then this answers null. */
  begins(item: OwedItem, places: KeyPlaces | null): KeyInFlight | null {
    if (places === null) return null;
    const name = nameOf({ ...item, keyHash: places.hash });
    const key = this.keys.get(name) ?? { name, places: 0, inFlight: 0, keptBack: [] };
    this.keys.set(name, key);
    key.places = places.count;
    key.inFlight++;
    return key;
  }

  /** An attempt was started in the place of another one of its key. Answers whether it was kept back. */
  handsOn(key: KeyInFlight | null, next: OwedItem): boolean {
    this.handingOn.note(next.projectNo);
    return key !== null && forget(key, next);
  }

  /** An attempt of the key has ended, and none has its place. Answers one that was kept back and is to be claimed. */
  ends(key: KeyInFlight): OwedItem | null {
    key.inFlight--;
    return this.next(key);
  }

  /** The attempt that `ends` has answered was not owed any more. Answers the next one, by the order in which they are due. */
  next(key: KeyInFlight): OwedItem | null {
    key.keptBack.sort((one, other) => one.dueAt - other.dueAt || (one.id < other.id ? -1 : 1));
    const item = key.keptBack.shift() ?? null;
    if (item === null) this.leave(key);
    return item;
  }

  /** The attempt was claimed, or refused. Unless attempts of the key are in flight now, the others come again by themselves. */
  leave(key: KeyInFlight): void {
    if (key.inFlight === 0 && this.keys.get(key.name) === key) this.keys.delete(key.name);
  }

  private isConcerned({ projectNo, keyHash }: OwedItem): boolean {
    return keyHash !== undefined && this.handingOn.has(projectNo);
  }
}

const nameOf = ({ projectNo, environment, keyHash }: OwedItem) => `${projectNo} ${environment} ${keyHash}`;

/** Whether the attempt was kept back. */
function forget(key: KeyInFlight, { id }: OwedItem): boolean {
  const place = key.keptBack.findIndex((other) => other.id === id);
  if (place !== -1) key.keptBack.splice(place, 1);
  return place !== -1;
}
