import { describe, expect, test } from "bun:test";
import { inTime } from "../test-support.ts";
import { type BatcherOptions, createBatcher } from "./batch.ts";
import { StoreUnavailable } from "./database.ts";
import { PASSED_MAX, STUCK_AFTER_MS, Turns } from "./turns.ts";

/** A statement that the test ends. */
interface Statement {
  items: string[];
  end(): void;
  fail(error: Error): void;
}

/** A batcher whose statements stay under way until the test ends them; `answer` answers each item in upper case. */
function createHarness(options: Partial<BatcherOptions<string, string>> = {}) {
  const statements: Statement[] = [];
  const batcher = createBatcher<string, string>({
    run(items) {
      const { promise, resolve, reject } = Promise.withResolvers<string[]>();
      statements.push({ items, end: () => resolve(items.map((item) => item.toUpperCase())), fail: reject });
      return promise;
    },
    itemsMax: 100,
    ...options,
  });
  return { batcher, statements, batches: () => statements.map((statement) => statement.items) };
}

/** One turn of the event loop, after which every statement that can start has started. */
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

  test("puts items that arrive while a statement is under way into the next statement, in order", async () => {
    // A statement that seems stuck has a second one beside it.
    await inTime(STUCK_AFTER_MS, async () => {
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
  });

  test("bounds the items and bytes of each statement", async () => {
    const { batcher, statements, batches } = createHarness({
      itemsMax: 3,
      bytesMax: 100,
      bytesOf: (item) => Number(item),
    });
    for (const bytes of ["1", "2", "3", "60", "40", "1", "500", "1", "1"]) void batcher.submit(bytes);
    for (let place = 0; place < 5; place++) {
      await turn();
      statements[place]?.end();
    }
    expect(batches()).toEqual([["1", "2", "3"], ["60", "40"], ["1"], ["500"], ["1", "1"]]);
  });

  test("lets the owners of items take turns, and keeps the order of each", async () => {
    await inTime(STUCK_AFTER_MS, async () => {
      const { batcher, statements, batches } = createHarness({ itemsMax: 4, ownerOf: (item) => item[0] });
      for (const item of ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "b0", "b1", "c0"])
        void batcher.submit(item);
      await turn();
      statements[0]?.end();
      await turn();
      // An owner that comes late stands no further behind than one that has come before.
      for (const item of ["d0", "d1", "b2"]) void batcher.submit(item);
      for (let place = 1; place < 4; place++) {
        statements[place]?.end();
        await turn();
      }
      expect(batches()).toEqual([
        ["a0", "b0", "c0", "a1"],
        ["b1", "a2", "a3", "a4"],
        ["d0", "b2", "a5", "d1"],
        ["a6"],
      ]);
    });
  });

  test("starts a second statement beside one that seems stuck, and no third", async () => {
    const { batcher, statements, batches } = createHarness();
    const startedAt = performance.now();
    void batcher.submit("a");
    await turn();
    void batcher.submit("b");
    while (statements.length < 2) await turn();
    expect(performance.now() - startedAt).toBeGreaterThanOrEqual(100);
    void batcher.submit("c");
    await Bun.sleep(150);
    expect(batches()).toEqual([["a"], ["b"]]);
    // While the first statement is stuck, each later one starts as soon as the one before it has ended.
    for (const [place, item] of ["d", "e", "f"].entries()) {
      statements[place + 1]?.end();
      for (let count = 0; count < 5; count++) await turn();
      void batcher.submit(item);
      await turn();
    }
    expect(batches()).toEqual([["a"], ["b"], ["c"], ["d"], ["e"]]);
  });

  test("makes no small item wait for a large one, and no large one wait for ever", async () => {
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

describe("batchers with the same turns", () => {
  /** Each item needs the lock that its first letter names. */
  const harnesses = () => {
    const turns = { shared: new Turns(), lockOf: (item: string) => item[0] };
    return [createHarness({ turns }), createHarness({ turns }), createHarness({ turns })] as const;
  };

  test("run statements with a lock in common one after the other, as they asked, with the items that came meanwhile", async () => {
    await inTime(STUCK_AFTER_MS, async () => {
      const [one, two, three] = harnesses();
      const began = () => [one, two, three].map(({ batches }) => batches());
      const answers = [one.batcher.submit("p1")];
      await turn();
      for (const [harness, item] of [
        [three, "p2"],
        [two, "p3"],
        [one, "p4"],
        [three, "p5"],
      ] as const) {
        answers.push(harness.batcher.submit(item));
        await turn();
      }
      expect(began()).toEqual([[["p1"]], [], []]);
      one.statements[0]?.end();
      await turn();
      expect(began()).toEqual([[["p1"]], [], [["p2", "p5"]]]);
      three.statements[0]?.end();
      await turn();
      expect(began()).toEqual([[["p1"]], [["p3"]], [["p2", "p5"]]]);
      two.statements[0]?.end();
      await turn();
      expect(began()).toEqual([[["p1"], ["p4"]], [["p3"]], [["p2", "p5"]]]);
      one.statements[1]?.end();
      expect(await Promise.all(answers)).toEqual(["P1", "P2", "P3", "P4", "P5"]);
    });
  });

  test("run statements without a lock in common beside each other", async () => {
    const [one, two] = harnesses();
    const answers = [one.batcher.submit("p"), two.batcher.submit("q")];
    await turn();
    expect([one.batches(), two.batches()]).toEqual([[["p"]], [["q"]]]);
    for (const { statements } of [two, one]) statements[0]?.end();
    expect(await Promise.all(answers)).toEqual(["P", "Q"]);
  });

  test("let items whose lock is free go before those whose lock is taken", async () => {
    await inTime(STUCK_AFTER_MS, async () => {
      const [one, two] = harnesses();
      const answers = [one.batcher.submit("p1")];
      await turn();
      for (const item of ["p2", "q1", "p3"]) answers.push(two.batcher.submit(item));
      await turn();
      expect(two.batches()).toEqual([["q1"]]);
      one.statements[0]?.end();
      await turn();
      // A batcher has one statement under way at a time.
      expect(two.batches()).toEqual([["q1"]]);
      two.statements[0]?.end();
      await turn();
      expect(two.batches()).toEqual([["q1"], ["p2", "p3"]]);
      two.statements[1]?.end();
      expect(await Promise.all(answers)).toEqual(["P1", "P2", "Q1", "P3"]);
    });
  });

  test("begin at once with an item whose lock is free, though others have waited for theirs", async () => {
    await inTime(STUCK_AFTER_MS, async () => {
      const [one, two] = harnesses();
      const answers = [one.batcher.submit("p1")];
      await turn();
      answers.push(two.batcher.submit("p2"));
      await turn();
      answers.push(two.batcher.submit("q1"));
      await turn();
      expect(two.batches()).toEqual([["q1"]]);
      for (const { statements } of [one, two]) statements[0]?.end();
      await turn();
      two.statements[1]?.end();
      expect(await Promise.all(answers)).toEqual(["P1", "P2", "Q1"]);
    });
  });

  test("that give way let others pass, but not for ever", async () => {
    await inTime(STUCK_AFTER_MS, async () => {
      const turns = { shared: new Turns(), lockOf: (item: string) => item[0] };
      const [first, last] = [
        createHarness({ turns }),
        createHarness({ turns: { ...turns, givesWay: () => true } }),
      ];
      const answers = [first.batcher.submit("p")];
      await turn();
      answers.push(last.batcher.submit("p last"));
      await turn();
      for (let passed = 0; passed < PASSED_MAX; passed++) {
        expect(last.batches()).toEqual([]);
        answers.push(first.batcher.submit("p"));
        first.statements.at(-1)?.end();
        await turn();
      }
      expect(first.batches()).toHaveLength(PASSED_MAX + 1);
      answers.push(first.batcher.submit("p"));
      first.statements.at(-1)?.end();
      await turn();
      expect([first.batches().length, last.batches()]).toEqual([PASSED_MAX + 1, [["p last"]]]);
      last.statements[0]?.end();
      await turn();
      first.statements.at(-1)?.end();
      expect(await Promise.all(answers)).toHaveLength(PASSED_MAX + 3);
    });
  });

  test("come to the lock of another batcher that always has items for it, also if each has a statement under way", async () => {
    await inTime(STUCK_AFTER_MS, async () => {
      const [one, two] = harnesses();
      const answers = [one.batcher.submit("p"), two.batcher.submit("q")];
      await turn();
      answers.push(one.batcher.submit("q of one"), two.batcher.submit("p of two"));
      for (let round = 0; round < 6; round++)
        for (const [{ batcher, statements }, item] of [
          [one, "p"],
          [two, "q"],
        ] as const) {
          answers.push(batcher.submit(item));
          statements.at(-1)?.end();
          await turn();
        }
      expect(one.batches().flat()).toContain("q of one");
      expect(two.batches().flat()).toContain("p of two");
      for (let round = 0; round < 20; round++) {
        for (const { statements } of [one, two]) statements.at(-1)?.end();
        await turn();
      }
      expect(await Promise.all(answers)).toHaveLength(16);
    });
  });

  test("do not wait for a statement that seems stuck", async () => {
    const [stuck, other] = harnesses();
    const answers = [stuck.batcher.submit("p1")];
    await turn();
    answers.push(other.batcher.submit("p2"));
    await Bun.sleep(STUCK_AFTER_MS + 50);
    expect(other.batches()).toEqual([["p2"]]);
    for (const { statements } of [other, stuck]) statements[0]?.end();
    expect(await Promise.all(answers)).toEqual(["P1", "P2"]);
  });
});

describe("gathering", () => {
  test("keeps statements apart while items come fast", async () => {
    const GATHER_MS = 100;
    const begun: number[] = [];
    const batcher = createBatcher<number, number>({
      async run(items) {
        begun.push(performance.now());
        return items;
      },
      itemsMax: 100_000,
      gatherMs: GATHER_MS,
    });
    const answers: Promise<number>[] = [];
    const startedAt = performance.now();
    // At most 14 items come within the time of gathering, too few to end it early.
    while (begun.length < 5) {
      for (let item = 0; item < 7; item++) answers.push(batcher.submit(answers.length));
      await Bun.sleep(60);
    }
    await batcher.drain();
    expect(await Promise.all(answers)).toEqual(answers.map((_, index) => index));
    for (const [index, at] of begun.entries())
      expect(at - startedAt).toBeGreaterThanOrEqual(index * GATHER_MS - 1);
  });

  test("makes items that come alone wait for nothing", async () => {
    const { batcher, statements, batches } = createHarness({ gatherMs: 20 });
    for (const [index, item] of ["a", "b", "c"].entries()) {
      const answer = batcher.submit(item);
      await turn();
      statements[index]?.end();
      await answer;
    }
    expect(batches()).toEqual([["a"], ["b"], ["c"]]);
  });

  test.each([
    [16, {}],
    [100, { gatheredEnough: 100 }],
  ])("ends as soon as enough items wait (%d)", async (enough, options) => {
    const { batcher, statements } = createHarness({ gatherMs: 10_000, ...options });
    const submit = (count: number) => {
      for (let item = 0; item < count; item++) void batcher.submit("a");
    };
    for (let place = 0; place < 20; place++) {
      submit(enough);
      await turn();
      statements[place]?.end();
      await turn();
    }
    expect(statements).toHaveLength(20);
    submit(enough - 1);
    await turn();
    expect(statements).toHaveLength(20);
    submit(1);
    await turn();
    expect(statements).toHaveLength(21);
  });
});

describe("a failing statement of a batch", () => {
  test("is run again item by item, so that only the poisoned item fails", async () => {
    const runs: string[][] = [];
    const batcher = createBatcher<string, string>({
      async run(items) {
        runs.push(items);
        if (items.includes("poison")) throw new RangeError("bad value");
        return items;
      },
      itemsMax: 10,
    });
    const outcomes = await Promise.allSettled(["a", "poison", "b"].map((item) => batcher.submit(item)));
    expect(outcomes.map((outcome) => outcome.status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
    expect(outcomes[1]).toMatchObject({ reason: new RangeError("bad value") });
    expect(runs).toEqual([["a", "poison", "b"], ["a"], ["poison"], ["b"]]);
  });

  test("with an unknown outcome is not run again, and fails all of its items", async () => {
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

  test("that is being run again item by item stops at an outage", async () => {
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

  test("with a wrong number of answers is committed, so it is not run again", async () => {
    let runCount = 0;
    const batcher = createBatcher<string, string>({
      async run(items) {
        runCount++;
        return items.slice(1);
      },
      itemsMax: 10,
    });
    const outcomes = await Promise.allSettled([batcher.submit("a"), batcher.submit("b")]);
    expect(outcomes.map((outcome) => outcome.status)).toEqual(["rejected", "rejected"]);
    expect(runCount).toBe(1);
  });
});

describe("draining a batcher", () => {
  test("waits for the statement under way and for the items behind it", async () => {
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
