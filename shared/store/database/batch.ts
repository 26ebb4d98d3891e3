import { StoreUnavailable } from "./database.ts";

/**
 * Group commit (DeWitt et al., 1984): what is asked for while one statement is under way joins the next one, so that
 * many share a round trip and an fsync, and nobody waits while nothing is under way.
 */
export interface Batcher<Item, Answer> {
  /**
   * The item's own answer, or the error of its statement: StoreUnavailable if the outcome is not known. Whoever
   * submits waits for the answer, so the number of callers is the bound of what waits here.
   */
  submit(item: Item): Promise<Answer>;
  /** Resolves once everything that was submitted has its answer. */
  drain(): Promise<void>;
}

export interface BatcherOptions<Item, Answer> {
  /** One statement: all of the items or, when it throws, none. The answers are in the order of the items. */
  run(items: Item[]): Promise<Answer[]>;
  itemsMax: number;
  /** How many statements may be under way at once; beyond them there is at most one of large items. */
  inFlightMax: number;
  bytesOf?(item: Item): number;
  /** Of all items of a statement together; a single item may have more. */
  bytesMax?: number;
}

/** A larger item goes in a lane of its own: small ones would wait for its bytes to be sent and written. */
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
      // Not at once: all that this turn of the event loop reads from its sockets fits into the same statement.
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

/** Gives every member its answer or its error; does not throw. */
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

/** The statement failed for one member's sake and nobody knows whose: alone, only that one fails. */
async function settleOneByOne<Item, Answer>(
  run: BatcherOptions<Item, Answer>["run"],
  members: Member<Item, Answer>[],
): Promise<void> {
  let outage: StoreUnavailable | null = null;
  for (const member of members) {
    // Every further statement would have to run into the same timeout.
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
    // What has been committed is not run again, even if nobody can tell which answer is whose.
    if (answers.length === members.length) member.resolve(answers[index] as Answer);
    else member.reject(new Error(`${answers.length} answers came for a batch of ${members.length}`));
  });
}
