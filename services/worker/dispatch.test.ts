import { describe, expect, test } from "bun:test";
import type { Due } from "../../shared/bus/messages.ts";
import type { Region } from "../../shared/domain/scope.ts";
import { Dispatcher } from "./dispatch.ts";
import type { Entry } from "./shard/entry.ts";
import { Shard } from "./shard/shard.ts";
import { Timers } from "./shard/timers.ts";
import { owedOf, sweptOf } from "./test-support.ts";

const NOW = 1_800_000_000_000;
const all = () => true;

function startDispatch(region: Region = "us-east") {
  const messages: (Omit<Due, "workerNodeId"> & { node: number })[] = [];
  const dispatcher = new Dispatcher((node, due) => messages.push({ ...due, node }));
  const timers = new Timers<Entry>(NOW);
  const startShard = (shardRegion: Region, number: number) =>
    new Shard({ region: shardRegion, shard: number, epoch: 1 }, NOW, timers, {
      onSendable: (lane, shard) => dispatcher.enqueue(lane, shard),
      onLow: () => undefined,
      onGranted: () => undefined,
    });
  const shard = startShard(region, 3);
  return {
    dispatcher,
    shard,
    startShard,
    /** Owes so many attempts of a project now. */
    owe(projectNo: number, count: number, to = shard) {
      for (let n = 0; n < count; n++) to.learn(owedOf({ projectNo, dueAt: NOW }), NOW);
    },
    hear(nodeId: number, room: number, now = NOW, regions: Region[] = [region]) {
      dispatcher.heard({ nodeId, regions, room }, now);
    },
    run(now = NOW, isActive: (shard: Shard) => boolean = all) {
      dispatcher.run(now, isActive);
      return messages.splice(0);
    },
  };
}

const countOf = (messages: readonly { items: unknown[] }[]) =>
  messages.reduce((sum, { items }) => sum + items.length, 0);

describe("what is ready", () => {
  test("goes to a node of the region, with all that a claim needs", () => {
    const { shard, hear, run } = startDispatch();
    const owed = owedOf({ flowClass: "development jobs", attempt: 4, dueAt: NOW - 7, isGated: true });
    shard.learn(owed, NOW);
    expect(run()).toEqual([]);
    hear(8, 100, NOW, ["us-west"]);
    expect(run()).toEqual([]);
    hear(9, 100);
    expect(run()).toEqual([{ node: 9, region: "us-east", items: [{ ...owed, shard: 3 }] }]);
    expect(run()).toEqual([]);
  });

  /** Owes so many attempts of a project now, more than commands may tell of. */
  function sweep(shard: Shard, projectNo: number, count: number) {
    const rows = Array.from({ length: count }, () => sweptOf(owedOf({ projectNo, dueAt: NOW }), 1_000));
    shard.swept(rows, [], { fromAt: Number.NEGATIVE_INFINITY, sweptAt: NOW }, NOW);
  }

  test("goes to another node, though that has less room, once as much of its lane is unanswered at the roomiest as is left there", () => {
    const { shard, hear, run } = startDispatch();
    sweep(shard, 1, 1_300);
    hear(8, 100);
    hear(9, 4_000);
    const sent = Map.groupBy(run(), ({ node }) => node);
    expect([countOf(sent.get(9) ?? []), countOf(sent.get(8) ?? [])]).toEqual([500, 100]);
    expect(run()).toEqual([]);
  });

  test("waits in the worker while 1,000 are unanswered at a node, and lanes whose answers take long leave room for others", () => {
    const { dispatcher, shard, owe, hear, run } = startDispatch();
    hear(9, 4_000);
    const slow = [1, 2, 3, 4].map((projectNo) => {
      sweep(shard, projectNo, 1_200);
      return countOf(run());
    });
    expect(slow).toEqual([500, 250, 125, 62]);
    owe(5, 20);
    const sent = run();
    expect(sent.flatMap(({ items }) => items.map((item) => item.projectNo))).toEqual(Array(20).fill(5));
    for (let project = 6; project <= 40; project++) owe(project, 20);
    expect(countOf(run())).toBe(1_000 - 937 - 20);
    dispatcher.answered(9, 20, 4_000);
    expect(countOf(run())).toBe(20);
    expect(run()).toEqual([]);
  });

  test("is taken in turns: a project with many due jobs does not hold up one with a few", () => {
    const { owe, hear, run } = startDispatch();
    owe(1, 64);
    owe(2, 2);
    owe(3, 64);
    hear(9, 70);
    const projects = run().flatMap(({ items }) => items.map((item) => item.projectNo));
    expect(projects).toHaveLength(70);
    expect(projects.slice(0, 66)).toEqual([...Array(32).fill(1), ...Array(2).fill(2), ...Array(32).fill(3)]);
    expect(new Set(projects.slice(66))).toEqual(new Set([1]));
    hear(9, 1_000);
    expect(run().flatMap(({ items }) => items.map((item) => item.projectNo))[0]).toBe(3);
  });

  test("never exceeds a node's room, whatever is unanswered, and goes where there is most of it", () => {
    const { dispatcher, owe, hear, run } = startDispatch();
    for (let project = 1; project <= 10; project++) owe(project, 50);
    hear(7, 30);
    hear(8, 90);
    const messages = run();
    expect(messages[0]?.node).toBe(8);
    expect(countOf(messages.filter(({ node }) => node === 7))).toBe(30);
    expect(countOf(messages.filter(({ node }) => node === 8))).toBe(90);
    expect(run()).toEqual([]);
    // This beat was on its way while the items were sent: its room does not count them.
    hear(7, 30);
    expect(run()).toEqual([]);
    dispatcher.answered(7, 30, 12);
    expect(countOf(run())).toBe(12);
    hear(8, 0);
    expect(run()).toEqual([]);
  });

  test("goes out in messages of a bounded size", () => {
    const { owe, hear, run } = startDispatch();
    for (let project = 1; project <= 20; project++) owe(project, 40);
    hear(9, 4_000);
    const messages = run();
    expect(countOf(messages)).toBe(800);
    expect(Math.max(...messages.map(({ items }) => items.length))).toBeLessThanOrEqual(200);
  });

  test("goes to the emptier node, also while both have room for more than may be unanswered", () => {
    const { owe, hear, run } = startDispatch();
    hear(8, 1_500);
    hear(9, 4_000);
    for (let turn = 0; turn < 20; turn++) {
      owe(turn, 10);
      expect(run().map(({ node }) => node)).toEqual([9]);
    }
  });

  test("of several regions takes turns at a node that serves them", () => {
    const { dispatcher, shard, startShard, owe, hear, run } = startDispatch();
    const other = startShard("us-west", 4);
    for (let project = 1; project <= 150; project++)
      for (const each of [shard, other]) owe(project, 10, each);
    hear(9, 4_000, NOW, ["us-east", "us-west"]);
    expect(countOf(run())).toBe(1_000);
    const next: string[] = [];
    for (let turn = 0; turn < 4; turn++) {
      dispatcher.answered(9, 30, 4_000);
      next.push(...new Set(run().map(({ region }) => region)));
    }
    expect(new Set(next)).toEqual(new Set(["us-east", "us-west"]));
  });

  test("waits for a node that is heard; one that has been silent gets nothing", () => {
    const { owe, hear, run } = startDispatch();
    owe(1, 3);
    hear(9, 100);
    expect(run(NOW + 2_000)).toEqual([]);
    hear(9, 100, NOW + 2_001);
    expect(countOf(run(NOW + 2_001))).toBe(3);
  });

  test("stays in a shard whose lease may be over, and goes out of another one", () => {
    const { shard, startShard, owe, hear, run } = startDispatch();
    const other = startShard("us-east", 4);
    owe(1, 2);
    owe(2, 2, other);
    hear(9, 100);
    const messages = run(NOW, (candidate) => candidate === other);
    expect(messages.flatMap(({ items }) => items.map((item) => item.shard))).toEqual([4, 4]);
    // Once the shard is trusted again, the next look at it finds the lane.
    shard.tidy(NOW + 1_000);
    expect(countOf(run(NOW + 1_000))).toBe(2);
  });

  test("stays in a lane that was blocked while it stood in the row", () => {
    const { shard, owe, hear, run } = startDispatch();
    owe(1, 2);
    hear(9, 1);
    const [first] = run().flatMap(({ items }) => items);
    if (first === undefined) throw new Error("nothing was sent");
    shard.answer({ ...first, answer: { kind: "blocked", untilAt: NOW + 60_000 } }, NOW);
    hear(9, 100);
    expect(run()).toEqual([]);
  });

  test("is sent although answers that never came had taken a node's room", () => {
    const { dispatcher, owe, hear, run } = startDispatch();
    owe(1, 20);
    hear(9, 10);
    expect(countOf(run())).toBe(10);
    dispatcher.forgetUnanswered(Array.from({ length: 10 }, () => 8));
    expect(countOf(run())).toBe(0);
    dispatcher.forgetUnanswered(Array.from({ length: 10 }, () => 9));
    expect(countOf(run())).toBe(10);
  });
});
