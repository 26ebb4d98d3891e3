import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { connect } from "@nats-io/transport-node";
import { type NatsServer, startNatsServer } from "../../test/support/nats-server.ts";
import type { Region } from "../domain/scope.ts";
import type { Bus, Subscription } from "./bus.ts";
import { createInProcessBus } from "./in-process.ts";
import { openBus } from "./jetstream.ts";
import type { Answers, Beat, Command, Due, Hint, OwedAttempt } from "./messages.ts";
import { createTestLog, listen, type TestLog, until } from "./test-support.ts";

interface Kind {
  start(): Promise<void>;
  /** One more node on the same bus. */
  open(log: TestLog): Promise<Bus>;
  /** Takes away what the buses depend on: the server, or the one bus itself. */
  cut(): Promise<void>;
  stop(): Promise<void>;
}

function overNats(): Kind {
  let server: NatsServer;
  return {
    async start() {
      server = await startNatsServer();
    },
    open: (log) => openBus(server.url, log),
    cut: () => server.kill("SIGKILL"),
    stop: () => server.stop(),
  };
}

function inOneProcess(): Kind {
  let bus: Bus | undefined;
  return {
    async start() {},
    async open(log) {
      bus ??= createInProcessBus(log);
      return bus;
    },
    async cut() {
      await bus?.close();
    },
    async stop() {
      bus = undefined;
    },
  };
}

describe("over NATS", () => holdsFor(overNats));
describe("in one process", () => holdsFor(inOneProcess));

function holdsFor(createKind: () => Kind): void {
  const log = createTestLog();
  let kind: Kind;
  let a: Bus;
  let b: Bus;
  const subscriptions: Subscription[] = [];

  beforeAll(async () => {
    kind = createKind();
    await kind.start();
    a = await kind.open(log);
    b = await kind.open(log);
  });
  afterEach(() => {
    for (const subscription of subscriptions.splice(0)) subscription.unsubscribe();
    log.lines.length = 0;
  });
  afterAll(async () => {
    await a.close();
    await b.close();
    await kind.stop();
  });

  async function hearCommands(from: Bus, at: Bus, regions: Region[]): Promise<Command[]> {
    const heard = await listen<Command>(
      (handler) => at.consumeCommands(regions, handler),
      () => {
        for (const region of regions) from.sendCommand(commandOf(region, PROBE));
      },
      regions.map((region) => (command) => command.region === region && command.shard === PROBE),
      (command) => command.shard === PROBE,
    );
    subscriptions.push(heard.subscription);
    return heard.messages;
  }

  async function hearHints(from: Bus, at: Bus, region: Region): Promise<Hint[]> {
    const isProbe = (hint: Hint) => hint.shard === PROBE;
    const heard = await listen<Hint>(
      (handler) => at.onHint(region, handler),
      () => from.sendHint(hintOf(region, PROBE)),
      [isProbe],
      isProbe,
    );
    subscriptions.push(heard.subscription);
    return heard.messages;
  }

  async function hearDues(from: Bus, at: Bus, nodeId: number): Promise<Due[]> {
    const isProbe = (due: Due) => due.workerNodeId === PROBE;
    const heard = await listen<Due>(
      (handler) => at.onDue(nodeId, handler),
      () => from.sendDue(nodeId, dueOf(PROBE, 0)),
      [isProbe],
      isProbe,
    );
    subscriptions.push(heard.subscription);
    return heard.messages;
  }

  test("what one sender sends is heard in order, every kind for itself", async () => {
    const commands = await hearCommands(a, b, ["us-east"]);
    const hints = await hearHints(a, b, "us-east");
    const dues = await hearDues(a, b, 7);
    for (let no = 0; no < 5_000; no++) {
      a.sendCommand(commandOf("us-east", no));
      a.sendHint(hintOf("us-east", no));
      a.sendDue(7, dueOf(1, no));
    }
    const inOrder = Array.from({ length: 5_000 }, (_, no) => no);
    await until(() => commands.length >= 5_000 && hints.length >= 5_000 && dues.length >= 5_000);
    expect(commands.map(({ shard }) => shard)).toEqual(inOrder);
    expect(hints.map(({ shard }) => shard)).toEqual(inOrder);
    expect(dues.map(({ items }) => items[0]?.shard)).toEqual(inOrder);
  });

  test("a command reaches every node of its region and none of another", async () => {
    const east = await hearCommands(a, a, ["us-east"]);
    const eastToo = await hearCommands(a, b, ["us-east", "eu-central"]);
    const west = await hearCommands(a, b, ["us-west"]);
    a.sendCommand(commandOf("us-east", 1));
    a.sendCommand(commandOf("eu-central", 2));
    a.sendCommand(commandOf("us-west", 3));
    await until(() => east.length === 1 && eastToo.length === 2 && west.length === 1);
    expect(east).toEqual([commandOf("us-east", 1)]);
    expect(eastToo.toSorted((x, y) => x.shard - y.shard)).toEqual([
      commandOf("us-east", 1),
      commandOf("eu-central", 2),
    ]);
    expect(west).toEqual([commandOf("us-west", 3)]);
  });

  test("a hint reaches every node of its region and none of another", async () => {
    const here = await hearHints(a, a, "us-east");
    const there = await hearHints(a, b, "us-east");
    const west = await hearHints(a, b, "us-west");
    const hint: Hint = {
      region: "us-east",
      shard: 5,
      owed: [owed(9, "job_x", 2)],
      freed: [
        { projectNo: 3, returned: 1 },
        { projectNo: 4, returned: 20 },
      ],
    };
    a.sendHint(hint);
    a.sendHint(hintOf("us-west", 6));
    await until(() => here.length === 1 && there.length === 1 && west.length === 1);
    expect([...here, ...there]).toEqual([hint, hint]);
    expect(west).toEqual([hintOf("us-west", 6)]);
  });

  test("dues and answers go to the one node that they name", async () => {
    const seven = await hearDues(a, b, 7);
    const eight = await hearDues(a, b, 8);
    const answers: Answers[] = [];
    subscriptions.push(
      a.onAnswers(7, (message) => answers.push(message)),
      a.onAnswers(8, () => expect.unreachable()),
    );
    a.sendDue(7, dueOf(1, 70));
    a.sendDue(8, dueOf(1, 80));
    await until(() => seven.length === 1 && eight.length === 1);
    expect(seven).toEqual([dueOf(1, 70)]);
    expect(eight).toEqual([dueOf(1, 80)]);

    const sent: Answers = {
      deliveryNodeId: 3,
      room: 12,
      region: "us-west",
      items: [
        { projectNo: 1, shard: 2, id: "job_a", attempt: 1, answer: { kind: "granted" } },
        { projectNo: 1, shard: 2, id: "job_b", attempt: 2, answer: { kind: "early", waitMs: 1.5 } },
        { projectNo: 1, shard: 2, id: "job_c", attempt: 3, answer: { kind: "blocked", untilAt: 1e12 } },
      ],
    };
    await until(() => {
      b.sendAnswers(7, sent);
      return answers.length > 0;
    });
    expect(answers[0]).toEqual(sent);
  });

  test("beats are heard by everybody, each kind apart", async () => {
    const workers: Beat[] = [];
    const deliveries: Beat[] = [];
    const own: Beat[] = [];
    subscriptions.push(
      a.onBeat("worker", (beat) => workers.push(beat)),
      a.onBeat("delivery", (beat) => deliveries.push(beat)),
      b.onBeat("delivery", (beat) => own.push(beat)),
    );
    const worker: Beat = { nodeId: 1, regions: ["us-east"], room: 0 };
    const delivery: Beat = { nodeId: 2, regions: ["us-west", "eu-central"], room: 200 };
    await until(() => {
      b.sendBeat("worker", worker);
      b.sendBeat("delivery", delivery);
      return workers.length > 0 && deliveries.length > 0 && own.length > 0;
    });
    expect(new Set(workers.map(({ nodeId }) => nodeId))).toEqual(new Set([1]));
    expect(deliveries[0]).toEqual(delivery);
    expect(own[0]).toEqual(delivery);
  });

  test("a command with an empty list arrives", async () => {
    const commands = await hearCommands(a, b, ["us-east"]);
    a.sendCommand({ region: "us-east", shard: 3, projectNo: 5, owed: [] });
    await until(() => commands.length === 1);
    expect(commands).toEqual([{ region: "us-east", shard: 3, projectNo: 5, owed: [] }]);
  });

  test("a list too long for one message arrives whole, an empty one not at all", async () => {
    const dues = await hearDues(a, b, 7);
    const hints = await hearHints(a, b, "us-east");
    const items = Array.from({ length: 25_000 }, (_, no) => ({ ...owed(1, `job_${no}`, 1), shard: 0 }));
    const freed = items.map((_, no) => ({ projectNo: no, returned: 1 }));
    a.sendDue(7, { workerNodeId: 1, region: "us-east", items: [] });
    a.sendDue(7, { workerNodeId: 1, region: "us-east", items });
    await until(() => dues.flatMap((due) => due.items).length === items.length);
    expect(dues.flatMap((due) => due.items)).toEqual(items);
    expect(dues.some((due) => due.items.length === 0)).toBe(false);
    a.sendHint({ region: "us-east", shard: 1, owed: [owed(1, "job_a", 1)], freed });
    await until(() => hints.flatMap((hint) => hint.freed).length === freed.length);
    expect(hints.flatMap((hint) => hint.freed)).toEqual(freed);
    expect(hints.flatMap((hint) => hint.owed)).toEqual([owed(1, "job_a", 1)]);
    expect(a.counts.dropped).toBe(0);
  });

  test("the receiver's code never runs on the sender's stack, and its message is its own to keep", async () => {
    const first = await hearHints(a, a, "us-east");
    const second = await hearHints(a, a, "us-east");
    const sent = { ...hintOf("us-east", 1), owed: [owed(1, "job_a", 1)] };
    a.sendHint(sent);
    expect(first).toEqual([]);
    sent.owed[0] = owed(1, "job_altered", 1);
    await until(() => first.length === 1 && second.length === 1);
    expect(first[0]?.owed).toEqual([owed(1, "job_a", 1)]);
    expect(first[0]).not.toBe(second[0] as Hint);
    first[0]?.owed.pop();
    expect(second[0]?.owed).toHaveLength(1);
  });

  test("a handler that throws is logged, and goes on hearing, as the others do", async () => {
    const failedBefore = a.counts.failed;
    const startedAt = performance.now();
    const shards: number[] = [];
    subscriptions.push(
      a.onHint("us-east", ({ shard }) => {
        if (shard === PROBE) return;
        shards.push(shard);
        throw new Error("broken handler");
      }),
    );
    const others = await hearHints(a, a, "us-east");
    for (const shard of [1, 2, 3]) a.sendHint(hintOf("us-east", shard));
    await until(() => others.length === 3);
    expect(shards).toEqual([1, 2, 3]);
    expect(a.counts.failed).toBe(failedBefore + 3);
    const lines = log.lines.filter(({ message }) => message === "message handler failed");
    expect(lines[0]?.fields).toEqual({
      filter: "hint.us-east.*",
      raisedCount: 1,
      err: new Error("broken handler"),
    });
    expect(lines.length).toBeLessThanOrEqual(complaintsSince(startedAt));
  });

  test("an unsubscribed handler hears nothing more, not even what is already under way", async () => {
    const heard: Hint[] = [];
    const subscription = a.onHint("us-east", (hint) => heard.push(hint));
    const others = await hearHints(a, a, "us-east");
    const commands: Command[] = [];
    const consumption = a.consumeCommands(["us-east"], (command) => commands.push(command));
    const otherCommands = await hearCommands(a, a, ["us-east"]);
    heard.length = 0;
    a.sendHint(hintOf("us-east", 1));
    subscription.unsubscribe();
    subscription.unsubscribe();
    a.sendHint(hintOf("us-east", 2));
    consumption.unsubscribe();
    commands.length = 0;
    a.sendCommand(commandOf("us-east", 1));
    await until(() => others.length === 2 && otherCommands.length === 1);
    expect(heard).toEqual([]);
    expect(commands).toEqual([]);
  });

  test("sending with nowhere to send to neither throws nor blocks, and is counted", async () => {
    await kind.cut();
    await until(() => !a.connected && !b.connected);
    const droppedBefore = a.counts.dropped;
    const times: number[] = [];
    let startedAt = performance.now();
    for (let no = 1; no <= 10_000; no++) {
      a.sendCommand(commandOf("us-east", no));
      a.sendHint(hintOf("us-east", no));
      a.sendDue(7, dueOf(1, no));
      a.sendAnswers(7, {
        deliveryNodeId: 1,
        room: 0,
        region: "us-east",
        items: [{ projectNo: 1, shard: 1, id: "job_a", attempt: 1, answer: { kind: "gone" } }],
      });
      a.sendBeat("worker", { nodeId: 1, regions: [], room: 0 });
      if (no % 1_000 === 0) {
        times.push(performance.now() - startedAt);
        startedAt = performance.now();
      }
    }
    // The machine may have stood still in some of these rounds; a call that blocks does so in all.
    expect(Math.min(...times)).toBeLessThan(200);
    expect(a.counts.dropped - droppedBefore).toBe(50_000);
    await a.close();
    await a.close();
    expect(a.connected).toBe(false);
    a.sendHint(hintOf("us-east", 1));
  });
}

/** The most log lines of a complaint that is raised again and again: one a second. */
const complaintsSince = (at: number) => 1 + Math.floor((performance.now() - at) / 1_000);

/** The shard, or worker, of the messages that only prove that a listener is there. */
const PROBE = 999_999;

function owed(projectNo: number, id: string, attempt: number): OwedAttempt {
  return { projectNo, flowClass: "production webhooks", id, attempt, dueAt: 1_790_000_000_000.25 };
}

function commandOf(region: Region, shard: number): Command {
  return { region, shard, projectNo: 9, owed: [owed(9, "job_a", 1)] };
}

function hintOf(region: Region, shard: number): Hint {
  return { region, shard, owed: [], freed: [{ projectNo: 1, returned: 1 }] };
}

function dueOf(workerNodeId: number, shard: number): Due {
  return { workerNodeId, region: "us-east", items: [{ ...owed(9, "job_a", 1), shard }] };
}

test("over NATS, bytes that are no message are dropped and counted, and the next message is heard", async () => {
  const server = await startNatsServer();
  const log = createTestLog();
  const bus = await openBus(server.url, log);
  const stranger = await connect({ servers: server.url });
  try {
    const commands = await listen<Command>(
      (handler) => bus.consumeCommands(["us-east"], handler),
      () => bus.sendCommand(commandOf("us-east", PROBE)),
      [({ shard }) => shard === PROBE],
      ({ shard }) => shard === PROBE,
    );
    const hints = await listen<Hint>(
      (handler) => bus.onHint("us-east", handler),
      () => bus.sendHint(hintOf("us-east", PROBE)),
      [({ shard }) => shard === PROBE],
      ({ shard }) => shard === PROBE,
    );
    const rubbish = [
      "",
      "{}",
      "[]",
      "null",
      "[1,2",
      new Uint8Array([0xff, 0xfe, 0x00, 0x5b]),
      "[".repeat(900_000),
    ];
    const startedAt = performance.now();
    for (const bytes of rubbish) {
      for (const subject of ["cmd.us-east.1.1", "hint.us-east.1"]) stranger.publish(subject, bytes);
    }
    await stranger.flush();
    await until(() => bus.counts.malformed === 2 * rubbish.length);
    bus.sendCommand(commandOf("us-east", 5));
    bus.sendHint(hintOf("us-east", 6));
    await until(() => commands.messages.length === 1 && hints.messages.length === 1);
    expect(bus.counts).toEqual({ malformed: 2 * rubbish.length, failed: 0, dropped: 0, unacknowledged: 0 });
    const lines = log.lines.filter(({ message }) => message === "malformed message dropped");
    expect(lines.length).toBeWithin(1, 2 * complaintsSince(startedAt) + 1);
  } finally {
    await stranger.close();
    await bus.close();
    await server.stop();
  }
});
