import { describe, expect, test } from "bun:test";
import { createLog, type Log } from "./log.ts";
import { repeat } from "./repeat.ts";

const log = createLog({ level: "silent", name: "test" });

/** A tick that the test ends each time. */
function startTicks() {
  const ends: (() => void)[] = [];
  let waiting: (() => void)[] = [];
  let running = 0;
  let runningMax = 0;
  return {
    ends,
    get runningMax() {
      return runningMax;
    },
    async tick() {
      running++;
      runningMax = Math.max(runningMax, running);
      const { promise, resolve } = Promise.withResolvers<void>();
      ends.push(resolve);
      for (const look of waiting) look();
      await promise;
      running--;
    },
    /** Resolves once that many ticks have begun. */
    async begun(count: number) {
      while (ends.length < count) {
        const { promise, resolve } = Promise.withResolvers<void>();
        waiting.push(resolve);
        await promise;
      }
      waiting = [];
    },
  };
}

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

describe("repeat", () => {
  test("begins at once and goes on, one tick at a time", async () => {
    const ticks = startTicks();
    const loop = repeat("test", 1, ticks.tick, log);
    expect(ticks.ends).toHaveLength(1);
    for (let count = 1; count <= 5; count++) {
      await ticks.begun(count);
      ticks.ends[count - 1]?.();
    }
    await ticks.begun(6);
    ticks.ends[5]?.();
    await loop.stop();
    expect(ticks.runningMax).toBe(1);
  });

  test("takes turns with the other loops of one period, each with its own part of it", async () => {
    // A machine that stands still for a moment may bring them together, but not each time.
    for (let time = 0; time < 3; time++) if ((await countParts()) > 1) return;
    throw new Error("the loops ticked together three times");
  });

  /** The number of different parts of a period in which five loops tick for the second time. */
  async function countParts(): Promise<number> {
    const PERIOD_MS = 2_000;
    const parts: number[] = [];
    const loops = Array.from({ length: 5 }, () => {
      let count = 0;
      const second = Promise.withResolvers<void>();
      const loop = repeat(
        "test",
        PERIOD_MS,
        async () => {
          if (++count === 2) {
            parts.push(performance.now() % PERIOD_MS);
            second.resolve();
          }
        },
        log,
      );
      return { loop, second: second.promise };
    });
    await Promise.all(loops.map(({ second }) => second));
    await Promise.all(loops.map(({ loop }) => loop.stop()));
    return new Set(parts.map((part) => Math.floor(part / 200))).size;
  }

  test("ticks once in each period", async () => {
    const PERIOD_MS = 25;
    const TICKS = 20;
    const startedAt = performance.now();
    const loops = Array.from({ length: 6 }, () => {
      let count = 0;
      const enough = Promise.withResolvers<void>();
      const tick = async () => {
        if (++count === TICKS) enough.resolve();
      };
      return { loop: repeat("test", PERIOD_MS, tick, log), enough: enough.promise };
    });
    await Promise.race(loops.map(({ enough }) => enough));
    // The first tick comes at once, the second within the period, and each timer up to 2 ms early.
    expect(performance.now() - startedAt).toBeGreaterThanOrEqual((TICKS - 2) * PERIOD_MS - 2);
    await Promise.all(loops.map(({ enough }) => enough));
    await Promise.all(loops.map(({ loop }) => loop.stop()));
  });

  test("runs once more if asked many times while it runs", async () => {
    const ticks = startTicks();
    const loop = repeat("test", Number.POSITIVE_INFINITY, ticks.tick, log);
    await turn();
    expect(ticks.ends).toHaveLength(0);
    for (let count = 0; count < 5; count++) loop.soon();
    ticks.ends[0]?.();
    await ticks.begun(2);
    ticks.ends[1]?.();
    await turn();
    expect(ticks.ends).toHaveLength(2);
    loop.soon();
    expect(ticks.ends).toHaveLength(3);
    ticks.ends[2]?.();
    await loop.stop();
  });

  test("logs the error of a tick and goes on", async () => {
    const warnings: object[] = [];
    const listening: Log = { ...log, warn: (fields) => void warnings.push(fields) };
    const { promise, resolve } = Promise.withResolvers<void>();
    let count = 0;
    const loop = repeat(
      "failing",
      1,
      async () => {
        if (++count === 3) resolve();
        throw new Error("no");
      },
      listening,
    );
    await promise;
    await loop.stop();
    expect(warnings[0]).toMatchObject({ loop: "failing", err: new Error("no") });
  });

  test("begins no tick after stop, which waits for the last one", async () => {
    const ticks = startTicks();
    const loop = repeat("test", 1, ticks.tick, log);
    loop.soon();
    let isStopped = false;
    const stopping = loop.stop().then(() => {
      isStopped = true;
    });
    await turn();
    expect(isStopped).toBe(false);
    ticks.ends[0]?.();
    await stopping;
    loop.soon();
    await turn();
    expect(ticks.ends).toHaveLength(1);
  });
});

test("now resolves with a tick that began after the call, to whether it has failed", async () => {
  const ticks = startTicks();
  let fails = false;
  const loop = repeat(
    "loop",
    Number.POSITIVE_INFINITY,
    () => (fails ? Promise.reject(new Error("over")) : ticks.tick()),
    log,
  );
  loop.soon();
  await ticks.begun(1);
  let isOver = false;
  const asked = loop.now().then((isDone) => {
    isOver = true;
    return isDone;
  });
  ticks.ends[0]?.();
  await ticks.begun(2);
  await turn();
  expect(isOver).toBe(false);
  ticks.ends[1]?.();
  expect(await asked).toBe(true);
  fails = true;
  expect(await loop.now()).toBe(false);
  fails = false;
  const again = loop.now();
  await ticks.begun(3);
  ticks.ends[2]?.();
  expect(await again).toBe(true);
  await loop.stop();
});
