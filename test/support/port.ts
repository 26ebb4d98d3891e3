import { randomInt } from "node:crypto";
import { createSocket } from "node:dgram";
import { createServer } from "node:net";

/** This range is below the ports that systems choose when a process asks for any port. */
const [FIRST, LAST] = [20_000, 32_000];
const TRIES_MAX = 100;

/**
 * Claims a free port of the loopback address, for a server that is told its port. The port belongs to this process as
 * long as the process lives, also while the server is not running. This process holds the UDP port of the same number,
 * by which other test processes see the claim. The system frees it however this process ends.
 */
export async function claimPort(): Promise<number> {
  for (let attempt = 0; attempt < TRIES_MAX; attempt++) {
    const port = randomInt(FIRST, LAST);
    if ((await holdUdp(port)) && (await isFree(port))) return port;
  }
  throw new Error(`no port between ${FIRST} and ${LAST} is free`);
}

function holdUdp(port: number): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const socket = createSocket("udp4");
  socket.on("error", () => resolve(false));
  socket.bind({ port, address: "127.0.0.1", exclusive: true }, () => {
    socket.unref();
    resolve(true);
  });
  return promise;
}

function isFree(port: number): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const server = createServer();
  server.on("error", () => resolve(false));
  server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  return promise;
}
