import { expect, test } from "bun:test";
import type { Bus } from "../../shared/bus/bus.ts";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import type { Beat, Command, Due } from "../../shared/bus/messages.ts";
import { until } from "../../shared/bus/test-support.ts";
import type { OwedAttempt, Placed } from "../../shared/domain/owed.ts";
import type { Region } from "../../shared/domain/scope.ts";
import { createAnnouncer } from "./announcer.ts";

const clock = { now: () => 1_000, stop: () => undefined };
/** A node's last places are left to the workers. */
const ROOM_KEPT = 800;
/** A node that was silent for longer is told nothing. */
const NODE_SILENT_MS = 1_500;

const attemptOf = (id: string, region: Region = "us-east"): Placed<OwedAttempt> => ({
  ...{ projectNo: 1, flowClass: "production jobs", id, attempt: 1, dueAt: 1_000 },
  ...{ region, shard: 3 },
});

/** An announcer over a bus that notes what is sent over it. */
function startAnnouncer() {
  const bus = createInProcessBus();
  const sent: { nodeId: number; region: Region; ids: string[] }[] = [];
  const commanded: string[] = [];
  const noting: Bus = {
    ...bus,
    sendDue: (nodeId: number, { region, items }: Due) =>
      sent.push({ nodeId, region, ids: items.map(({ id }) => id) }),
    sendCommand: ({ owed }: Command) => commanded.push(...owed.map(({ id }) => id)),
  };
  let now = 0;
  const announcer = createAnnouncer({ bus: noting, clock }, () => now);
  const pass = (ms: number) => {
    now += ms;
  };
  /** Resolves once the announcer has heard the beat, as a listener does that comes after them. */
  async function beat(wish: Partial<Beat> = {}): Promise<void> {
    let isHeard = false;
    const hearing = bus.onBeat("delivery", () => {
      isHeard = true;
    });
    const { room = 10, ...others } = wish;
    bus.sendBeat("delivery", { nodeId: 7, regions: ["us-east"], room: room + ROOM_KEPT, ...others });
    await until(() => isHeard);
    hearing.unsubscribe();
  }
  return { announcer, beat, pass, sent, commanded };
}

test("without a delivery node all jobs go to the workers", () => {
  const { announcer, sent, commanded } = startAnnouncer();
  announcer.announce([attemptOf("a")], [attemptOf("b")]);
  expect(sent).toEqual([]);
  expect(commanded.toSorted()).toEqual(["a", "b"]);
});

test("a node is told of what may start, and no command tells of it", async () => {
  const { announcer, beat, sent, commanded } = startAnnouncer();
  await beat();
  announcer.announce([attemptOf("a"), attemptOf("b")], [attemptOf("c")]);
  expect(sent).toEqual([{ nodeId: 7, region: "us-east", ids: ["a", "b"] }]);
  expect(commanded).toEqual(["c"]);
});

test("a node is told of no more than its room, until it beats again", async () => {
  const { announcer, beat, sent, commanded } = startAnnouncer();
  await beat({ room: 3 });
  announcer.announce([attemptOf("a"), attemptOf("b")], []);
  announcer.announce([attemptOf("c"), attemptOf("d")], []);
  announcer.announce([attemptOf("e")], []);
  expect(sent.map(({ ids }) => ids)).toEqual([["a", "b"], ["c"]]);
  expect(commanded).toEqual(["d", "e"]);
  await beat({ room: 3 });
  announcer.announce([attemptOf("f")], []);
  expect(sent.at(-1)?.ids).toEqual(["f"]);
});

test("nodes with the same room take turns", async () => {
  const { announcer, beat, sent } = startAnnouncer();
  await beat({ nodeId: 7 });
  await beat({ nodeId: 8 });
  for (const id of ["a", "b", "c", "d"]) announcer.announce([attemptOf(id)], []);
  expect(sent.map(({ nodeId }) => nodeId).toSorted()).toEqual([7, 7, 8, 8]);
});

test("a job goes to a node of its region", async () => {
  const { announcer, beat, sent, commanded } = startAnnouncer();
  await beat({ nodeId: 7, regions: ["us-east"] });
  await beat({ nodeId: 8, regions: ["us-west"] });
  announcer.announce([attemptOf("a", "us-west"), attemptOf("b", "eu-central"), attemptOf("c")], []);
  expect(sent).toEqual([
    { nodeId: 8, region: "us-west", ids: ["a"] },
    { nodeId: 7, region: "us-east", ids: ["c"] },
  ]);
  expect(commanded).toEqual(["b"]);
});

test.each([
  ["drains", -ROOM_KEPT],
  ["has only the room that projects share", 0],
])("a node that %s is told nothing", async (_, room) => {
  const { announcer, beat, sent, commanded } = startAnnouncer();
  await beat({ room });
  announcer.announce([attemptOf("a")], []);
  expect(sent).toEqual([]);
  expect(commanded).toEqual(["a"]);
});

test("a node that has been silent for some beats is told nothing, until it beats again", async () => {
  const { announcer, beat, pass, sent, commanded } = startAnnouncer();
  await beat();
  pass(NODE_SILENT_MS);
  announcer.announce([attemptOf("a")], []);
  pass(1);
  announcer.announce([attemptOf("b")], []);
  await beat();
  announcer.announce([attemptOf("c")], []);
  expect(sent.flatMap(({ ids }) => ids)).toEqual(["a", "c"]);
  expect(commanded).toEqual(["b"]);
});
