import { afterEach, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { createConnection, createServer, type Server, type Socket } from "node:net";
import { jetstreamManager } from "@nats-io/jetstream";
import { connect, headers } from "@nats-io/transport-node";
import { type NatsServer, startNatsServer } from "../../test/support/nats-server.ts";
import { claimPort } from "../../test/support/port.ts";
import { startStopwatch } from "../../test/support/stopwatch.ts";
import type { Region } from "../domain/scope.ts";
import type { Bus } from "./bus.ts";
import { encodeCommand } from "./encoding.ts";
import { openBus } from "./jetstream.ts";
import type { Command } from "./messages.ts";
import { createTestLog, until } from "./test-support.ts";

/** The longest time until a bus works again after the server is back. */
const RECOVERY_MS_MAX = 2_000;
/** The longest time until a bus notices a server that accepts bytes and answers nothing. */
const FROZEN_MS_MAX = 4_000;
const TRIALS_MAX = 4;
const TEST_MS_MAX = 120_000;
/** Enough looks for the loss of a command to be noticed, which takes some 2 s. */
const LOOKS_MAX = 200;
const LOOK_EVERY_MS = 100;

const log = createTestLog();
let undo: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const step of undo.toReversed()) await step();
  undo = [];
  log.lines.length = 0;
});

test(
  "killed, its store wiped and started again, the server serves commands again within 2 s",
  async () => {
    let server = await start();
    const gateway = await open(server.url);
    const worker = await open(server.url);
    const heard = hearShards(worker);
    let shard = 1;
    await until(() => sendAndLook(gateway, shard, heard));

    for (let round = 1; round <= 2; round++)
      await inOneTrial(RECOVERY_MS_MAX, async () => {
        await server.kill("SIGKILL");
        await until(() => !gateway.connected && !worker.connected);
        rmSync(server.storeDir, { recursive: true, force: true });
        server = await start(server);
        shard++;
        return timeUntil(() => sendAndLook(gateway, shard, heard));
      });
  },
  TEST_MS_MAX,
);

test(
  "a server that is absent at the start is found when it comes, with every subscription",
  async () => {
    let server = await start();
    await inOneTrial(RECOVERY_MS_MAX, async () => {
      await server.kill("SIGKILL");
      const opening = startStopwatch();
      const bus = await open(server.url);
      expect(opening.stop()).toBeLessThan(2_500);
      expect(bus.connected).toBe(false);
      const heard = hearShards(bus);
      const hints: number[] = [];
      bus.onHint("us-east", ({ shard }) => hints.push(shard));
      bus.sendCommand(commandOf(1));
      expect(bus.counts.dropped).toBe(1);

      server = await start(server);
      const elapsedMs = await timeUntil(() => {
        bus.sendHint({ region: "us-east", shard: 2, owed: [], freed: [{ projectNo: 1, returned: 1 }] });
        return sendAndLook(bus, 2, heard) && hints.includes(2);
      });
      expect(heard.has(1)).toBe(false);
      return elapsedMs;
    });
  },
  TEST_MS_MAX,
);

test(
  "a worker that was cut off for a moment hears late what was committed meanwhile",
  async () => {
    const server = await start();
    const proxy = await startProxy(server.port);
    const gateway = await open(server.url);
    const worker = await open(`nats://127.0.0.1:${proxy.port}`);
    const heard = hearShards(worker);
    await until(() => sendAndLook(gateway, 0, heard));

    await proxy.cut();
    await until(() => !worker.connected);
    for (let shard = 1; shard <= 500; shard++) gateway.sendCommand(commandOf(shard));
    await proxy.mend();
    await until(() => heard.size === 501);
  },
  TEST_MS_MAX,
);

test(
  "a stream or consumer that somebody deletes under a living connection is made again",
  async () => {
    const server = await start();
    const bus = await open(server.url);
    const heard = hearShards(bus);
    await until(() => sendAndLook(bus, 1, heard));
    const operator = await connect({ servers: server.url });
    undo.push(() => operator.close());
    const manager = await jetstreamManager(operator);

    const consumers = await manager.consumers.list("cmd").next();
    expect(consumers).toHaveLength(1);
    await manager.consumers.delete("cmd", consumers[0]?.name ?? "");
    await until(() => sendAndLook(bus, 2, heard));

    // The stream may be made again before a command is sent, and then none was lost.
    for (let look = 0; bus.counts.unacknowledged === 0 && look < LOOKS_MAX; look++) {
      await manager.streams.delete("cmd").catch(() => false);
      bus.sendCommand(commandOf(3));
      await Bun.sleep(LOOK_EVERY_MS);
    }
    expect(bus.counts.unacknowledged).toBeGreaterThan(0);
    await until(() => sendAndLook(bus, 4, heard));
  },
  TEST_MS_MAX,
);

test(
  "a stream that an operator configured otherwise is used as it is",
  async () => {
    const server = await start();
    const operator = await connect({ servers: server.url });
    undo.push(() => operator.close());
    const manager = await jetstreamManager(operator);
    await manager.streams.add({ name: "cmd", subjects: ["cmd.>"], max_msgs: 1_000 });
    const bus = await open(server.url);
    const heard = hearShards(bus);
    await until(() => sendAndLook(bus, 1, heard));
    expect((await manager.streams.info("cmd")).config.max_msgs).toBe(1_000);
  },
  TEST_MS_MAX,
);

test(
  "a consumer that the server refuses keeps no other consumer from being made",
  async () => {
    const server = await start();
    const bus = await open(server.url);
    // A subject with an empty word is no subject.
    hearShards(bus, "" as Region);
    const heard = hearShards(bus);
    await until(() => log.lines.some(({ message }) => message === "command stream not restored"));
    await until(() => sendAndLook(bus, 1, heard));
  },
  TEST_MS_MAX,
);

test(
  "a command that somebody publishes with headers is a command, and not the server's own word",
  async () => {
    const server = await start();
    const bus = await open(server.url);
    const heard = hearShards(bus);
    await until(() => sendAndLook(bus, 1, heard));
    const stranger = await connect({ servers: server.url });
    undo.push(() => stranger.close());
    const withStatus = headers(503, "No");
    stranger.publish("cmd.us-east.2.1", encodeCommand(commandOf(2)), { headers: withStatus });
    await until(() => heard.has(2));
    expect(bus.counts.malformed).toBe(0);
  },
  TEST_MS_MAX,
);

test(
  "a frozen server is noticed within seconds, takes a bounded number of bytes, and is used again when it thaws",
  async () => {
    const server = await start();
    const bus = await open(server.url);
    const heard = hearShards(bus);
    let shard = 1;
    await until(() => sendAndLook(bus, shard, heard));
    undo.push(() => server.kill("SIGCONT"));
    const flood = { workerNodeId: 1, region: "us-east" as const, items: floodItems() };
    await inOneTrial(RECOVERY_MS_MAX, async () => {
      await server.kill("SIGSTOP");
      const droppedBefore = bus.counts.dropped;
      for (let sentBytes = 0; sentBytes < 40 * 1024 * 1024; sentBytes += 64_000) bus.sendDue(9, flood);
      expect(bus.counts.dropped).toBeGreaterThan(droppedBefore);
      expect(await timeUntil(() => !bus.connected)).toBeLessThan(FROZEN_MS_MAX);

      await server.kill("SIGCONT");
      shard++;
      return timeUntil(() => sendAndLook(bus, shard, heard));
    });
  },
  TEST_MS_MAX,
);

test(
  "closing does not wait for a frozen server",
  async () => {
    const server = await start();
    const bus = await open(server.url);
    await server.kill("SIGSTOP");
    undo.push(() => server.kill("SIGCONT"));
    const closing = startStopwatch();
    await bus.close();
    expect(closing.stop()).toBeLessThan(1_500);
  },
  TEST_MS_MAX,
);

test(
  "what was sent just before closing arrives",
  async () => {
    const server = await start();
    const leaving = await open(server.url);
    const staying = await open(server.url);
    const heard = hearShards(staying);
    await until(() => sendAndLook(leaving, 0, heard));
    for (let shard = 1; shard <= 1_000; shard++) leaving.sendCommand(commandOf(shard));
    await leaving.close();
    await until(() => heard.size === 1_001);
  },
  TEST_MS_MAX,
);

test("a malformed URL is refused at once", async () => {
  expect(openBus("not a url", log)).rejects.toThrow();
});

async function start(before?: NatsServer): Promise<NatsServer> {
  const server = await startNatsServer(before && { port: before.port, storeDir: before.storeDir });
  undo.push(() => server.stop());
  return server;
}

async function open(url: string): Promise<Bus> {
  const bus = await openBus(url, log);
  undo.push(() => bus.close());
  return bus;
}

/** Milliseconds until the condition is true, without the time for which the machine holds the process up. */
async function timeUntil(condition: () => boolean): Promise<number> {
  const stopwatch = startStopwatch();
  await until(condition);
  return stopwatch.stop();
}

/** Expects less than `timeMs` of a trial, and repeats it, since the time for which the machine holds the server up counts. */
async function inOneTrial(timeMs: number, trial: () => Promise<number>): Promise<void> {
  let elapsedMs = await trial();
  for (let more = 1; more < TRIALS_MAX && elapsedMs >= timeMs; more++) elapsedMs = await trial();
  expect(elapsedMs).toBeLessThan(timeMs);
}

function commandOf(shard: number): Command {
  return {
    region: "us-east",
    shard,
    projectNo: 1,
    owed: [{ projectNo: 1, flowClass: "development jobs", id: "job_a", attempt: 1, dueAt: 0 }],
  };
}

function hearShards(bus: Bus, region: Region = "us-east"): Set<number> {
  const shards = new Set<number>();
  bus.consumeCommands([region], ({ shard }) => shards.add(shard));
  return shards;
}

function sendAndLook(sender: Bus, shard: number, heard: Set<number>): boolean {
  sender.sendCommand(commandOf(shard));
  return heard.has(shard);
}

/** 64 KB in one message. */
function floodItems() {
  return Array.from({ length: 900 }, (_, no) => ({
    projectNo: 1,
    flowClass: "production jobs" as const,
    id: `job_${no}_${"x".repeat(40)}`,
    attempt: 1,
    dueAt: 1_790_000_000_000,
    shard: 1,
  }));
}

/** A path to the server that can be cut and mended, for one of several nodes. */
async function startProxy(serverPort: number) {
  const sockets = new Set<Socket>();
  const through = (socket: Socket) => {
    sockets.add(socket);
    socket.on("error", () => socket.destroy());
    socket.on("close", () => sockets.delete(socket));
    return socket;
  };
  let listener: Server;
  async function listenOn(port: number): Promise<void> {
    listener = createServer((near) => {
      const far = through(createConnection(serverPort, "127.0.0.1"));
      through(near).pipe(far).pipe(near);
      near.on("close", () => far.destroy());
      far.on("close", () => near.destroy());
    });
    const { promise, resolve } = Promise.withResolvers<void>();
    listener.listen(port, "127.0.0.1", resolve);
    await promise;
  }
  async function cut(): Promise<void> {
    const closed = Promise.withResolvers<void>();
    listener.close(() => closed.resolve());
    for (const socket of sockets) socket.destroy();
    await closed.promise;
  }
  const port = await claimPort();
  await listenOn(port);
  undo.push(cut);
  return { port, cut, mend: () => listenOn(port) };
}
