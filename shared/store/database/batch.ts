import { StoreUnavailable } from "./database.ts";
import { STUCK_AFTER_MS, type Standing, type Turns } from "./turns.ts";

/**
 * Group commit (DeWitt et al., 1984): items that arrive while one statement is under way join the next one. Many items
 * share a round trip and an fsync. Without `gatherMs` an item waits only while a statement is under way.
 */
export interface Batcher<Item, Answer> {
  /**
   * Answers the item's own answer, or throws the error of its statement: StoreUnavailable if the outcome is unknown.
   * Each caller waits for its answer, so the number of callers bounds the queue.
   */
  submit(item: Item): Promise<Answer>;
  /** Resolves once every submitted item has its answer. */
  drain(): Promise<void>;
}

export interface BatcherOptions<Item, Answer> {
  /**
   * Runs one statement over the items. It takes effect for all of them or, when it throws, for none. The answers have
   * the order of the items.
   */
  run(items: Item[]): Promise<Answer[]>;
  itemsMax: number;
  /**
   * While items come so fast that several arrive within this time, statements begin at least this far apart, unless
   * enough items wait. An item that comes alone starts at once.
   */
  gatherMs?: number;
  /** How many items are enough: the next statement does not wait for more. At most `itemsMax`. */
  gatheredEnough?: number;
  /**
   * Statements of batchers with the same turns that need a lock in common run one after the other. Items whose lock is taken do not keep
   * others waiting. An item may need none: null.
   */
  turns?: {
    shared: Turns<unknown>;
    lockOf(item: Item): unknown;
    /** Whether its statements come after those of the others that wait for the same lock (turns.ts). */
    givesWay?(lock: unknown): boolean;
  };
  /** Owners of items take turns, item by item. If it is left out, items go in the order in which they came. */
  ownerOf?(item: Item): unknown;
  bytesOf?(item: Item): number;
  /** The most bytes of one statement's items together; a single item may have more. */
  bytesMax?: number;
}

/** A larger item goes into a queue of its own: small items would wait for its bytes to be sent and written. */
const LARGE_ITEM_BYTES = 65_536;
/**
 * Two statements at once would each have half of the items, and would wait for each other's locks. So a second statement
 * begins only if the first seems stuck, because the items of the second may need other locks. Full statements wait too: two
 * at once stored jobs more slowly, and at a higher cost.
 */
const IN_FLIGHT_MAX = 2;
/** Statements are kept apart if `gatherMs` brings at least this many items... */
const GATHERED_MIN = 2;
/** ... and until this many items wait, if nothing else is asked for: they cost about as much as the statement without any. */
const GATHERED_ENOUGH = 16;
/** The rate of items is an average over about this time. */
const RATE_OVER_MS = 100;

export function createBatcher<Item, Answer>(options: BatcherOptions<Item, Answer>): Batcher<Item, Answer> {
  const small = createQueue(options);
  const large = createQueue(options);
  return {
    submit(item) {
      const bytes = options.bytesOf?.(item) ?? 0;
      return (bytes > LARGE_ITEM_BYTES ? large : small).submit(item, bytes);
    },
    async drain() {
      await Promise.all([small.drain(), large.drain()]);
    },
  };
}

interface Member<Item, Answer> {
  item: Item;
  bytes: number;
  turn: number;
  resolve(answer: Answer): void;
  reject(error: unknown): void;
}

/** The items of the next statement and the locks that it needs. */
interface Next<Item, Answer> {
  members: Member<Item, Answer>[];
  /** Those that do not fit, or whose lock is taken. */
  left: Member<Item, Answer>[];
  isFull: boolean;
  locks: Set<unknown>;
  /** The locks that are taken among those of the items that wait, and when one of these may be free at the latest. */
  taken: Set<unknown>;
  turnAt: number;
}

interface Queue<Item, Answer> {
  submit(item: Item, bytes: number): Promise<Answer>;
  drain(): Promise<void>;
}

function createQueue<Item, Answer>({
  run,
  itemsMax,
  bytesMax = Number.POSITIVE_INFINITY,
  gatherMs = 0,
  gatheredEnough = GATHERED_ENOUGH,
  turns,
  ownerOf,
}: BatcherOptions<Item, Answer>): Queue<Item, Answer> {
  /** In the order of their turns. */
  let waiting: Member<Item, Answer>[] = [];
  /** The turn of the last item that was taken, and of each owner's last item while any wait. */
  let takenTurn = 0;
  const lastTurns = new Map<unknown, number>();
  /** When each statement under way began, the oldest first. */
  const underWay = new Map<symbol, number>();
  let timer: ReturnType<typeof setTimeout> | undefined;
  /** When the last statement began. */
  let begunAt = performance.now();
  /** The items that have come per millisecond, averaged over RATE_OVER_MS. */
  let rate = 0;
  let drained: (() => void)[] = [];
  /** All that wait need locks that are taken. */
  let isBlocked = false;
  const standing: Standing<unknown> = {
    givesWay: (lock) => turns?.givesWay?.(lock) ?? false,
    tryAgain: startBatches,
  };

  function startBatches(): void {
    clearTimeout(timer);
    isBlocked = false;
    while (waiting.length > 0 && underWay.size < IN_FLIGHT_MAX) {
      const now = performance.now();
      const next = takeNext(now);
      isBlocked = next.members.length === 0;
      const waitMs = (isBlocked ? next.turnAt : startsAt(next)) - now;
      // While it only gathers, others may go before it.
      turns?.shared.stand(standing, underWay.size > 0 ? next.taken.union(next.locks) : next.taken);
      if (waitMs > 0) {
        // Bun drops the fraction of a timer, which would fire too early and be set once more.
        timer = setTimeout(startBatches, Math.ceil(waitMs));
        return;
      }
      rate = (rate * RATE_OVER_MS + next.members.length) / (RATE_OVER_MS + now - begunAt);
      begunAt = now;
      start(next);
    }
    // Its own next end lets it try again.
    if (waiting.length === 0 || underWay.size === IN_FLIGHT_MAX) turns?.shared.stand(standing, new Set());
    if (waiting.length > 0 || underWay.size > 0) return;
    for (const resolve of drained) resolve();
    drained = [];
  }

  /** The items of the next statement: the first that wait, but for those whose lock is taken. */
  function takeNext(now: number): Next<Item, Answer> {
    const next: Next<Item, Answer> = {
      ...{ members: [], left: [], isFull: false },
      ...{ locks: new Set(), taken: new Set(), turnAt: Number.POSITIVE_INFINITY },
    };
    let bytes = 0;
    const mayBegin = (lock: unknown) => {
      if (lock === null || next.locks.has(lock)) return true;
      if (next.taken.has(lock)) return false;
      const turnAt = turns?.shared.nextAt(standing, lock) ?? now;
      if (turnAt <= now) return true;
      next.taken.add(lock);
      next.turnAt = Math.min(next.turnAt, turnAt);
      return false;
    };
    for (const [place, member] of waiting.entries()) {
      const lock = turns?.lockOf(member.item) ?? null;
      if (!mayBegin(lock)) next.left.push(member);
      else {
        bytes += member.bytes;
        next.isFull = next.members.length === itemsMax || (next.members.length > 0 && bytes > bytesMax);
        if (next.isFull) {
          next.left = next.left.concat(waiting.slice(place));
          break;
        }
        next.members.push(member);
        if (lock !== null) next.locks.add(lock);
      }
    }
    return next;
  }

  /** When the statement may begin. */
  function startsAt({ members, isFull }: Next<Item, Answer>): number {
    const [oldestAt] = underWay.values();
    if (oldestAt !== undefined) return oldestAt + STUCK_AFTER_MS;
    const isEnough = isFull || members.length >= gatheredEnough || rate * gatherMs < GATHERED_MIN;
    return begunAt + (isEnough ? 0 : gatherMs);
  }

  function start({ members, left, locks }: Next<Item, Answer>): void {
    waiting = left;
    takenTurn = members.at(-1)?.turn ?? takenTurn;
    if (waiting.length === 0) lastTurns.clear();
    const statement = Symbol();
    underWay.set(statement, begunAt);
    const endTurn = turns?.shared.begin(standing, begunAt, locks) ?? startBatches;
    void settleBatch(run, members).then(() => {
      underWay.delete(statement);
      endTurn();
    });
  }

  function isFree(item: Item): boolean {
    return turns !== undefined && turns.shared.nextAt(standing, turns.lockOf(item)) <= performance.now();
  }

  /** The turn of a new item: start-time fair queueing (Goyal, Vin and Cheng, 1996), where each item costs the same. */
  function turnOf(item: Item): number {
    if (ownerOf === undefined) return takenTurn;
    const owner = ownerOf(item);
    const turn = Math.max(takenTurn, (lastTurns.get(owner) ?? -1) + 1);
    lastTurns.set(owner, turn);
    return turn;
  }

  return {
    submit(item, bytes) {
      const { promise, resolve, reject } = Promise.withResolvers<Answer>();
      const turn = turnOf(item);
      const place = waiting.findLastIndex((other) => other.turn <= turn) + 1;
      waiting.splice(place, 0, { item, bytes, turn, resolve, reject });
      // The statement starts after this turn of the event loop, so that it takes every item that this turn reads from its
      // sockets.
      const isUnblocked = isBlocked && isFree(item);
      if (isUnblocked) isBlocked = false;
      if (waiting.length === 1 || waiting.length === gatheredEnough || isUnblocked)
        setImmediate(startBatches);
      return promise;
    },
    drain() {
      if (waiting.length === 0 && underWay.size === 0) return Promise.resolve();
      const { promise, resolve } = Promise.withResolvers<void>();
      drained.push(resolve);
      return promise;
    },
  };
}

/** Gives every member its answer or its error. Never throws. */
async function settleBatch<Item, Answer>(
  run: BatcherOptions<Item, Answer>["run"],
  members: Member<Item, Answer>[],
): Promise<void> {
  try {
    const answers = await run(members.map((member) => member.item));
    settleMembers(members, answers);
  } catch (error) {
    if (members.length === 1 || error instanceof StoreUnavailable) {
      for (const member of members) member.reject(error);
    } else {
      await settleOneByOne(run, members);
    }
  }
}

/** Runs each member alone: the batch failed because of one member, and only that one fails again. */
async function settleOneByOne<Item, Answer>(
  run: BatcherOptions<Item, Answer>["run"],
  members: Member<Item, Answer>[],
): Promise<void> {
  let outage: StoreUnavailable | null = null;
  for (const member of members) {
    // After an outage every further statement would run into the same timeout.
    if (outage === null) {
      await settleBatch(run, [
        {
          ...member,
          reject(error) {
            if (error instanceof StoreUnavailable) outage = error;
            member.reject(error);
          },
        },
      ]);
    } else {
      member.reject(outage);
    }
  }
}

function settleMembers<Item, Answer>(members: Member<Item, Answer>[], answers: Answer[]): void {
  members.forEach((member, index) => {
    // The statement has been committed and must not run again, even if the answers cannot be matched to the items.
    if (answers.length === members.length) member.resolve(answers[index] as Answer);
    else member.reject(new Error(`${answers.length} answers came for a batch of ${members.length}`));
  });
}
