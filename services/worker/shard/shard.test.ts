import { describe, expect, test } from "bun:test";
import { type Answer, SHARE_PAUSE_MS } from "../../../shared/bus/messages.ts";
import { SWEEP_LAG_MS } from "../../../shared/store/queue/sweep.ts";
import { NODE, owedOf, startShard, sweptOf } from "../test-support.ts";
import { ANSWER_TIMEOUT_MS } from "./shard.ts";

const NOW = 1_800_000_000_000;
const jobIds = (entries: readonly { id: string }[]) => entries.map((entry) => entry.id);

describe("what a shard is told", () => {
  test("is sent once it is due and not before, however often it is told", () => {
    const { shard, timers, send } = startShard(NOW);
    const owed = owedOf({ dueAt: NOW + 1_000.5 });
    expect([shard.learn(owed, NOW), shard.learn(owed, NOW), shard.learn({ ...owed }, NOW)]).toEqual([
      true,
      false,
      false,
    ]);
    expect(send(NOW + 1_000)).toEqual([]);
    expect(timers.nextAt()).toBeLessThanOrEqual(NOW + 1_000.5);
    expect(jobIds(send(NOW + 1_000.5))).toEqual([owed.id]);
    expect(shard.learn(owed, NOW + 1_001)).toBe(false);
    expect(send(NOW + 2_000)).toEqual([]);
  });

  test("is left to Postgres while it is further away than the horizon", () => {
    const { shard } = startShard(NOW);
    expect(shard.learn(owedOf({ dueAt: NOW + 60_001 }), NOW)).toBe(false);
    expect(shard.learn(owedOf({ dueAt: NOW + 60_000 }), NOW)).toBe(true);
    expect(shard.entryCount).toBe(1);
  });

  test("of the same attempt brought forward by a manual retry counts, and the old timer is gone", () => {
    const { shard, send, answer } = startShard(NOW);
    const owed = owedOf({ attempt: 2, dueAt: NOW + 30_000 });
    shard.learn(owed, NOW);
    expect(shard.learn({ ...owed, dueAt: NOW + 5 }, NOW + 5)).toBe(true);
    const [sent] = send(NOW + 5);
    expect(sent).toMatchObject({ id: owed.id, attempt: 2, dueAt: NOW + 5 });
    answer(owed, { kind: "granted" }, NOW + 6);
    expect(send(NOW + 40_000)).toEqual([]);
    expect(shard.entryCount).toBe(0);
  });

  test("of a later attempt replaces the earlier one, in whatever state that is; of an earlier one is stale", () => {
    for (const state of ["timed", "ready", "sent"]) {
      const { shard, send } = startShard(NOW);
      const owed = owedOf({ dueAt: state === "timed" ? NOW + 10 : NOW });
      shard.learn(owed, NOW);
      if (state === "sent") send(NOW);
      expect(shard.learn({ ...owed, attempt: 2, dueAt: NOW + 20 }, NOW)).toBe(true);
      expect(shard.learn(owed, NOW)).toBe(false);
      expect(send(NOW + 15)).toEqual([]);
      expect(send(NOW + 20)).toMatchObject([{ attempt: 2 }]);
    }
  });
});

describe("that gates stand before an attempt", () => {
  test("is known once anything has told it, of the later attempts too", () => {
    const { shard, send } = startShard(NOW);
    const owed = owedOf({ dueAt: NOW });
    shard.learn(owed, NOW);
    expect(shard.learn({ ...owed, isGated: true }, NOW)).toBe(false);
    shard.learn({ ...owed, attempt: 2 }, NOW);
    expect(send(NOW)).toMatchObject([{ attempt: 2, isGated: true }]);
  });
});

describe("what operators are shown of a shard", () => {
  test("is how much is ready, and the oldest of it that its lane may send; what is refused waits for its project", () => {
    const { shard, send, answer } = startShard(NOW);
    expect(shard.backlog(NOW)).toEqual({ readyCount: 0, oldestDueAt: null });
    const refused = owedOf({ dueAt: NOW - 9_000 });
    const [young, old] = [
      owedOf({ projectNo: 2, dueAt: NOW - 10 }),
      owedOf({ projectNo: 3, dueAt: NOW - 700 }),
    ];
    for (const owed of [refused, young, old]) shard.learn(owed, NOW);
    shard.learn(owedOf({ dueAt: NOW + 5_000 }), NOW);
    expect(shard.backlog(NOW)).toEqual({ readyCount: 3, oldestDueAt: NOW - 9_000 });
    send(NOW);
    expect(shard.backlog(NOW)).toEqual({ readyCount: 0, oldestDueAt: null });
    answer(refused, { kind: "no_permit", returned: 0 }, NOW);
    answer(old, { kind: "node_full" }, NOW);
    expect(shard.backlog(NOW)).toEqual({ readyCount: 2, oldestDueAt: NOW - 700 });
    shard.learn({ ...old, attempt: 2, dueAt: NOW + 50 }, NOW);
    expect(shard.backlog(NOW).oldestDueAt).toBeNull();
  });

  test("is the attempt that is sent next, also if one that was put off has come due again behind it", () => {
    const { shard, send, answer, advance } = startShard(NOW);
    const [putOff, next] = [owedOf({ dueAt: NOW - 9_000 }), owedOf({ dueAt: NOW - 700 })];
    for (const owed of [putOff, next, owedOf({ dueAt: NOW - 10 })]) shard.learn(owed, NOW);
    expect(jobIds(send(NOW, 1))).toEqual([putOff.id]);
    answer(putOff, { kind: "early", waitMs: 900 }, NOW);
    advance(NOW + 900);
    expect(shard.backlog(NOW + 900)).toEqual({ readyCount: 3, oldestDueAt: NOW - 700 });
    expect(jobIds(send(NOW + 900, 1))).toEqual([next.id]);
  });
});

describe("what is granted late", () => {
  const grant = (started: ReturnType<typeof startShard>, now: number) => {
    for (const entry of started.send(now)) started.answer(entry, { kind: "granted" }, now);
    return started.granted.splice(0).map(({ waitedFor }) => waitedFor);
  };

  test("was not held back if no answer said so, whatever else kept it waiting", () => {
    const started = startShard(NOW);
    started.shard.learn(owedOf({ dueAt: NOW }), NOW);
    for (const entry of started.send(NOW)) started.answer(entry, { kind: "node_full" }, NOW + 5_000);
    expect(grant(started, NOW + 5_000)).toEqual([null]);
  });

  test("was not held back by a delivery node whose clock was behind", () => {
    const started = startShard(NOW);
    started.shard.learn(owedOf({ dueAt: NOW }), NOW);
    for (const entry of started.send(NOW)) started.answer(entry, { kind: "early", waitMs: 3 }, NOW);
    expect(grant(started, NOW + 5_000)).toEqual([null]);
  });

  test("was not held back if delivery nodes were full and its project had its share of them", () => {
    const started = startShard(NOW);
    started.shard.learn(owedOf({ dueAt: NOW }), NOW);
    const crowded = { kind: "blocked", untilAt: NOW + SHARE_PAUSE_MS } as const;
    for (const entry of started.send(NOW)) started.answer(entry, crowded, NOW);
    started.shard.tidy(NOW + 5_000);
    expect(grant(started, NOW + 5_000)).toEqual([null]);
  });

  test("was held back if its project's limit, quota or hold, its flow key or its host refused it since it was due", () => {
    const monthEnd = Date.UTC(2099, 1);
    const noes = [
      [{ kind: "no_permit", returned: 0 }, "concurrency"],
      [{ kind: "early", waitMs: 200 }, "concurrency"],
      [{ kind: "early", waitMs: 900 }, "host"],
      [{ kind: "early", waitMs: 200, putOffFor: "host" }, "host"],
      [{ kind: "early", waitMs: 200, putOffFor: "flow" }, "flow"],
      [{ kind: "early", waitMs: 900, putOffFor: "flow" }, "flow"],
      [{ kind: "queued", waitMs: 900 }, "flow"],
      [{ kind: "blocked", untilAt: NOW + 5_000 }, "hold"],
      [{ kind: "blocked", untilAt: monthEnd }, "quota"],
    ] as const;
    for (const [no, reason] of noes) {
      const started = startShard(NOW);
      started.shard.learn(owedOf({ dueAt: NOW }), NOW);
      for (const entry of started.send(NOW)) started.answer(entry, no, NOW);
      started.advance(NOW + 5_000);
      started.shard.freed({ projectNo: 1, returned: 1 }, NOW + 5_000);
      started.shard.tidy(NOW + 5_000);
      expect(grant(started, NOW + 5_000)).toEqual([reason]);
    }
  });

  test("was held back by a lane that stood still when it came due, and not by one that had gone on before", () => {
    const started = startShard(NOW);
    const [first, second] = [owedOf({ dueAt: NOW }), owedOf({ dueAt: NOW + 1_000 })];
    for (const owed of [first, second]) started.shard.learn(owed, NOW);
    for (const entry of started.send(NOW)) started.answer(entry, { kind: "no_permit", returned: 0 }, NOW);
    started.advance(NOW + 1_000);
    started.shard.freed({ projectNo: 1, returned: 9 }, NOW + 4_000);
    started.shard.learn(owedOf({ dueAt: NOW + 4_001 }), NOW + 4_001);
    expect(grant(started, NOW + 9_000)).toEqual(["concurrency", "concurrency", null]);
  });
});

describe("answers", () => {
  test("granted and gone are the end of an entry; what is not held any more is ignored", () => {
    const { shard, send, answer } = startShard(NOW);
    const [one, other] = [owedOf(), owedOf()];
    for (const owed of [one, other]) shard.learn(owed, NOW);
    send(NOW);
    answer(one, { kind: "granted" }, NOW);
    answer(other, { kind: "gone" }, NOW);
    answer(other, { kind: "no_permit", returned: 0 }, NOW);
    answer(owedOf(), { kind: "granted" }, NOW);
    expect(shard.entryCount).toBe(0);
    expect(send(NOW)).toEqual([]);
  });

  test("gone loses no call of the gate at which the attempt was parked, if the call overtakes it", () => {
    for (const calledFor of [NOW + 4, NOW + 50]) {
      const { shard, send, answer } = startShard(NOW);
      const owed = owedOf({ dueAt: NOW });
      shard.learn(owed, NOW);
      send(NOW);
      shard.learn({ ...owed, dueAt: calledFor }, NOW + 5);
      answer(owed, { kind: "gone" }, NOW + 6);
      expect(jobIds(send(NOW + 6))).toEqual(calledFor <= NOW + 6 ? [owed.id] : []);
      expect(jobIds(send(NOW + 50))).toEqual(calledFor <= NOW + 6 ? [] : [owed.id]);
      answer(owed, { kind: "gone" }, NOW + 51);
      expect(shard.entryCount).toBe(0);
    }
  });

  test("early arms the timer again, by what the database said is left", () => {
    const { shard, send, answer } = startShard(NOW);
    const owed = owedOf();
    shard.learn(owed, NOW);
    send(NOW);
    answer(owed, { kind: "early", waitMs: 12.25 }, NOW + 3);
    expect(send(NOW + 15)).toEqual([]);
    expect(jobIds(send(NOW + 15.25))).toEqual([owed.id]);
    answer(owed, { kind: "granted" }, NOW + 16);
    expect(shard.entryCount).toBe(0);
  });

  test("early by far is forgotten, so that it is heard of when it is brought forward", () => {
    const { shard, send, answer } = startShard(NOW);
    const owed = owedOf();
    shard.learn(owed, NOW);
    send(NOW);
    answer(owed, { kind: "early", waitMs: 86_400_000 }, NOW);
    expect(shard.entryCount).toBe(0);
    shard.learn({ ...owed, dueAt: NOW + 5_000 }, NOW + 5_000);
    expect(jobIds(send(NOW + 5_000))).toEqual([owed.id]);
  });

  test("early that is owed sooner than it was put off until, since its limit was raised, is sent then and once", () => {
    const { shard, send, answer } = startShard(NOW);
    const owed = owedOf();
    shard.learn(owed, NOW);
    send(NOW);
    answer(owed, { kind: "early", waitMs: 30_000 }, NOW);
    // Sweeps find the old due instant meanwhile, and late messages from before are no news.
    for (const dueAt of [owed.dueAt, NOW + 29_990, NOW + 30_000])
      expect(shard.learn({ ...owed, dueAt }, NOW + 10)).toBe(false);
    expect(shard.learn({ ...owed, dueAt: NOW + 20 }, NOW + 10)).toBe(true);
    expect(send(NOW + 19)).toEqual([]);
    expect(jobIds(send(NOW + 20))).toEqual([owed.id]);
    answer(owed, { kind: "granted" }, NOW + 21);
    expect(send(NOW + 31_000)).toEqual([]);
    expect(shard.entryCount).toBe(0);
  });

  test("node_full sends again at once, before what came later", () => {
    const { shard, send, answer } = startShard(NOW);
    const [one, two] = [owedOf({ dueAt: 1 }), owedOf({ dueAt: 2 })];
    for (const owed of [one, two]) shard.learn(owed, NOW);
    expect(jobIds(send(NOW, 1))).toEqual([one.id]);
    answer(one, { kind: "node_full" }, NOW);
    expect(jobIds(send(NOW))).toEqual([one.id, two.id]);
  });

  test("blocked puts the lane aside and nobody else, and looks again within seconds whatever it was told", () => {
    const { shard, send, answer } = startShard(NOW);
    const [held, free] = [owedOf(), owedOf({ projectNo: 2 })];
    shard.learn(held, NOW);
    send(NOW);
    answer(held, { kind: "blocked", untilAt: NOW + 86_400_000 }, NOW);
    shard.learn(free, NOW);
    shard.learn(owedOf(), NOW);
    expect(jobIds(send(NOW))).toEqual([free.id]);
    shard.tidy(NOW + 4_999);
    expect(send(NOW + 4_999)).toEqual([]);
    shard.tidy(NOW + 5_000);
    expect(send(NOW + 5_000)).toHaveLength(2);
  });

  test("blocked until an instant that is over by the worker's clock does not send the entry again at once", () => {
    const { shard, send, answer } = startShard(NOW);
    const owed = owedOf();
    shard.learn(owed, NOW);
    send(NOW);
    answer(owed, { kind: "blocked", untilAt: NOW - 1_000 }, NOW);
    expect(send(NOW + SHARE_PAUSE_MS - 1)).toEqual([]);
    shard.tidy(NOW + SHARE_PAUSE_MS);
    expect(jobIds(send(NOW + SHARE_PAUSE_MS))).toEqual([owed.id]);
  });
});

describe("answers that do not come", () => {
  test("are given up after a while, and the sweep finds what is still owed, wherever it begins", () => {
    const { shard, send, sweep } = startShard(NOW);
    const owed = owedOf({ dueAt: NOW });
    shard.learn(owed, NOW);
    send(NOW);
    let now = NOW;
    for (; now <= NOW + ANSWER_TIMEOUT_MS + 2 * SWEEP_LAG_MS; now += 1_000) sweep([owed], now);
    expect(jobIds(send(now))).toEqual([owed.id]);
  });

  test("are counted, so that the nodes' room is not lost with them", () => {
    const { shard, send } = startShard(NOW);
    for (let count = 0; count < 5; count++) shard.learn(owedOf(), NOW);
    send(NOW);
    const owing = Array.from({ length: 5 }, () => NODE);
    expect(shard.sentTo()).toEqual(owing);
    expect(shard.tidy(NOW + ANSWER_TIMEOUT_MS - 1)).toEqual([]);
    expect(shard.tidy(NOW + ANSWER_TIMEOUT_MS)).toEqual(owing);
    expect(shard.tidy(NOW + ANSWER_TIMEOUT_MS)).toEqual([]);
    expect(shard.sentTo()).toEqual([]);
  });

  test("are counted, once, although a later attempt was heard of meanwhile", () => {
    const { shard, send } = startShard(NOW);
    const owed = owedOf({ dueAt: NOW });
    shard.learn(owed, NOW);
    send(NOW);
    shard.learn({ ...owed, attempt: 2 }, NOW);
    expect(shard.sentTo()).toEqual([NODE]);
    expect(shard.tidy(NOW)).toEqual([NODE]);
    expect(shard.tidy(NOW + ANSWER_TIMEOUT_MS)).toEqual([]);
  });
});

describe("a row that appears long after it was due, because its commit hung", () => {
  test.each([true, false])("is found within a minute (in a lane that is remembered: %p)", (isRemembered) => {
    const { send, sweep } = startShard(NOW);
    const late = owedOf({ dueAt: NOW });
    const future = owedOf({ dueAt: NOW + 300_000 });
    let now = NOW;
    for (; now <= NOW + 90_000; now += 1_000)
      sweep(isRemembered ? [{ ...future, dueAt: now + 1_400 }] : [], now);
    for (; now <= NOW + 155_000; now += 1_000)
      sweep(isRemembered ? [late, { ...future, dueAt: now + 1_400 }] : [late], now);
    expect(jobIds(send(now))).toContain(late.id);
  });
});

describe("a lane that holds as much as it may", () => {
  test("leaves the rest to Postgres and asks for it in time", () => {
    const { shard, send, low, answer, lane } = startShard(NOW);
    const owed = Array.from({ length: 100 }, (_, n) => owedOf({ dueAt: NOW - 100 + n }));
    for (const attempt of owed) shard.learn(attempt, NOW);
    expect(shard.entryCount).toBe(64);
    for (const entry of send(NOW)) answer(entry, { kind: "granted" }, NOW);
    const known = lane();
    expect(low.length).toBeGreaterThan(0);
    if (known === undefined) throw new Error("a lane with more to come was forgotten");
    const question = known.ask(NOW);
    expect(question).toMatchObject({ projectNo: 1, room: 64 });
    const rest = owed.slice(64).map((attempt) => sweptOf(attempt));
    expect(shard.refilled({ ...known.name, sinceAt: 0, room: 64 }, rest, NOW, NOW)).toBe(36);
    expect(jobIds(send(NOW))).toEqual(jobIds(rest));
  });

  test("asks no more once its shard is lost, although a refill comes that was under way", () => {
    const { shard, low, lane, timers } = startShard(NOW);
    for (let n = 0; n < 100; n++) shard.learn(owedOf({ dueAt: NOW - 100 + n }), NOW);
    const known = lane();
    if (known === undefined) throw new Error("nothing is remembered");
    low.length = 0;
    shard.end();
    const rows = Array.from({ length: 64 }, () => sweptOf(owedOf({ dueAt: NOW + 10 })));
    expect(shard.refilled({ ...known.name, sinceAt: 0, room: 64 }, rows, NOW, NOW)).toBe(0);
    expect([low.length, timers.nextAt()]).toEqual([0, Number.POSITIVE_INFINITY]);
  });

  test("asks again although the last refill did not fit beside what it was told of", () => {
    const { shard, send, answer, sweep } = startShard(NOW);
    const told = Array.from({ length: 64 }, () => owedOf({ dueAt: NOW }));
    const older = Array.from({ length: 200 }, (_, n) => owedOf({ dueAt: NOW - 200 + n }));
    for (const attempt of told) shard.learn(attempt, NOW);
    const owed = new Map([...told, ...older].map((attempt) => [attempt.id, attempt]));
    for (let now = NOW; now < NOW + 30_000; now += 1_000) {
      sweep([...owed.values()], now, 10);
      for (const entry of send(now)) {
        owed.delete(entry.id);
        answer(entry, { kind: "granted" }, now);
      }
    }
    expect(owed.size).toBe(0);
  });

  test("knows after its first refill that there is more, although it did not know the project's limit when it asked", () => {
    const { shard, low, lane } = startShard(NOW);
    shard.learn(owedOf({ dueAt: NOW }), NOW);
    const known = lane();
    if (known === undefined) throw new Error("no lane");
    const question = known.ask(NOW);
    const rows = Array.from({ length: question?.room ?? 0 }, () => sweptOf(owedOf({ dueAt: NOW - 5 }), 500));
    expect(low).toEqual([]);
    if (question !== null) shard.refilled(question, rows, NOW, NOW);
    expect(low).toContain(known);
  });

  test("looks in Postgres for what was put off, however long ago that was due, if it is full when it may be sent again", () => {
    const { shard, advance, send, answer, lane } = startShard(NOW);
    const putOff = owedOf({ dueAt: NOW });
    shard.learn(putOff, NOW);
    send(NOW);
    answer(putOff, { kind: "early", waitMs: 50_000 }, NOW);
    const later = NOW + 40_000;
    const known = lane();
    const question = known?.ask(later);
    if (known === undefined || question == null) throw new Error("nothing is asked for");
    shard.refilled(question, [], later, later);
    for (let n = 0; n < 64; n++) shard.learn(owedOf({ dueAt: later }), later);
    for (let n = 0; n < 2_000; n++) shard.learn(owedOf({ dueAt: later + 1_000 }), later);
    advance(later + 1_000);
    shard.learn(owedOf({ dueAt: later + 2_000 }), later + 1_000);
    expect(known.ask(later + 1_000)?.sinceAt).toBeGreaterThan(putOff.dueAt);
    advance(NOW + 50_000);
    expect(known.find(putOff.id)).toBeUndefined();
    expect(known.ask(NOW + 50_000)?.sinceAt).toBeLessThanOrEqual(putOff.dueAt);
  });
});

describe("a lane with many entries that were put off", () => {
  /** A lane with 2,000 entries, all of them answered, that knows of more in Postgres. Whether it asks for more. */
  function asksFor(answer: Answer): boolean {
    const started = startShard(NOW);
    const older = Array.from({ length: 2_000 }, (_, n) => owedOf({ dueAt: NOW - 2_000 + n }));
    started.sweep(older, NOW, 1_000);
    for (let sent = started.send(NOW); sent.length > 0; sent = started.send(NOW))
      for (const entry of sent) started.answer(entry, answer, NOW);
    const known = started.lane();
    if (known === undefined) throw new Error("nothing is remembered");
    expect(known.size).toBe(2_000);
    return known.wantsRefill(NOW);
  }

  test("asks for what lies behind them only while few of them are still due in Postgres", () => {
    expect(asksFor({ kind: "early", waitMs: 30_000, putOffFor: "flow" })).toBe(true);
    expect(asksFor({ kind: "early", waitMs: 30_000 })).toBe(false);
    expect(asksFor({ kind: "queued", waitMs: 30_000 })).toBe(false);
  });
});

describe("an attempt that is queued at a delivery node", () => {
  const queued = () => {
    const started = startShard(NOW);
    const owed = owedOf({ dueAt: NOW, keyHash: 7 });
    started.sweep([owed], NOW, 10);
    expect(started.send(NOW)).toMatchObject([{ id: owed.id, keyHash: 7 }]);
    return { ...started, owed };
  };

  test("is sent again after its wait if nothing tells that it has begun", () => {
    const { answer, owed, send, advance } = queued();
    answer(owed, { kind: "queued", waitMs: 800 }, NOW);
    advance(NOW + 799);
    expect(send(NOW + 799)).toEqual([]);
    advance(NOW + 800);
    expect(send(NOW + 800)).toMatchObject([{ id: owed.id }]);
  });

  test("is forgotten once it has begun, unless a later attempt is owed", () => {
    const { shard, answer, owed } = queued();
    answer(owed, { kind: "queued", waitMs: 800 }, NOW);
    shard.begun({ ...owed, attempt: 0 }, NOW);
    expect(shard.entryCount).toBe(1);
    shard.begun(owed, NOW);
    expect(shard.entryCount).toBe(0);
  });

  test("is forgotten with the answer if that comes after the news that it has begun", () => {
    const { shard, answer, owed } = queued();
    shard.begun(owed, NOW);
    expect(shard.entryCount).toBe(1);
    answer(owed, { kind: "queued", waitMs: 800 }, NOW);
    expect(shard.entryCount).toBe(0);
  });
});

describe("a region that is held for long", () => {
  test("costs no more memory as what was delayed comes due, and all of it is sent once it is resumed", () => {
    const { shard, send, answer, sweep } = startShard(NOW);
    const owed = new Map<string, ReturnType<typeof owedOf>>();
    const rows = () => [...owed.values()];
    let now = NOW;
    let mostCount = 0;
    for (; now < NOW + 30_000; now += 1_000) {
      for (let n = 0; n < 500; n++) {
        const delayed = owedOf({ dueAt: now + 500 + n });
        owed.set(delayed.id, delayed);
        shard.learn(delayed, now);
      }
      sweep(rows(), now, 10);
      shard.hold(now + 2_000);
      expect(send(now)).toEqual([]);
      mostCount = Math.max(mostCount, shard.entryCount);
    }
    expect(owed.size).toBe(15_000);
    expect(mostCount).toBeLessThan(5_000);
    for (; owed.size > 0 && now < NOW + 600_000; now += 1_000) {
      sweep(rows(), now, 10);
      for (const entry of send(now)) {
        owed.delete(entry.id);
        answer(entry, { kind: "granted" }, now);
      }
    }
    expect(owed.size).toBe(0);
    for (const end = now + 10_000; now < end; now += 1_000) sweep([], now);
    expect(shard.rememberedLanes()).toEqual([]);
  });
});

describe("permits", () => {
  const refuse = { kind: "no_permit", returned: 7 } as const;

  function startRefused(count = 200) {
    const harness = startShard(NOW);
    harness.sweep(
      Array.from({ length: count }, (_, n) => owedOf({ dueAt: NOW - count + n })),
      NOW,
    );
    return harness;
  }

  test("that are refused stop the lane; the hint that some came back sends so many and one more, the oldest first", () => {
    const { shard, send, answer } = startRefused();
    const sent = send(NOW);
    expect(sent).toHaveLength(200);
    for (const entry of sent) answer(entry, refuse, NOW);
    expect(send(NOW)).toEqual([]);
    shard.freed({ projectNo: 1, returned: 9 }, NOW);
    const again = send(NOW);
    expect(jobIds(again)).toEqual(jobIds(sent.slice(0, 3)));
    shard.freed({ projectNo: 1, returned: 9 }, NOW);
    expect(send(NOW)).toEqual([]);
  });

  test("of one instant go out in the order in which they were made, refused or not", () => {
    const { shard, send, answer, sweep } = startShard(NOW);
    const owed = Array.from({ length: 9 }, (_, n) => owedOf({ id: `job-${n}`, dueAt: NOW }));
    sweep(owed, NOW);
    for (const entry of send(NOW)) answer(entry, { kind: "no_permit", returned: 0 }, NOW);
    for (let returned = 1; returned < owed.length; returned++) {
      shard.freed({ projectNo: 1, returned }, NOW);
      const [granted, ...rest] = send(NOW);
      expect(granted?.id).toBe(`job-${returned - 1}`);
      if (granted) answer(granted, { kind: "granted" }, NOW);
      for (const entry of rest) answer(entry, { kind: "no_permit", returned }, NOW);
    }
  });

  test("of which a message tells late go before younger ones, refused or not", () => {
    const { shard, send, answer } = startShard(NOW);
    const learn = (n: number) => shard.learn(owedOf({ id: `job-${n}`, dueAt: NOW - 10 + n }), NOW);
    learn(3);
    const [refused] = send(NOW);
    if (refused) answer(refused, { kind: "no_permit", returned: 0 }, NOW);
    for (const n of [6, 5, 2, 4, 1]) learn(n);
    shard.freed({ projectNo: 1, returned: 9 }, NOW);
    expect(jobIds(send(NOW))).toEqual(["job-1", "job-2", "job-3", "job-4", "job-5", "job-6"]);
  });

  test("whose return is told before the refusal is heard are not lost", () => {
    const { shard, send, answer } = startRefused();
    const sent = send(NOW);
    shard.freed({ projectNo: 1, returned: 9 }, NOW);
    for (const entry of sent) answer(entry, refuse, NOW);
    expect(send(NOW).length).toBeGreaterThanOrEqual(2);
  });

  test("of which no hint tells are asked for again every second", () => {
    const { shard, send, answer } = startRefused();
    for (const entry of send(NOW)) answer(entry, refuse, NOW);
    shard.tidy(NOW + 1_000);
    expect(send(NOW + 1_000).length).toBeGreaterThan(0);
  });

  test("that are all granted leave no refusal for a hint to answer, so the lane probes", () => {
    const { shard, send, answer } = startRefused();
    for (const entry of send(NOW)) answer(entry, refuse, NOW);
    shard.freed({ projectNo: 1, returned: 9 }, NOW);
    const sent = send(NOW);
    for (const entry of sent) {
      expect(send(NOW)).toEqual([]);
      answer(entry, { kind: "granted" }, NOW);
    }
    expect(send(NOW).length).toBeGreaterThan(0);
  });

  test("of one project do not hold up another, nor its other environment", () => {
    const { shard, send, answer } = startRefused();
    for (const entry of send(NOW)) answer(entry, refuse, NOW);
    const others = [owedOf({ projectNo: 2 }), owedOf({ flowClass: "development jobs" })];
    for (const owed of others) shard.learn(owed, NOW);
    expect(jobIds(send(NOW))).toEqual(jobIds(others));
  });
});

describe("memory", () => {
  test("comes back to nothing when nothing is owed", () => {
    const { shard, send, answer, sweep } = startShard(NOW);
    for (let project = 1; project <= 50; project++) {
      for (let count = 0; count < 100; count++)
        shard.learn(owedOf({ projectNo: project, dueAt: NOW + (count % 2) * 500 }), NOW);
    }
    for (let now = NOW; now <= NOW + 20_000; now += 500) {
      for (const entry of send(now)) answer(entry, { kind: "granted" }, now);
      sweep([], now);
    }
    expect(shard.entryCount).toBe(0);
    expect(shard.rememberedLanes()).toEqual([]);
  });
});
