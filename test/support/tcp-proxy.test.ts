import { afterAll, afterEach, beforeAll, expect, test } from "bun:test";
import net from "node:net";
import { startTcpProxy, type TcpProxy } from "./tcp-proxy.ts";

/** Answers each piece of data with the same in capitals. */
const server = net.createServer((socket) => {
  socket.on("error", () => socket.destroy());
  socket.on("data", (chunk) => {
    seen += chunk;
    socket.write(String(chunk).toUpperCase());
  });
});
let seen = "";
let proxy: TcpProxy;
const clients: net.Socket[] = [];

beforeAll(async () => {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  proxy = await startTcpProxy({ host: "127.0.0.1", port: (server.address() as net.AddressInfo).port });
});
afterEach(() => {
  for (const client of clients.splice(0)) client.destroy();
  seen = "";
});
afterAll(async () => {
  await proxy.stop();
  server.close();
});

/** A connection through the proxy, and all that it has received. */
function connect(): { socket: net.Socket; received: () => string; isOver: () => boolean } {
  const socket = net.connect(proxy.port, "127.0.0.1");
  clients.push(socket);
  let text = "";
  let isOver = false;
  socket.on("data", (chunk) => (text += chunk));
  socket.on("error", () => socket.destroy());
  socket.on("close", () => (isOver = true));
  return { socket, received: () => text, isOver: () => isOver };
}

async function until(holds: () => boolean): Promise<void> {
  const giveUpAt = performance.now() + 10_000;
  while (!holds()) {
    if (performance.now() > giveUpAt) throw new Error("it did not come to that");
    await Bun.sleep(2);
  }
}

test("what is held on its way back arrives at the release, in its order", async () => {
  const client = connect();
  proxy.hold("to client");
  client.socket.write("one");
  await until(() => seen === "one");
  client.socket.write("two");
  await until(() => seen === "onetwo");
  expect(client.received()).toBe("");
  proxy.release();
  await until(() => client.received() === "ONETWO");
});

test("what is held on its way there is lost with a client that ends", async () => {
  proxy.hold("to server");
  const [dying, living] = [connect(), connect()];
  dying.socket.write("lost");
  living.socket.write("kept");
  await until(() => proxy.counts.held >= 2);
  dying.socket.destroy();
  await until(dying.isOver);
  // The proxy hears of the end later than the client.
  const other = connect();
  await until(() => other.socket.readyState === "open");
  proxy.release();
  await until(() => living.received() === "KEPT");
  expect(seen).toBe("kept");
});

test("a swallowed answer never arrives, although the server has done what was asked", async () => {
  const client = connect();
  proxy.swallowAnswers();
  client.socket.write("commit");
  await until(() => seen === "commit" && proxy.counts.swallowed > 0);
  proxy.release();
  await until(client.isOver);
  expect(client.received()).toBe("");
});

test("what is delayed arrives later", async () => {
  const client = connect();
  proxy.delay(50);
  const sentAt = performance.now();
  client.socket.write("slow");
  await until(() => client.received() === "SLOW");
  expect(performance.now() - sentAt).toBeGreaterThan(100);
  proxy.release();
});
