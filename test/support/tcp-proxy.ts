import net from "node:net";

/** A proxy between two parties, with the faults that a network has. */
export interface TcpProxy {
  port: number;
  /** Both ends go silent, without an error or an end, like a dead network. */
  freeze(): void;
  thaw(): void;
  /** Ends every connection and refuses new ones. */
  cut(): void;
  mend(): void;
  /** Passes on the first request that contains this text, and drops all answers of its connection from then on. */
  withholdAnswersTo(text: string): void;
  /** Data sent this way waits until `release`, as on a network that is cut one way and whose ends send again later. */
  hold(way: Way): void;
  /** Everything arrives so many milliseconds later, both ways. */
  delay(ms: number): void;
  /** Requests are passed on, and every answer is lost. A connection that has lost one ends at `release`. */
  swallowAnswers(): void;
  /** Ends `hold`, `delay` and `swallowAnswers`. */
  release(): void;
  /** How many pieces of data were held, and how many swallowed. */
  readonly counts: Readonly<Record<"held" | "swallowed", number>>;
  stop(): Promise<void>;
}

export type Way = "to server" | "to client";

/** Each connection goes to the address that `target` has by then, so that another server can take its place. */
export async function startTcpProxy(target: { host: string; port: number }): Promise<TcpProxy> {
  const sockets = new Set<net.Socket>();
  const waiting: (() => void)[] = [];
  let isFrozen = false;
  let isCut = false;
  let withheld: string | null = null;
  const held = new Set<Way>();
  let delayMs = 0;
  let isSwallowing = false;
  const counts = { held: 0, swallowed: 0 };
  /** The functions that pass on the data that waits. */
  const flushes = new Set<() => void>();
  /** The connections that have lost an answer. */
  const broken = new Set<net.Socket>();

  const server = net.createServer((client) => {
    keep(client);
    if (isCut) {
      client.destroy();
    } else if (isFrozen) {
      client.pause();
      waiting.push(() => join(client));
    } else {
      join(client);
    }
  });

  function keep(socket: net.Socket): void {
    sockets.add(socket);
    socket.on("error", () => socket.destroy());
    socket.on("close", () => sockets.delete(socket));
  }

  function join(client: net.Socket): void {
    if (client.destroyed) return;
    const upstream = net.connect(target.port, target.host);
    keep(upstream);
    let isWithheld = false;
    const toServer = openFlow("to server", upstream);
    const toClient = openFlow("to client", client);
    client.on("data", (chunk) => {
      isWithheld ||= withheld !== null && chunk.includes(withheld);
      toServer.push(chunk);
    });
    upstream.on("data", (chunk) => {
      if (isWithheld) return;
      if (isSwallowing) {
        counts.swallowed++;
        broken.add(client);
      } else toClient.push(chunk);
    });
    client.on("close", () => {
      // Data of a dead client that is still under way is lost with the client.
      toServer.drop();
      toClient.drop();
      broken.delete(client);
      upstream.destroy();
    });
    upstream.on("close", () => toClient.end());
    client.resume();
  }

  /** One direction of a connection. */
  function openFlow(way: Way, into: net.Socket) {
    let queue: { chunk: Buffer | string; readyAt: number }[] = [];
    let isEnding = false;
    let timer: NodeJS.Timeout | undefined;
    function flush(): void {
      clearTimeout(timer);
      while (queue[0] !== undefined && !held.has(way) && queue[0].readyAt <= performance.now())
        into.write(queue.shift()?.chunk ?? "");
      if (queue[0] === undefined) {
        flushes.delete(flush);
        if (isEnding) into.destroy();
      } else if (!held.has(way)) timer = setTimeout(flush, Math.max(0, queue[0].readyAt - performance.now()));
    }
    return {
      push(chunk: Buffer | string): void {
        if (queue.length === 0 && delayMs === 0 && !held.has(way)) {
          into.write(chunk);
          return;
        }
        if (held.has(way)) counts.held++;
        queue.push({ chunk, readyAt: performance.now() + delayMs });
        flushes.add(flush);
        flush();
      },
      /** Closes the connection once all has arrived. */
      end(): void {
        isEnding = true;
        flush();
      },
      drop(): void {
        queue = [];
        clearTimeout(timer);
        flushes.delete(flush);
      },
    };
  }

  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    port: (server.address() as net.AddressInfo).port,
    counts,
    freeze() {
      isFrozen = true;
      for (const socket of sockets) socket.pause();
    },
    thaw() {
      isFrozen = false;
      for (const socket of sockets) socket.resume();
      for (const start of waiting.splice(0)) start();
    },
    cut() {
      isCut = true;
      for (const socket of sockets) socket.destroy();
    },
    mend() {
      isCut = false;
    },
    withholdAnswersTo(text) {
      withheld = text;
    },
    hold(way) {
      held.add(way);
    },
    delay(ms) {
      delayMs = ms;
    },
    swallowAnswers() {
      isSwallowing = true;
    },
    release() {
      held.clear();
      delayMs = 0;
      isSwallowing = false;
      for (const flush of flushes) flush();
      for (const client of broken) client.destroy();
    },
    async stop() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
