import { afterEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { startBlackhole } from "../support/target-hostile.ts";
import { startRawServer } from "./raw-server.ts";
import { countFds, until } from "./until.ts";

/** More bytes than the system accepts from a write while the other side does not read. */
const LARGE = Buffer.alloc(8_000_000, "x");
/** A server that adds a byte to the file CLOSED for each connection that it has closed. */
const TARGET = `
  const net = require("node:net");
  const note = () => require("node:fs").appendFileSync(process.env.CLOSED, ".");
  const server = net.createServer((socket) => {
    socket.on("error", () => undefined);
    socket.on("data", () => { socket.write("x"); setTimeout(() => socket.end(note), 5); });
  });
  server.listen(0, "127.0.0.1", () => console.log(server.address().port));
`;

const STILL_MS_MAX = 20_000;

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

/** Starts a server that passes each new connection to `take`. Answers its port. */
async function accept(take: (socket: net.Socket) => void): Promise<number> {
  const server = net.createServer((socket) => take(socket.on("error", () => undefined)));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  closing.push(() => server.close());
  return (server.address() as net.AddressInfo).port;
}

/** Opens a connection. Answers it with its events in order. */
async function connect(port: number): Promise<{ socket: net.Socket; events: string[] }> {
  const events: string[] = [];
  const socket = net.connect({ port, host: "127.0.0.1", noDelay: true });
  closing.push(() => socket.destroy());
  socket.on("data", (chunk) => events.push(chunk.toString("latin1")));
  socket.on("end", () => events.push("end"));
  socket.on("error", (error: NodeJS.ErrnoException) => events.push(String(error.code)));
  socket.on("close", () => events.push("close"));
  await new Promise<void>((resolve) => socket.once("connect", resolve));
  return { socket, events };
}

/** Keeps the event loop from turning until `isOver` answers true, and a moment longer. */
function standStill(isOver: () => boolean): void {
  const giveUpAt = performance.now() + STILL_MS_MAX;
  while (!isOver() && performance.now() < giveUpAt);
  const untilAt = performance.now() + 2;
  while (performance.now() < untilAt);
}

describe("a socket of node:net", () => {
  test("that is destroyed while it connects is closed at once, without further events", async () => {
    const { url, stop } = await startBlackhole();
    closing.push(stop);
    const port = Number(new URL(url).port);
    // The first connections fill the room that the blackhole had left.
    const early = Array.from({ length: 5 }, () =>
      net.connect(port, "127.0.0.1").on("error", () => undefined),
    );
    await Bun.sleep(100);
    const fdsBefore = countFds();
    const events: string[] = [];
    const sockets = Array.from({ length: 50 }, () => net.connect(port, "127.0.0.1"));
    for (const socket of sockets) {
      socket.on("error", (error) => events.push(String(error)));
      socket.on("connect", () => events.push("connect"));
    }
    await until(() => countFds() >= fdsBefore + 50);
    for (const socket of sockets) socket.destroy();
    await until(() => countFds() <= fdsBefore);
    expect(events).toEqual([]);
    for (const socket of early) socket.destroy();
  });

  test("reports why it could not connect by a code, with the address", async () => {
    const server = await startRawServer(() => undefined);
    await server.stop();
    const error = await new Promise<NodeJS.ErrnoException>((resolve) => {
      net.connect(server.port, "127.0.0.1").on("error", resolve);
    });
    expect(error).toMatchObject({ code: "ECONNREFUSED", syscall: "connect" });
    expect(error.message).toContain("127.0.0.1");
  });

  test("tells an end from a reset", async () => {
    const ending = await connect(await accept((socket) => socket.end("last")));
    await until(() => ending.events.includes("close"));
    expect(ending.events).toEqual(["last", "end", "close"]);
    const resetting = await connect(await accept((socket) => setTimeout(() => socket.resetAndDestroy(), 20)));
    await until(() => resetting.events.includes("close"));
    expect(resetting.events).toEqual(["ECONNRESET", "close"]);
  });

  test("gives what it has received before it reports a failed write", async () => {
    const port = await accept((socket) => {
      socket.pause();
      socket.write("answer", () => setTimeout(() => socket.destroy(), 20));
    });
    for (let count = 0; count < 10; count++) {
      const { socket, events } = await connect(port);
      socket.write(LARGE);
      await until(() => events.includes("close"));
      expect(events[0]).toBe("answer");
    }
  });

  test("calls back after a write once the system has accepted all of it", async () => {
    let reader: net.Socket | undefined;
    const port = await accept((socket) => {
      reader = socket.pause();
    });
    const { socket } = await connect(port);
    const written: string[] = [];
    socket.write("small", () => written.push("small"));
    socket.write(LARGE, () => written.push("large"));
    await until(() => written.length > 0 && reader !== undefined);
    await Bun.sleep(50);
    expect(written).toEqual(["small"]);
    reader?.resume();
    await until(() => written.length === 2);
  });

  test("sends several writes of one turn in one piece", async () => {
    const pieces: number[] = [];
    const port = await accept((socket) => socket.on("data", (chunk) => pieces.push(chunk.length)));
    for (let count = 1; count <= 20; count++) {
      const { socket } = await connect(port);
      socket.write(Buffer.alloc(2_000));
      await until(() => pieces.length === count);
    }
    expect(new Set(pieces)).toEqual(new Set([2_000]));
  });

  // Kept connections rely on this: a connection that was closed before a request must not carry that request.
  test.each(["a timer", "a socket", "a promise"])(
    "reports within two turns of the event loop, counted from %s, that the other side has closed it",
    async (from) => {
      // The target is a process of its own, which goes on while this process stands still.
      const folder = mkdtempSync(join(tmpdir(), "sockets-"));
      closing.push(() => rmSync(folder, { recursive: true }));
      const CLOSED = join(folder, "closed");
      writeFileSync(CLOSED, "");
      const target = Bun.spawn([process.execPath, "-e", TARGET], {
        env: { ...process.env, CLOSED },
        stdout: "pipe",
      });
      closing.push(() => target.kill());
      const { value } = await target.stdout.getReader().read();
      const port = Number(new TextDecoder().decode(value));
      for (let count = 1; count <= 20; count++) {
        const { socket, events } = await connect(port);
        const answered = new Promise<void>((resolve) => socket.once("data", () => resolve()));
        socket.write("x");
        await answered;
        if (from === "a timer") await new Promise<void>((resolve) => setTimeout(resolve, 1));
        if (from === "a socket") await connect(port);
        standStill(() => statSync(CLOSED).size === count);
        expect(
          await new Promise((resolve) => setImmediate(() => setImmediate(() => resolve(events[1])))),
        ).toBe("end");
      }
    },
  );
});
