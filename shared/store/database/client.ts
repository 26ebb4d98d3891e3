import type { Duplex } from "node:stream";
import pg from "pg";

/** The part of the driver's connection that its types leave out. */
interface Connection {
  attachListeners(stream: Duplex): void;
}

/**
 * A client that gives up a connection when it cannot read the bytes from it. The driver reads in a listener of the socket,
 * where an error would end the whole process, with all that is on the wire. Unreadable bytes come when a server dies while
 * a pooler passes on its rows: the pooler writes its own error behind half a row. The statement fails as if the connection
 * had been lost.
 */
export class Client extends pg.Client {
  constructor(config?: pg.ClientConfig) {
    super(config);
    const { connection } = this as unknown as { connection: Connection };
    const attachListeners = connection.attachListeners.bind(connection);
    // The driver calls this with the socket, or with the TLS stream over it.
    connection.attachListeners = (stream) => {
      attachListeners(stream);
      for (const read of stream.listeners("data") as ((bytes: Buffer) => void)[]) {
        stream.off("data", read);
        stream.on("data", (bytes: Buffer) => {
          try {
            read(bytes);
          } catch (cause) {
            stream.destroy(new Error("Connection given up: what came over it cannot be read", { cause }));
          }
        });
      }
    };
  }
}
