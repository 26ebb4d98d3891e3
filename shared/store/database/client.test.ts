import { afterAll, afterEach, beforeAll, expect, test } from "bun:test";
import net from "node:net";
import { openTestDatabase } from "../../../test/support/database.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { type PooledDatabase, StoreUnavailable } from "./database.ts";

const ROW_MESSAGE = "D".charCodeAt(0);
/** The message that a pooler writes to its client when the server dies. */
const POOLERS_ERROR = errorMessage("SFATAL", "C08P01", "Mserver conn crashed?");
/** The end of the row that is missing. It is shorter than the error behind it, so the row seems to be complete. */
const MISSING_BYTES = 20;
const COLUMNS = Array.from({ length: 30 }, (_, index) => `${index} AS c${index}`).join();

let store: TestStore;
let db: PooledDatabase;
let isBreaking = false;
const sockets: net.Socket[] = [];
/** This pooler passes everything on until it breaks off a row. */
const pooler = net.createServer((client) => {
  const { hostname, port } = new URL(store.url);
  const server = net.connect(Number(port), hostname);
  sockets.push(client, server);
  for (const socket of [client, server]) socket.on("error", () => socket.destroy());
  client.on("data", (bytes) => server.write(bytes));
  client.on("close", () => server.destroy());
  server.on("data", (bytes: Buffer) => {
    const row = isBreaking ? findRow(bytes) : null;
    if (row === null) {
      client.write(bytes);
      return;
    }
    isBreaking = false;
    client.end(Buffer.concat([bytes.subarray(0, row.end - MISSING_BYTES), POOLERS_ERROR]));
  });
});

beforeAll(async () => {
  store = await startStore();
  await new Promise<void>((resolve) => pooler.listen(0, "127.0.0.1", resolve));
  const url = new URL(store.url);
  url.hostname = "127.0.0.1";
  url.port = String((pooler.address() as net.AddressInfo).port);
  db = openTestDatabase(url.href, 1, "silent");
});
afterEach(() => {
  isBreaking = false;
});
afterAll(async () => {
  await db.close();
  for (const socket of sockets) socket.destroy();
  pooler.close();
  await store.stop();
});

test("a row that breaks off with a pooler's error behind it fails its statement, and the process goes on", async () => {
  const uncaught: unknown[] = [];
  const note = (error: unknown) => uncaught.push(error);
  process.on("uncaughtException", note);
  await db.run("one", "SELECT 1 AS one", []);
  isBreaking = true;
  await expect(db.run("row", `SELECT ${COLUMNS}`, [])).rejects.toBeInstanceOf(StoreUnavailable);
  expect(await db.run<{ one: number }>("one", "SELECT 1 AS one", [])).toEqual([{ one: 1 }]);
  process.off("uncaughtException", note);
  expect(uncaught).toEqual([]);
});

/** The first row in what a server has sent; null if there is none. */
function findRow(bytes: Buffer): { end: number } | null {
  for (let at = 0; at + 5 <= bytes.length; ) {
    const end = at + 1 + bytes.readUInt32BE(at + 1);
    if (bytes[at] === ROW_MESSAGE && end <= bytes.length) return { end };
    at = end;
  }
  return null;
}

function errorMessage(...fields: string[]): Buffer {
  const body = Buffer.from(`${fields.join("\0")}\0\0`);
  const head = Buffer.alloc(5);
  head.write("E");
  head.writeUInt32BE(body.length + 4, 1);
  return Buffer.concat([head, body]);
}
