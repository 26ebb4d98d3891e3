import { expect } from "bun:test";
import net from "node:net";
import type { TestGateway, TestProject } from "../../support/gateway.ts";

/** A new connection must be served within this time, whatever other clients do. If held up it would wait for 10 s and more. */
const AT_ONCE_MS_MAX = 5_000;
const SERVED_TRIES_MAX = 3;
const RAW_TIMEOUT_MS = 60_000;

/** The lines of a request's head, without the empty line at its end. */
export function head(project: TestProject | null, start: string, ...lines: string[]): string {
  const key = project === null ? [] : [`Authorization: Bearer ${project.production}`];
  return [`${start} HTTP/1.1`, "Host: test", ...key, ...lines].map((line) => `${line}\r\n`).join("");
}

export const JSON_TYPE = "Content-Type: application/json";

export function chunked(...chunks: string[]): string {
  return [...chunks, ""].map(chunkOf).join("");
}

export function chunkOf(text: string): string {
  return `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`;
}

/** Sends bytes as they are. Answers everything that comes until the server ends the connection. */
export function exchange(port: number, bytes: string | Uint8Array, { end = false } = {}): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  let text = "";
  const socket = net.connect({ port, host: "127.0.0.1", allowHalfOpen: true }, () => {
    if (end) socket.end(bytes);
    else socket.write(bytes);
  });
  socket.setTimeout(RAW_TIMEOUT_MS, () => reject(new Error("the server did not end the connection")));
  socket.on("data", (chunk: Buffer) => (text += chunk.toString("latin1")));
  // The server's cut while this client still sends arrives as a reset.
  socket.on("error", () => resolve(text));
  socket.on("end", () => socket.end());
  socket.on("close", () => resolve(text));
  return promise;
}

/** Expects that no table has a new row after `act`, and that the next caller is served at once. */
export async function expectNoTrace<Result>(
  gateway: TestGateway,
  project: TestProject,
  act: () => Promise<Result>,
): Promise<Result> {
  const before = await gateway.countRows();
  const result = await act();
  await expectServed(gateway, project);
  expect(await gateway.countRows()).toEqual(before);
  return result;
}

/**
 * Expects that a request on a new connection is answered at once: little later than a query to Postgres at the same time. A busy machine
 * may hold up one request or two.
 */
export async function expectServed(gateway: TestGateway, project: TestProject): Promise<void> {
  let laterMs = Number.NaN;
  for (let tries = 0; tries < SERVED_TRIES_MAX && !(laterMs < AT_ONCE_MS_MAX); tries++)
    laterMs = await measureServed(gateway, project);
  expect(laterMs).toBeLessThan(AT_ONCE_MS_MAX);
}

/** How much later a request is answered than a query to Postgres. */
async function measureServed(gateway: TestGateway, project: TestProject): Promise<number> {
  const startedAt = performance.now();
  const tookMs = async (act: Promise<unknown>) => {
    await act;
    return performance.now() - startedAt;
  };
  const served = exchange(gateway.port, `${head(project, "GET /v2/project", "Connection: close")}\r\n`);
  const [servedMs, asideMs] = await Promise.all([tookMs(served), tookMs(gateway.query("SELECT 1"))]);
  expect(await served).toStartWith("HTTP/1.1 200");
  return servedMs - asideMs;
}
