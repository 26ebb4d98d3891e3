import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { Wheel } from "./wheel.ts";

const NOW_MS = 1_800_000_000_123;
const DAY_MS = 86_400_000;
const TEN_YEARS_MS = 3653 * DAY_MS;
/** Between the present and the next due instant, a slot of each of the ten levels may begin, and the instant's tick. */
const WAKES_MAX = 11;

describe("a timer", () => {
  test("never expires before its instant, not even inside its tick", () => {
    const wheel = new Wheel(NOW_MS);
    wheel.insert(NOW_MS + 5.75, 1);
    wheel.insert(NOW_MS + 5.25, 2);
    expect(expired(wheel, NOW_MS + 5.2)).toEqual([]);
    expect(expired(wheel, NOW_MS + 5.25)).toEqual([2]);
    expect(wheel.nextAt()).toBe(NOW_MS + 5.75);
    expect(expired(wheel, NOW_MS + 5.74)).toEqual([]);
    expect(expired(wheel, NOW_MS + 5.75)).toEqual([1]);
    expect(wheel.size).toBe(0);
  });

  test("whose instant is past expires at the next advance, even if the clock stands still", () => {
    const wheel = new Wheel(NOW_MS + 0.5);
    wheel.insert(NOW_MS - TEN_YEARS_MS, 1);
    wheel.insert(Number.NEGATIVE_INFINITY, 2);
    wheel.insert(NOW_MS + 0.5, 3);
    expect(wheel.nextAt()).toBe(NOW_MS + 0.5);
    expect(expired(wheel, NOW_MS + 0.5)).toEqual([1, 2, 3]);
  });

  test("is on time at the boundaries of every level, from any place in the revolution", () => {
    const spansMs = [1, ...[8, 16, 21, 26, 31, 36, 41, 46, 51].map((bits) => 2 ** bits)];
    for (const spanMs of spansMs) {
      const alignedMs = Math.ceil(NOW_MS / spanMs) * spanMs;
      for (const startMs of [alignedMs - 1, alignedMs, alignedMs + 1, alignedMs + spanMs / 2, NOW_MS]) {
        for (const aheadMs of [spanMs - 1, spanMs, spanMs + 1, 31 * spanMs, 32 * spanMs - 1]) {
          for (const dueMs of [Math.floor(startMs) + aheadMs, alignedMs + aheadMs]) {
            if (dueMs <= startMs || dueMs > 8.64e15) continue;
            const leaper = new Wheel(startMs);
            leaper.insert(dueMs, 7);
            expect(expired(leaper, dueMs - 1)).toEqual([]);
            expect(expired(leaper, dueMs)).toEqual([7]);

            const sleeper = new Wheel(startMs);
            sleeper.insert(dueMs, 7);
            expect(sleepUntilExpiry(sleeper)).toEqual({ values: [7], atMs: dueMs });
          }
        }
      }
    }
  });

  test("ten years ahead expires then and not earlier, with nearer ones beside it", () => {
    const wheel = new Wheel(NOW_MS);
    wheel.insert(NOW_MS + TEN_YEARS_MS, 3);
    wheel.insert(NOW_MS + DAY_MS, 2);
    wheel.insert(NOW_MS + 1, 1);
    expect(sleepUntilExpiry(wheel)).toEqual({ values: [1], atMs: NOW_MS + 1 });
    expect(sleepUntilExpiry(wheel)).toEqual({ values: [2], atMs: NOW_MS + DAY_MS });
    expect(expired(wheel, NOW_MS + TEN_YEARS_MS - 0.5)).toEqual([]);
    expect(expired(wheel, NOW_MS + TEN_YEARS_MS)).toEqual([3]);
  });

  test("expires in the order of insertion within its tick, however far away each timer was then", () => {
    const dueMs = Math.ceil(NOW_MS / 2 ** 26) * 2 ** 26 + 2 ** 21;
    const aheadMs = [2 ** 25, 2 ** 21 + 3, 2 ** 21, 70_000, 65_536, 65_535, 300, 256, 255, 1, 0];
    const wheel = new Wheel(dueMs - 2 ** 26);
    const order: number[] = [];
    for (const [value, distanceMs] of aheadMs.entries()) {
      expect(expired(wheel, dueMs - distanceMs - 0.5)).toEqual([]);
      wheel.insert(dueMs + 0.25, 2 * value);
      wheel.insert(dueMs + 0.125, 2 * value + 1);
      order.push(2 * value, 2 * value + 1);
    }
    expect(expired(wheel, dueMs + 0.5)).toEqual(order);
  });

  test("beyond the instants of a Date is refused, and so is a clock that is no number", () => {
    const wheel = new Wheel(NOW_MS);
    for (const instantMs of [Number.NaN, Number.POSITIVE_INFINITY, 8.64e15 + 1]) {
      expect(() => wheel.insert(instantMs, 1)).toThrow(RangeError);
      expect(() => wheel.advance(instantMs, neverExpected)).toThrow(RangeError);
      expect(() => new Wheel(instantMs)).toThrow(RangeError);
    }
    expect(wheel.size).toBe(0);
  });
});

describe("a clock", () => {
  test("that jumps by ten years hands everything over in order, in work bounded by the timers", () => {
    const wheel = new Wheel(NOW_MS);
    const dueAts = Array.from({ length: 2_000 }, (_, i) => NOW_MS + ((i * 7_919) % 2_000) ** 3 + 1);
    for (const [value, dueMs] of dueAts.entries()) wheel.insert(dueMs, value);
    const values = expired(wheel, NOW_MS + TEN_YEARS_MS);
    expect(values.map((value) => dueAts[value])).toEqual(dueAts.toSorted((a, b) => a - b));
    expect(wheel.nextAt()).toBe(Number.POSITIVE_INFINITY);
  });

  test("that goes backwards changes nothing, and a sleeper until nextAt does not spin", () => {
    const wheel = new Wheel(NOW_MS);
    wheel.advance(NOW_MS + 1_000, neverExpected);
    wheel.insert(NOW_MS + 500, 1);
    wheel.insert(NOW_MS + 2_000, 2);
    expect(wheel.advance(NOW_MS + 999.9, neverExpected)).toBe(0);
    expect(wheel.nextAt()).toBe(NOW_MS + 1_000);
    expect(expired(wheel, NOW_MS + 1_000)).toEqual([1]);
    expect(expired(wheel, NOW_MS + 2_000)).toEqual([2]);
  });
});

describe("nextAt", () => {
  test("lets a wheel with one timer ten years away sleep, but for a few wakes", () => {
    const wheel = new Wheel(NOW_MS);
    wheel.insert(NOW_MS + TEN_YEARS_MS, 1);
    expect(wheel.nextAt()).toBeGreaterThan(NOW_MS + TEN_YEARS_MS / 20);
    expect(sleepUntilExpiry(wheel)).toEqual({ values: [1], atMs: NOW_MS + TEN_YEARS_MS });
  });

  test("is Infinity for an empty wheel, also after the last timer was canceled", () => {
    const wheel = new Wheel(NOW_MS);
    expect(wheel.nextAt()).toBe(Number.POSITIVE_INFINITY);
    for (const aheadMs of [0, 1, 300, 70_000, TEN_YEARS_MS]) {
      expect(wheel.cancel(wheel.insert(NOW_MS + aheadMs, 1))).toBe(true);
      expect(wheel.nextAt()).toBe(Number.POSITIVE_INFINITY);
    }
  });
});

describe("expire", () => {
  test("may insert what is due already: a timer that renews itself does not hold the advance", () => {
    const wheel = new Wheel(NOW_MS);
    wheel.insert(NOW_MS + 1, 1);
    const renew = (value: number) => {
      wheel.insert(NOW_MS, value + 1);
    };
    expect(wheel.advance(NOW_MS + 3_600_000, renew)).toBe(1);
    expect(wheel.nextAt()).toBe(NOW_MS + 3_600_000);
    expect(expired(wheel, NOW_MS + 3_600_000)).toEqual([2]);
  });

  test("may insert between now and what is still to be handed over", () => {
    const wheel = new Wheel(NOW_MS);
    for (let value = 0; value < 100; value++) wheel.insert(NOW_MS + 10 * value, value);
    const values: number[] = [];
    wheel.advance(NOW_MS + 2_000, (value) => {
      values.push(value);
      // Enough of them that the arrays are replaced while the loop runs.
      for (let i = 0; i < 50; i++) wheel.insert(NOW_MS + 2_000 + i, 1_000 + i);
    });
    expect(values).toEqual(Array.from({ length: 100 }, (_, i) => i));
    expect(wheel.size).toBe(5_000);
    expect(expired(wheel, NOW_MS + 2_000)).toEqual(Array.from({ length: 100 }, () => 1_000));
  });

  test("may cancel what is due in the same advance", () => {
    const wheel = new Wheel(NOW_MS);
    wheel.insert(NOW_MS + 1, 1);
    const sameTick = wheel.insert(NOW_MS + 1, 2);
    const laterTick = wheel.insert(NOW_MS + 400, 3);
    wheel.insert(NOW_MS + 400, 4);
    const values: number[] = [];
    const expiredCount = wheel.advance(NOW_MS + 500, (value) => {
      values.push(value);
      if (value === 1) expect([wheel.cancel(sameTick), wheel.cancel(laterTick)]).toEqual([true, true]);
    });
    expect(values).toEqual([1, 4]);
    expect(expiredCount).toBe(2);
    expect(wheel.cancel(sameTick)).toBe(false);
  });

  test("that throws loses nothing but the value it was given", () => {
    const wheel = new Wheel(NOW_MS);
    for (let value = 0; value < 4; value++) wheel.insert(NOW_MS + value, value);
    const fail = () => {
      throw new Error("refused");
    };
    expect(() => wheel.advance(NOW_MS + 10, fail)).toThrow("refused");
    expect(wheel.nextAt()).toBe(NOW_MS + 10);
    expect(expired(wheel, NOW_MS + 10)).toEqual([1, 2, 3]);
    expect(wheel.size).toBe(0);
  });
});

describe("a handle", () => {
  test("is refused once its timer expired or was canceled, also when the place is used again", () => {
    const wheel = new Wheel(NOW_MS);
    const canceled = wheel.insert(NOW_MS + 1, 1);
    expect(wheel.cancel(canceled)).toBe(true);
    expect(wheel.cancel(canceled)).toBe(false);
    const reused = wheel.insert(NOW_MS + 1, 2);
    expect(wheel.cancel(canceled)).toBe(false);
    expect(expired(wheel, NOW_MS + 1)).toEqual([2]);
    wheel.insert(NOW_MS + 2, 3);
    expect(wheel.cancel(reused)).toBe(false);
    expect(wheel.size).toBe(1);
  });

  test("is refused after its memory was given back, and after it was taken anew", () => {
    const wheel = new Wheel(NOW_MS);
    const fill = () => Array.from({ length: 5_000 }, (_, value) => wheel.insert(NOW_MS + 1, value));
    const stale = fill();
    for (const handle of stale) expect(wheel.cancel(handle)).toBe(true);
    expect(stale.some((handle) => wheel.cancel(handle))).toBe(false);
    const fresh = fill();
    expect(stale.some((handle) => wheel.cancel(handle))).toBe(false);
    expect(fresh.every((handle) => wheel.cancel(handle))).toBe(true);
  });

  test("is never 0, and numbers that are no handles are refused", () => {
    const wheel = new Wheel(NOW_MS);
    expect(wheel.insert(NOW_MS + 1, 0)).toBeGreaterThan(0);
    for (const handle of [0, 1, 3, -1, Number.NaN, Number.POSITIVE_INFINITY, Number.MAX_SAFE_INTEGER]) {
      expect(wheel.cancel(handle)).toBe(false);
    }
    expect(wheel.size).toBe(1);
  });
});

describe("memory", () => {
  const BURST = 1_000_000;
  const BASE_BYTES = new Wheel(NOW_MS).bytes;

  test("of an empty wheel is small", () => {
    expect(BASE_BYTES).toBeLessThan(8_192);
  });

  test("returns to its base after a burst of a million expired or was canceled", () => {
    const wheel = new Wheel(NOW_MS);
    const handles = Array.from({ length: BURST }, (_, i) => wheel.insert(NOW_MS + (i % 60_000), i));
    expect(wheel.bytes / BURST).toBeLessThanOrEqual(40);
    for (const handle of handles) wheel.cancel(handle);
    expect(wheel.bytes).toBe(BASE_BYTES);

    for (let i = 0; i < BURST; i++) wheel.insert(NOW_MS + ((i * 7_919) % 60_000), i);
    expect(wheel.advance(NOW_MS + 60_000, () => {})).toBe(BURST);
    expect(wheel.bytes).toBe(BASE_BYTES);
  });

  test("shrinks after a burst although the wheel is never empty", () => {
    const wheel = new Wheel(NOW_MS);
    for (let i = 0; i < 100_000; i++) wheel.insert(NOW_MS + ((i * 7_919) % 60_000), i);
    const burstBytes = wheel.bytes;
    // Then ten timers a second, each for a minute; a horizon later only what they need is left.
    for (let elapsedMs = 0; elapsedMs < 1_200_000; elapsedMs += 100) {
      wheel.insert(NOW_MS + elapsedMs + 60_000, 1);
      wheel.advance(NOW_MS + elapsedMs, () => {});
    }
    expect(wheel.size).toBe(600);
    expect(wheel.bytes).toBeLessThan(burstBytes / 20);
    expect(wheel.bytes).toBeLessThanOrEqual(BASE_BYTES + 2_400 * 24);
  });

  test("does not move while timers come and go", () => {
    const wheel = new Wheel(NOW_MS);
    for (let i = 0; i < 1_000; i++) wheel.insert(NOW_MS + i, i);
    const { bytes } = wheel;
    for (let i = 1; i < 100_000; i++) {
      wheel.cancel(wheel.insert(NOW_MS + i + 500, i));
      wheel.advance(NOW_MS + i, (value) => wheel.insert(NOW_MS + i + 1_000, value));
      if (wheel.bytes !== bytes) throw new Error(`${wheel.bytes} bytes after ${i} ms, ${bytes} before`);
    }
    expect(wheel.size).toBe(1_000);
  });
});

describe("model", () => {
  const seed = Number(process.env.WHEEL_SEED ?? Date.now() % 2 ** 31);
  const RUNS = 400;

  test(`a wheel and a sorted list agree, WHEEL_SEED=${seed}`, () => {
    const distanceMs = fc
      .tuple(
        fc.integer({ min: 0, max: 39 }),
        fc.integer({ min: -2, max: 2 }),
        fc.constantFrom(0, 0, 0.25, 0.75),
      )
      .map(([bits, offset, fraction]) => 2 ** bits + offset + fraction);
    const nearMs = fc.integer({ min: -40, max: 4_000 }).map((quarters) => quarters / 4);
    const aheadMs = fc.oneof(nearMs, fc.double({ min: 0, max: 60_000, noNaN: true }), distanceMs);
    const command = fc.oneof(
      { weight: 6, arbitrary: fc.record({ act: fc.constant("insert" as const), ms: aheadMs }) },
      { weight: 2, arbitrary: fc.record({ act: fc.constant("cancel" as const), pick: fc.nat() }) },
      { weight: 3, arbitrary: fc.record({ act: fc.constant("advance" as const), ms: aheadMs }) },
      { weight: 2, arbitrary: fc.record({ act: fc.constant("sleep" as const) }) },
    );
    const startMs = fc.oneof(
      fc.constantFrom(0, NOW_MS, NOW_MS + 0.5, 2 ** 40 - 1, 2 ** 41 - 0.25, 27 * 2 ** 36 - 300),
      fc.double({ min: -1e13, max: 1e13, noNaN: true }),
    );
    fc.assert(
      fc.property(startMs, fc.array(command, { maxLength: 300, size: "max" }), (start, commands) => {
        const pair = new Pair(start);
        for (const each of commands) {
          if (each.act === "insert") pair.insert(pair.nowMs + each.ms);
          else if (each.act === "cancel") pair.cancel(each.pick);
          else if (each.act === "advance") pair.advance(pair.nowMs + each.ms);
          else pair.sleep();
          pair.compare();
        }
      }),
      { seed, numRuns: RUNS },
    );
  });
});

type Entry = { dueMs: number; value: number; handle: number; state: "waiting" | "expired" | "canceled" };

/** A wheel and a plain list that is sorted anew at each advance, driven by the same calls. */
class Pair {
  nowMs: number;
  private readonly wheel: Wheel;
  private readonly entries: Entry[] = [];

  constructor(startMs: number) {
    this.nowMs = startMs;
    this.wheel = new Wheel(startMs);
  }

  insert(dueMs: number): void {
    const value = this.entries.length;
    const handle = this.wheel.insert(dueMs, value);
    this.entries.push({ dueMs: Math.max(dueMs, this.nowMs), value, handle, state: "waiting" });
  }

  cancel(pick: number): void {
    const entry = this.entries[pick % Math.max(1, this.entries.length)];
    if (entry === undefined) return;
    expect(this.wheel.cancel(entry.handle)).toBe(entry.state === "waiting");
    if (entry.state === "waiting") entry.state = "canceled";
  }

  advance(nowMs: number): number {
    const due: Entry[] = [];
    if (nowMs >= this.nowMs) {
      this.nowMs = nowMs;
      due.push(...this.waiting().filter((entry) => entry.dueMs <= nowMs));
      due.sort((a, b) => Math.floor(a.dueMs) - Math.floor(b.dueMs) || a.value - b.value);
    }
    let expectedCount = 0;
    const expiredCount = this.wheel.advance(nowMs, (value) => {
      while (due[0]?.state === "canceled") due.shift();
      const entry = due.shift();
      expect(value).toBe(entry?.value ?? -1);
      if (entry === undefined) return;
      entry.state = "expired";
      expectedCount++;
      if (value % 5 === 0) this.insert(nowMs + value - 7);
      if (value % 7 === 0) this.cancel(value + 1);
      if (value % 11 === 0) this.cancel(due.at(-1)?.value ?? 0);
    });
    expect(due.filter((entry) => entry.state === "waiting")).toEqual([]);
    expect(expiredCount).toBe(expectedCount);
    return expiredCount;
  }

  /** Sleeps as a worker without other work does: it wakes at nextAt, and a few wakes later something is due. */
  sleep(): void {
    for (let wakes = 0; this.waiting().length > 0; wakes++) {
      expect(wakes).toBeLessThan(WAKES_MAX);
      if (this.advance(this.wheel.nextAt()) > 0) return;
    }
  }

  compare(): void {
    const waiting = this.waiting();
    const soonestMs = waiting.reduce((soonest, entry) => Math.min(soonest, entry.dueMs), Infinity);
    expect(this.wheel.size).toBe(waiting.length);
    expect(this.wheel.nextAt()).toBeLessThanOrEqual(soonestMs);
    expect(this.wheel.nextAt()).toBeGreaterThanOrEqual(this.nowMs);
    if (waiting.length === 0) expect(this.wheel.nextAt()).toBe(Infinity);
  }

  private waiting(): Entry[] {
    return this.entries.filter((entry) => entry.state === "waiting");
  }
}

function expired(wheel: Wheel, nowMs: number): number[] {
  const values: number[] = [];
  expect(wheel.advance(nowMs, (value) => values.push(value))).toBe(values.length);
  return values;
}

function sleepUntilExpiry(wheel: Wheel): { values: number[]; atMs: number } {
  for (let wakes = 0; wakes < WAKES_MAX; wakes++) {
    const atMs = wheel.nextAt();
    const values = expired(wheel, atMs);
    if (values.length > 0) return { values, atMs };
    expect(wheel.nextAt()).toBeGreaterThan(atMs);
  }
  throw new Error(`nothing expired within ${WAKES_MAX} wakes`);
}

function neverExpected(value: number): void {
  throw new Error(`${value} expired`);
}
