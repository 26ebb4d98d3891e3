import { describe, expect, test } from "bun:test";
import type { Connection } from "./connection.ts";
import { Pool } from "./pool.ts";

const ORIGIN = "https://a.example";
const TICK_MS = 25;

/** A pool and its time, which passes in ticks as the client's does. */
class Trial {
  now = 1_000;
  readonly pool = new Pool();
  readonly closed: string[] = [];

  /** A connection that becomes idle now. */
  keep(name: string, wish: Partial<Connection> = {}): Connection {
    const connection = {
      origin: ORIGIN,
      openedAt: this.now,
      idleSince: this.now,
      answeredCount: 1,
      keepAliveMs: null,
      ...wish,
      close: () => {
        this.closed.push(name);
        this.pool.remove(connection, "ours", this.now);
      },
    } as unknown as Connection;
    this.pool.keep(connection);
    return connection;
  }

  pass(ms: number): void {
    for (const end = this.now + ms; this.now < end; ) {
      this.now += TICK_MS;
      this.pool.sweep(this.now);
    }
  }

  /** For how long a connection may be used from now on. */
  usableMs(wish: Partial<Connection> = {}): number {
    const connection = this.keep("probe", { openedAt: this.now, idleSince: this.now, ...wish });
    const from = this.now;
    while (this.pool.has(ORIGIN, this.now) && this.now < from + 10_000) this.now += 5;
    this.pool.remove(connection, "ours", this.now);
    return this.now - from;
  }
}

describe("an idle connection", () => {
  test("is used for a tenth of a second while nothing is known of its host", () => {
    expect(new Trial().usableMs()).toBe(100);
  });

  test("is used for half as long as its host was seen to keep one, up to 2 s", () => {
    const trial = new Trial();
    trial.keep("first");
    trial.pass(1_000);
    expect(trial.usableMs()).toBeWithin(450, 501);
    trial.pass(5_000);
    expect(trial.closed).toEqual(["first"]);
    expect(trial.usableMs()).toBeWithin(1_950, 2_001);
  });

  test("is used for half as long as its host was seen to keep one before it closed it", () => {
    const trial = new Trial();
    trial.keep("long");
    trial.pass(1_600);
    const short = trial.keep("short");
    trial.pass(200);
    trial.pool.remove(short, "idle", trial.now);
    expect(trial.usableMs()).toBeWithin(80, 101);
    // A connection is also kept for no longer than it may be used.
    trial.keep("next");
    trial.pass(125);
    expect(trial.closed.at(-1)).toBe("next");
  });

  test("of a host whose close was seen late is used for no longer than it was surely kept", () => {
    const trial = new Trial();
    const connection = trial.keep("frozen");
    trial.pass(200);
    // The process stands still, and hears of the close when it wakes.
    trial.now += 1_000;
    trial.pool.remove(connection, "idle", trial.now);
    expect(trial.usableMs()).toBeLessThanOrEqual(100);
  });

  test("that was idle while the process stood still proves nothing", () => {
    const trial = new Trial();
    trial.keep("frozen");
    trial.pass(100);
    trial.now += 1_400;
    trial.pool.sweep(trial.now);
    expect(trial.usableMs()).toBe(100);
  });

  test.each([
    [0, 0],
    [1_000, 500],
    [5_000, 2_000],
  ])("of a target that says it keeps it for %d ms is used for %d ms", (keepAliveMs, usableMs) => {
    expect(new Trial().usableMs({ keepAliveMs })).toBe(usableMs);
  });

  test("is not kept once it has answered as often as one that its host closed then", () => {
    const trial = new Trial();
    const tenth = trial.keep("tenth", { answeredCount: 10 });
    trial.pool.remove(tenth, "idle", trial.now + 1);
    expect(trial.usableMs({ answeredCount: 9 })).toBe(100);
    expect(trial.usableMs({ answeredCount: 10 })).toBe(0);
    // Ten minutes later the host may have other habits.
    trial.now += 600_001;
    expect(trial.usableMs({ answeredCount: 10 })).toBe(100);
  });

  test("is not kept either if the process saw that close late, or waited for the answer", () => {
    const seenLate = new Trial();
    const idle = seenLate.keep("idle", { answeredCount: 10 });
    // The timers of a loop that was held up come before its sockets.
    seenLate.now += 100;
    seenLate.pool.sweep(seenLate.now);
    seenLate.pool.remove(idle, "idle", seenLate.now);
    expect(seenLate.usableMs({ answeredCount: 10 })).toBe(0);

    const unanswered = new Trial();
    unanswered.keep("used", { answeredCount: 10 });
    const used = unanswered.pool.take(ORIGIN, unanswered.now);
    if (used === null) throw new Error("none was kept");
    unanswered.pass(200);
    unanswered.pool.remove(used, "unanswered", unanswered.now);
    expect(unanswered.usableMs({ answeredCount: 10 })).toBe(0);
  });

  test("is closed with all others to its host that are kept, once one was closed in place of an answer", () => {
    const trial = new Trial();
    for (const name of ["a", "b", "c"]) trial.keep(name);
    trial.keep("elsewhere", { origin: "https://b.example" });
    const used = trial.pool.take(ORIGIN, trial.now);
    if (used === null) throw new Error("none was kept");
    trial.pool.remove(used, "unanswered", trial.now);
    expect(trial.closed.toSorted()).toEqual(["a", "b"]);
    expect(trial.pool.size).toBe(1);
  });

  test("that was used last is used first, and none for longer than a minute", () => {
    const trial = new Trial();
    const earlier = trial.keep("a");
    const latest = trial.keep("b");
    expect(trial.pool.take(ORIGIN, trial.now)).toBe(latest);
    expect(trial.pool.take("https://b.example", trial.now)).toBeNull();
    expect(trial.pool.take(ORIGIN, trial.now)).toBe(earlier);
    expect(trial.usableMs({ openedAt: trial.now - 60_000 })).toBe(0);
  });

  test("is closed if 4,096 others have been idle for less long", () => {
    const trial = new Trial();
    const [first] = Array.from({ length: 4_096 }, (_, place) =>
      trial.keep(`${place}`, { origin: `https://${place}.example` }),
    );
    expect(trial.pool.take(first?.origin ?? "", trial.now)).toBe(first as Connection);
    trial.pool.keep(first as Connection);
    trial.keep("late");
    expect(trial.closed).toEqual(["1"]);
    expect(trial.pool.size).toBe(4_096);
    trial.pass(4_100);
    expect(trial.pool.size).toBe(0);
  });
});
