import net from "node:net";

/** A proxy between two parties that can go silent, without an error or an end, like a dead network. */
export interface TcpProxy {
  port: number;
  freeze(): void;
  thaw(): void;
  /** Ends every connection and refuses new ones. */
  cut(): void;
  mend(): void;
  /** Passes on the first request that contains this text, and drops all answers of its connection from then on. */
  withholdAnswersTo(text: string): void;
  stop(): Promise<void>;
}

export async function startTcpProxy(target: { host: string; port: number }): Promise<TcpProxy> {
  const sockets = new Set<net.Socket>();
  const waiting: (() => void)[] = [];
  let isFrozen = false;
  let isCut = false;
  let withheld: string | null = null;

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
    client.on("data", (chunk) => {
      isWithheld ||= withheld !== null && chunk.includes(withheld);
      upstream.write(chunk);
    });
    upstream.on("data", (chunk) => {
      if (!isWithheld) client.write(chunk);
    });
    client.on("close", () => upstream.destroy());
    upstream.on("close", () => client.destroy());
    client.resume();
  }

  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    port: (server.address() as net.AddressInfo).port,
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
    async stop() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
