import { expect, test } from "bun:test";
import { Families } from "./families.ts";

test("a member is shown with its first mention, before anything was counted in it, and is one for its labels", () => {
  const families = new Families("x_");
  const counts = families.counts<"kind" | "place">("things_total", "Things.");
  expect(families.text()).toBe("# HELP x_things_total Things.\n# TYPE x_things_total counter\n");
  counts.of({ kind: "a", place: "1" });
  counts.of({ kind: "b", place: "1" }).inc();
  counts.of({ kind: "b", place: "1" }).inc(2.5);
  expect(linesOf(families)).toEqual([
    'x_things_total{kind="a",place="1"} 0',
    'x_things_total{kind="b",place="1"} 3.5',
  ]);
});

test("buckets are cumulative, take what is exactly at their bound, and all of it comes before infinity", () => {
  const families = new Families("");
  const spread = families.spreads<"kind">("seconds", "Time.", [0.25, 1, 10]).of({ kind: "a" });
  for (const value of [0, 0.25, 0.5, 1, 10.5, 0.25]) spread.observe(value);
  expect(linesOf(families)).toEqual([
    'seconds_bucket{kind="a",le="0.25"} 3',
    'seconds_bucket{kind="a",le="1"} 5',
    'seconds_bucket{kind="a",le="10"} 5',
    'seconds_bucket{kind="a",le="+Inf"} 6',
    'seconds_sum{kind="a"} 12.5',
    'seconds_count{kind="a"} 6',
  ]);
});

test("what is followed is read anew each time, and is gone when whoever keeps it has nothing to say", () => {
  const families = new Families("");
  const levels = families.levels<"shard">("ready", "Ready.");
  expect(linesOf(families)).toEqual([]);
  const kept = new Map([["3", 1]]);
  levels.follow(() => [...kept].map(([shard, value]) => ({ labels: { shard }, value })));
  expect(linesOf(families)).toEqual(['ready{shard="3"} 1']);
  kept.set("3", 2).set("4", 9);
  expect(linesOf(families)).toEqual(['ready{shard="3"} 2', 'ready{shard="4"} 9']);
  kept.clear();
  expect(linesOf(families)).toEqual([]);
});

test("a label with a quote or a line end breaks no line", () => {
  const families = new Families("");
  families.counts<"name">("n", "N.").of({ name: 'a"b\\c\nd' });
  expect(linesOf(families)).toEqual(['n{name="a\\"b\\\\c\\nd"} 0']);
});

const linesOf = (families: Families) =>
  families
    .text()
    .split("\n")
    .filter((line) => line !== "" && !line.startsWith("#"));
