import net from "node:net";
import tls from "node:tls";

/** A server that records each request byte by byte, and answers with the bytes that a test writes. */
export interface RawServer {
  port: number;
  /** http, or https with `tls`. */
  url: string;
  /** Every complete request as it came, head and body. */
  requests: string[];
  connectionCount: number;
  readonly openCount: number;
  stop(): Promise<void>;
}

export async function startRawServer(
  answer: (socket: net.Socket, request: string, place: number) => void,
  options: { tls?: tls.TlsOptions; host?: string; port?: number } = {},
): Promise<RawServer> {
  const sockets = new Set<net.Socket>();
  const requests: string[] = [];
  let connectionCount = 0;
  const accept = (socket: net.Socket) => {
    connectionCount++;
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
    socket.on("error", () => socket.destroy());
    let text = "";
    socket.on("data", (chunk: Buffer) => {
      text += chunk.toString("latin1");
      for (let end = endOfRequest(text); end > 0; end = endOfRequest(text)) {
        const request = text.slice(0, end);
        text = text.slice(end);
        answer(socket, request, requests.push(request));
      }
    });
  };
  const server = options.tls === undefined ? net.createServer(accept) : tls.createServer(options.tls, accept);
  server.on("tlsClientError", () => {});
  const host = options.host ?? "127.0.0.1";
  await new Promise<void>((resolve) => server.listen(options.port ?? 0, host, resolve));
  const { port } = server.address() as net.AddressInfo;
  return {
    port,
    url: `${options.tls === undefined ? "http" : "https"}://${host.includes(":") ? `[${host}]` : host}:${port}`,
    requests,
    get connectionCount() {
      return connectionCount;
    },
    get openCount() {
      return sockets.size;
    },
    async stop() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

/** The bytes of an answer, with its length unless the headers say otherwise. */
export function answerOf(status: string, headers: Record<string, string> = {}, body = ""): string {
  const lines = Object.entries({ "content-length": String(Buffer.byteLength(body)), ...headers });
  return `HTTP/1.1 ${status}\r\n${lines.map(([name, value]) => `${name}: ${value}\r\n`).join("")}\r\n${body}`;
}

/** The length of the first request in bytes; 0 while it is incomplete. */
function endOfRequest(text: string): number {
  const headEnd = text.indexOf("\r\n\r\n");
  if (headEnd < 0) return 0;
  const length = Number(/\r\ncontent-length: *(\d+)/i.exec(text.slice(0, headEnd))?.[1] ?? 0);
  const end = headEnd + 4 + length;
  return text.length >= end ? end : 0;
}
