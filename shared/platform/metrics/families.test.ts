import { expect, test } from "bun:test";
import { Registry } from "prom-client";
import { Families } from "./families.ts";

function startFamilies() {
  const registry = new Registry();
  const lines = async () =>
    (await registry.metrics()).split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  return { families: new Families("x_", registry), lines };
}

test("a member is shown from its first mention at zero, and equal labels give the same member", async () => {
  const { families, lines } = startFamilies();
  const counts = families.counts("things_total", "Things.", ["kind", "place"]);
  expect(await lines()).toEqual([]);
  counts.of({ kind: "a", place: "1" });
  counts.of({ kind: "b", place: "1" }).inc();
  counts.of({ kind: "b", place: "1" }).inc(2.5);
  expect(await lines()).toEqual([
    'x_things_total{kind="a",place="1"} 0',
    'x_things_total{kind="b",place="1"} 3.5',
  ]);
});

test("a spread is shown from its first mention, and a second mention does not reset it", async () => {
  const { families, lines } = startFamilies();
  const spreads = families.spreads("seconds", "Time.", ["kind"], [0.25, 1]);
  spreads.of({ kind: "a" }).observe(0.5);
  spreads.of({ kind: "a" }).observe(0.25);
  expect(await lines()).toEqual([
    'x_seconds_bucket{le="0.25",kind="a"} 1',
    'x_seconds_bucket{le="1",kind="a"} 2',
    'x_seconds_bucket{le="+Inf",kind="a"} 2',
    'x_seconds_sum{kind="a"} 0.75',
    'x_seconds_count{kind="a"} 2',
  ]);
});

test("a followed metric is read anew each time, and is not shown while its reader gives no values", async () => {
  const { families, lines } = startFamilies();
  const shards = families.levels("ready", "Ready.", ["shard"]);
  const one = families.levels("held", "Held.");
  const faults = families.followedCounts("faults_total", "Faults.", ["kind"]);
  expect(await lines()).toEqual([]);
  const kept = new Map([["3", 1]]);
  shards.follow(() => [...kept].map(([shard, value]) => ({ labels: { shard }, value })));
  one.follow(() => (kept.size === 0 ? [] : [{ labels: {}, value: kept.size }]));
  faults.follow(() => [{ labels: { kind: "a" }, value: kept.get("3") ?? 0 }]);
  expect(await lines()).toEqual(['x_ready{shard="3"} 1', "x_held 1", 'x_faults_total{kind="a"} 1']);
  kept.set("3", 2).set("4", 9);
  expect(await lines()).toEqual([
    'x_ready{shard="3"} 2',
    'x_ready{shard="4"} 9',
    "x_held 2",
    'x_faults_total{kind="a"} 2',
  ]);
  kept.clear();
  expect(await lines()).toEqual(['x_faults_total{kind="a"} 0']);
});
