import net from "node:net";

/** Something between two parties that can stop: no error, no end, only silence, as when a network goes dead. */
export interface TcpProxy {
  port: number;
  freeze(): void;
  thaw(): void;
  /** Ends every connection and refuses new ones. */
  cut(): void;
  mend(): void;
  stop(): Promise<void>;
}

export async function startTcpProxy(target: { host: string; port: number }): Promise<TcpProxy> {
  const sockets = new Set<net.Socket>();
  const waiting: (() => void)[] = [];
  let isFrozen = false;
  let isCut = false;

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
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      from.on("data", (chunk) => to.write(chunk));
      from.on("close", () => to.destroy());
    }
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
    async stop() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
