import { describe, expect, test } from "bun:test";
import { SWEEP_LAG_MS } from "../../../shared/store/queue/sweep.ts";
import { owedOf, startShard, sweptOf } from "../test-support.ts";
import type { RememberedLane } from "./remembered-lane.ts";

/** What a lane asks Postgres for, if it may leave out what it knows already. */

const NOW = 1_000_000;
/** More timed entries than a lane holds. */
const TOO_MANY = 2_001;

/** A shard with a lane that remembers one attempt of tomorrow. `look` asks for the lane and answers at once that it has these rows. */
function startLane() {
  const started = startShard(NOW);
  const { shard, lane } = started;
  shard.swept([], [], { fromAt: Number.NEGATIVE_INFINITY, sweptAt: NOW }, NOW);
  shard.learn(owedOf({ dueAt: NOW + 60_000 }), NOW);
  const known = lane() as RememberedLane;
  const ask = (now: number) => known.ask(now, true);
  function look(now: number, rows: Parameters<typeof sweptOf>[0][] = []): number {
    const question = ask(now);
    if (question === null) throw new Error("nothing is asked for");
    const swept = rows.map((row) => sweptOf(row, 500));
    shard.refilled(question, swept, now, now);
    return question.sinceAt;
  }
  return { ...started, known, ask, look };
}

describe("a lane of which all is known up to some instant", () => {
  test("asks for what is due after it, and knows then what is due until a later one", () => {
    const { look } = startLane();
    expect(look(NOW)).toBe(NOW - SWEEP_LAG_MS);
    expect(look(NOW + 1_000)).toBe(NOW + 1_500);
    expect(look(NOW + 2_000)).toBe(NOW + 2_500);
  });

  test("still looks for everything when it is asked to", () => {
    const { known, look } = startLane();
    look(NOW);
    for (let now = NOW + 1_000; now < NOW + 30_000; now += 1_000) look(now);
    expect(known.ask(NOW + 30_000)?.sinceAt).toBeLessThan(NOW);
  });
});

describe("a lane looks for everything", () => {
  test("if an attempt of which it was told did not fit", () => {
    const { shard, look } = startLane();
    look(NOW);
    for (let n = 0; n < TOO_MANY; n++) shard.learn(owedOf({ dueAt: NOW + 400 }), NOW);
    expect(look(NOW)).toBeLessThan(NOW);
    expect(look(NOW + 1_000)).toBe(NOW + 1_500);
  });

  test("if one did not fit while it looked", () => {
    const { shard, ask, look } = startLane();
    const question = ask(NOW);
    for (let n = 0; n < TOO_MANY; n++) shard.learn(owedOf({ dueAt: NOW + 400 }), NOW);
    if (question !== null) shard.refilled(question, [], NOW, NOW);
    expect(look(NOW + 100)).toBeLessThan(NOW);
  });

  test("if a look failed before which something was lost", () => {
    const { shard, known, ask, look } = startLane();
    look(NOW);
    for (let n = 0; n < TOO_MANY; n++) shard.learn(owedOf({ dueAt: NOW + 400 }), NOW);
    ask(NOW);
    known.failRefill();
    expect(look(NOW + 100)).toBeLessThan(NOW);
  });

  test("if it has as much to send as it may hold", () => {
    const { known, send, look } = startLane();
    look(NOW);
    // The first row tells the project's limit, by which a lane has room for 1,000.
    const rows = Array.from({ length: 1_000 }, () => owedOf({ dueAt: NOW + 1_900 }));
    expect(look(NOW + 1_000, rows.slice(0, 1))).toBe(NOW + 1_500);
    expect(look(NOW + 1_100, rows.slice(1, 999))).toBe(NOW + 2_500);
    expect(look(NOW + 1_200, rows.slice(999))).toBe(NOW + 2_600);
    send(NOW + 2_000, 0);
    expect(known.readyCount).toBe(1_000);
    expect(look(NOW + 2_000)).toBeLessThan(NOW);
  });

  test("if it has more to send than it may hold", () => {
    const { shard, known, send, answer, look } = startLane();
    look(NOW);
    for (let n = 0; n < 100; n++) shard.learn(owedOf({ dueAt: NOW }), NOW);
    for (const entry of send(NOW)) answer(entry, { kind: "granted" }, NOW);
    expect(known.wantsRefill(NOW)).toBe(true);
    expect(look(NOW)).toBeLessThan(NOW);
  });

  test("but not for one that did not fit and is due later than the next look", () => {
    const { shard, look } = startLane();
    look(NOW);
    for (let n = 0; n < TOO_MANY; n++) shard.learn(owedOf({ dueAt: NOW + 30_000 }), NOW);
    expect(look(NOW + 1_000)).toBe(NOW + 1_500);
  });
});

test("an answer that was overtaken by a later one does not hide that Postgres has more", () => {
  const { shard, known, ask } = startLane();
  const early = ask(NOW);
  const late = ask(NOW + 100);
  if (early === null || late === null) throw new Error("nothing is asked for");
  const rows = Array.from({ length: late.room }, () => sweptOf(owedOf({ dueAt: NOW + 50 }), 500));
  shard.refilled(late, rows, NOW + 100, NOW + 100);
  expect(known.wantsRefill(NOW + 100)).toBe(true);
  shard.refilled(early, [], NOW, NOW + 100);
  expect(known.wantsRefill(NOW + 100)).toBe(true);
  // A clock that was set back by more than a look takes does not make later answers seem old.
  const next = known.ask(NOW - 60_000);
  if (next === null) throw new Error("nothing is asked for");
  shard.refilled(next, rows.slice(0, 1), NOW - 60_000, NOW - 60_000);
  expect(known.wantsRefill(NOW - 60_000)).toBe(false);
});

test("a lane that is full of attempts of one instant is not refilled at once", () => {
  const { shard, known, ask } = startLane();
  const question = ask(NOW);
  if (question === null) throw new Error("nothing is asked for");
  const rows = Array.from({ length: question.room }, () =>
    sweptOf(owedOf({ dueAt: NOW }), question.room / 2),
  );
  shard.refilled(question, rows, NOW, NOW);
  expect(known.wantsRefill(NOW)).toBe(false);
});

test("what was lost while a lane was read with the forgotten ones is looked for", () => {
  const { shard, known } = startLane();
  const fromAt = shard.sweepsFromAt;
  const question = known.ask(NOW);
  if (question === null) throw new Error("nothing is asked for");
  known.lookFrom(fromAt - 1);
  const rows = [sweptOf(owedOf({ dueAt: NOW }))];
  shard.swept(rows, [question], { fromAt, sweptAt: NOW + 1_000 }, NOW + 1_000);
  expect(known.ask(NOW + 1_000)?.sinceAt).toBe(fromAt - 1);
});

test("an answer that was overtaken by a later one leaves what is known since", () => {
  const { shard, ask } = startLane();
  const early = ask(NOW);
  const late = ask(NOW + 100);
  if (early === null || late === null) throw new Error("nothing is asked for");
  shard.refilled(late, [], NOW + 100, NOW + 100);
  shard.refilled(early, [], NOW, NOW + 100);
  expect(ask(NOW + 200)?.sinceAt).toBe(NOW + 1_600);
});

test("what a look reads again is what the last one has read, without what is due later", () => {
  const { shard, known, look } = startLane();
  for (let n = 0; n < 100; n++) shard.learn(owedOf({ dueAt: NOW + 30_000 }), NOW);
  expect(known.readAgainCount).toBe(0);
  const rows = Array.from({ length: 10 }, () => owedOf({ dueAt: NOW + 1_000 }));
  look(NOW, rows);
  expect(known.readAgainCount).toBe(10);
  look(
    NOW + 1_000,
    rows.slice(0, 3).map((row) => ({ ...row, id: owedOf({ dueAt: NOW }).id })),
  );
  expect(known.readAgainCount).toBe(13);
});
