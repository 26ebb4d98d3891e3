import { StoreUnavailable } from "./database.ts";

/**
 * Group commit (DeWitt et al., 1984): items that arrive while one statement is under way join the next one. Many items
 * share a round trip and an fsync, and an item waits only while a statement is under way.
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
  /** How many statements may be under way at once; one more may be under way for large items. */
  inFlightMax: number;
  bytesOf?(item: Item): number;
  /** The most bytes of one statement's items together; a single item may have more. */
  bytesMax?: number;
}

/** A larger item goes into a queue of its own: small items would wait for its bytes to be sent and written. */
const LARGE_ITEM_BYTES = 65_536;
const LARGE_IN_FLIGHT_MAX = 1;

export function createBatcher<Item, Answer>(options: BatcherOptions<Item, Answer>): Batcher<Item, Answer> {
  const small = createLane(options, options.inFlightMax);
  const large = createLane(options, LARGE_IN_FLIGHT_MAX);
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
  resolve(answer: Answer): void;
  reject(error: unknown): void;
}

interface Lane<Item, Answer> {
  submit(item: Item, bytes: number): Promise<Answer>;
  drain(): Promise<void>;
}

function createLane<Item, Answer>(
  { run, itemsMax, bytesMax = Number.POSITIVE_INFINITY }: BatcherOptions<Item, Answer>,
  inFlightMax: number,
): Lane<Item, Answer> {
  let waiting: Member<Item, Answer>[] = [];
  let inFlightCount = 0;
  let isStarting = false;
  let drained: (() => void)[] = [];

  function startBatches(): void {
    isStarting = false;
    while (waiting.length > 0 && inFlightCount < inFlightMax) {
      const count = countNext();
      const members = waiting.slice(0, count);
      waiting = waiting.slice(count);
      inFlightCount++;
      void settleBatch(run, members).then(() => {
        inFlightCount--;
        startBatches();
      });
    }
    if (waiting.length > 0 || inFlightCount > 0) return;
    for (const resolve of drained) resolve();
    drained = [];
  }

  function countNext(): number {
    let bytes = 0;
    let count = 0;
    for (const member of waiting) {
      bytes += member.bytes;
      if (count === itemsMax || (count > 0 && bytes > bytesMax)) break;
      count++;
    }
    return count;
  }

  return {
    submit(item, bytes) {
      const { promise, resolve, reject } = Promise.withResolvers<Answer>();
      waiting.push({ item, bytes, resolve, reject });
      // The statement starts after this turn of the event loop, so that it takes every item that this turn reads from its
      // sockets.
      if (!isStarting && inFlightCount < inFlightMax) {
        isStarting = true;
        setImmediate(startBatches);
      }
      return promise;
    },
    drain() {
      if (waiting.length === 0 && inFlightCount === 0) return Promise.resolve();
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
