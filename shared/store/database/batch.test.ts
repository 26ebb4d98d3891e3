import { describe, expect, test } from "bun:test";
import { type BatcherOptions, createBatcher } from "./batch.ts";
import { StoreUnavailable } from "./database.ts";

/** A statement whose end the test decides. */
interface Statement {
  items: string[];
  end(): void;
  fail(error: Error): void;
}

/** A batcher whose statements stay under way until the test ends them; `answer` is the item in upper case. */
function createHarness(options: Partial<BatcherOptions<string, string>> = {}) {
  const statements: Statement[] = [];
  const batcher = createBatcher<string, string>({
    run(items) {
      const { promise, resolve, reject } = Promise.withResolvers<string[]>();
      statements.push({ items, end: () => resolve(items.map((item) => item.toUpperCase())), fail: reject });
      return promise;
    },
    itemsMax: 100,
    inFlightMax: 1,
    ...options,
  });
  return { batcher, statements, batches: () => statements.map((statement) => statement.items) };
}

/** One turn of the event loop: every statement that can start has started after it. */
const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

describe("group commit", () => {
  test("starts a statement at once when none is under way", async () => {
    const { batcher, statements, batches } = createHarness();
    const answer = batcher.submit("a");
    await turn();
    expect(batches()).toEqual([["a"]]);
    statements[0]?.end();
    expect(await answer).toBe("A");
  });

  test("puts what arrives while a statement is under way into the next one, in order", async () => {
    const { batcher, statements, batches } = createHarness();
    const first = batcher.submit("a");
    await turn();
    const others = Promise.all(["b", "c", "d"].map((item) => batcher.submit(item)));
    await turn();
    expect(batches()).toEqual([["a"]]);
    statements[0]?.end();
    await first;
    await turn();
    expect(batches()).toEqual([["a"], ["b", "c", "d"]]);
    statements[1]?.end();
    expect(await others).toEqual(["B", "C", "D"]);
  });

  test("has at most so many statements under way and so many items and bytes in one", async () => {
    const { batcher, batches } = createHarness({
      itemsMax: 3,
      inFlightMax: 4,
      bytesMax: 100,
      bytesOf: (item) => Number(item),
    });
    for (const bytes of ["1", "2", "3", "60", "40", "1", "500", "1", "1"]) void batcher.submit(bytes);
    await turn();
    expect(batches()).toEqual([["1", "2", "3"], ["60", "40"], ["1"], ["500"]]);
  });

  test("lets no small item wait for a large one, nor a large one for ever", async () => {
    const { batcher, statements, batches } = createHarness({ bytesOf: (item) => Number(item) });
    const large = batcher.submit("65537");
    await turn();
    const small = batcher.submit("65536");
    await turn();
    expect(batches()).toEqual([["65537"], ["65536"]]);
    statements[1]?.end();
    expect(await small).toBe("65536");
    statements[0]?.end();
    expect(await large).toBe("65537");
  });
});

describe("a failing statement", () => {
  test("is run again one by one, so that a poisoned member fails alone", async () => {
    const runs: string[][] = [];
    const batcher = createBatcher<string, string>({
      async run(items) {
        runs.push(items);
        if (items.includes("poison")) throw new RangeError("bad value");
        return items;
      },
      itemsMax: 10,
      inFlightMax: 1,
    });
    const outcomes = await Promise.allSettled(["a", "poison", "b"].map((item) => batcher.submit(item)));
    expect(outcomes.map((outcome) => outcome.status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
    expect(outcomes[1]).toMatchObject({ reason: new RangeError("bad value") });
    expect(runs).toEqual([["a", "poison", "b"], ["a"], ["poison"], ["b"]]);
  });

  test("of unknown outcome is not run again and fails all of its members", async () => {
    const { batcher, statements, batches } = createHarness();
    const outcomes = Promise.allSettled([batcher.submit("a"), batcher.submit("b")]);
    await turn();
    const outage = new StoreUnavailable("no answer");
    statements[0]?.fail(outage);
    expect(await outcomes).toEqual([
      { status: "rejected", reason: outage },
      { status: "rejected", reason: outage },
    ]);
    expect(batches()).toEqual([["a", "b"]]);
  });

  test("that is run one by one stops at an outage", async () => {
    const { batcher, statements, batches } = createHarness();
    const outcomes = Promise.allSettled(["a", "b", "c"].map((item) => batcher.submit(item)));
    await turn();
    statements[0]?.fail(new RangeError("bad value"));
    await turn();
    statements[1]?.end();
    await turn();
    statements[2]?.fail(new StoreUnavailable("no answer"));
    expect((await outcomes).map((outcome) => outcome.status)).toEqual(["fulfilled", "rejected", "rejected"]);
    expect(batches()).toEqual([["a", "b", "c"], ["a"], ["b"]]);
  });

  test("does not keep the next batch from running", async () => {
    const { batcher, statements } = createHarness();
    const failed = Promise.allSettled([batcher.submit("a")]);
    await turn();
    const next = batcher.submit("b");
    statements[0]?.fail(new Error("broken"));
    await failed;
    await turn();
    statements[1]?.end();
    expect(await next).toBe("B");
  });

  test("whose answers do not fit its items is committed, and so not repeated", async () => {
    let runCount = 0;
    const batcher = createBatcher<string, string>({
      async run(items) {
        runCount++;
        return items.slice(1);
      },
      itemsMax: 10,
      inFlightMax: 1,
    });
    const outcomes = await Promise.allSettled([batcher.submit("a"), batcher.submit("b")]);
    expect(outcomes.map((outcome) => outcome.status)).toEqual(["rejected", "rejected"]);
    expect(runCount).toBe(1);
  });
});

describe("drain", () => {
  test("waits for what is under way and for what waits behind it", async () => {
    const { batcher, statements } = createHarness();
    await batcher.drain();
    let isDrained = false;
    const answers = [batcher.submit("a")];
    await turn();
    answers.push(batcher.submit("b"));
    const drained = batcher.drain().then(() => {
      isDrained = true;
    });
    statements[0]?.end();
    await turn();
    expect(isDrained).toBe(false);
    statements[1]?.end();
    await drained;
    expect(await Promise.all(answers)).toEqual(["A", "B"]);
  });
});
