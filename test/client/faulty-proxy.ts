import type { Socket } from "node:net";
import { answerOf, startRawServer } from "../runtime-contract/raw-server.ts";
import type { TestGateway } from "../support/gateway.ts";

/** The fault of one request between a client and the gateway. */
export type Fault =
  | "none"
  /** The gateway never gets the request, and the connection ends. */
  | "request lost"
  /** The gateway executes the request, and the connection ends. */
  | "answer lost"
  | "answer cut in half"
  /** The gateway never gets the request, and the connection stays silent. */
  | "request stuck"
  | "answer stuck"
  | "answer stuck halfway"
  /** The proxy itself answers. */
  | { status: string; headers?: Record<string, string>; body?: string };

export interface FaultyProxy {
  url: string;
  /** One fault for each of the next requests; requests beyond them pass. */
  faults: Fault[];
  /** The requests so far, with head and body as they came. */
  requests: string[];
  /** The values of a header over all requests, empty where a request lacks it. */
  valuesOf(header: string): string[];
  stop(): Promise<void>;
}

export async function startFaultyProxy(gateway: TestGateway): Promise<FaultyProxy> {
  const faults: Fault[] = [];
  const server = await startRawServer((socket, request) => {
    void answer(socket, request, faults.shift() ?? "none");
  });

  async function answer(socket: Socket, request: string, fault: Fault): Promise<void> {
    if (typeof fault !== "string") {
      socket.write(answerOf(fault.status, fault.headers, fault.body));
      return;
    }
    const forward = () => gateway.send(Buffer.from(request, "latin1"));
    switch (fault) {
      case "none":
        socket.write(await forward());
        break;
      case "request lost":
        socket.destroy();
        break;
      case "answer lost":
        await forward();
        socket.destroy();
        break;
      case "answer cut in half": {
        const text = await forward();
        socket.write(text.slice(0, -10), () => socket.destroy());
        break;
      }
      case "request stuck":
        break;
      case "answer stuck":
        await forward();
        break;
      case "answer stuck halfway":
        socket.write((await forward()).slice(0, -10));
        break;
    }
  }

  return {
    url: server.url,
    faults,
    requests: server.requests,
    valuesOf: (header) =>
      server.requests.map((request) => new RegExp(`\r\n${header}: (.*)\r\n`, "i").exec(request)?.[1] ?? ""),
    stop: () => server.stop(),
  };
}
