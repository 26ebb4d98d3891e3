import { quantilesOf } from "./quantiles.ts";

/**
 * Makes the requests, as a process of its own: `bun load.ts JSON`. With a rate it keeps to it, however late the answers
 * are, as long as a connection is free; without one each connection asks as soon as it was answered.
 */

export interface Load {
  port: number;
  key: string;
  path: string;
  body: string;
  /** Requests per second; null for as many as are answered. */
  ratePerS: number | null;
  seconds: number;
  connections: number;
}

export interface LoadReport {
  answeredCount: number;
  /** Heads and bodies, both ways. */
  bytes: number;
  /** From a request to its 201, at QUANTILES. */
  latencyMs: number[];
}

const PACE_EVERY_MS = 1;

async function run({ port, key, path, body, ratePerS, seconds, connections }: Load): Promise<LoadReport> {
  const request = `POST ${path} HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nAuthorization: Bearer ${key}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  const latencies: number[] = [];
  let bytes = 0;
  let openCount = 0;
  const begunAt = performance.now();
  const endAt = begunAt + seconds * 1_000;
  const wantedCount = ratePerS === null ? Number.POSITIVE_INFINITY : Math.round(ratePerS * seconds);
  let askedCount = 0;
  const isOver = () => askedCount >= wantedCount || (ratePerS === null && performance.now() >= endAt);
  const free: Bun.Socket<Talk>[] = [];
  const done = Promise.withResolvers<LoadReport>();

  function ask(socket: Bun.Socket<Talk>): void {
    askedCount++;
    socket.data.askedAt = performance.now();
    bytes += request.length;
    socket.write(request);
  }
  function goOn(socket: Bun.Socket<Talk>): void {
    if (isOver()) socket.end();
    else if (ratePerS === null) ask(socket);
    else free.push(socket);
  }
  /** The requests that are due by now, as far as connections are free. */
  function pace(): void {
    const dueCount = Math.min(wantedCount, ((performance.now() - begunAt) / 1_000) * (ratePerS ?? 0));
    while (askedCount < dueCount) {
      const socket = free.pop();
      if (socket === undefined) break;
      ask(socket);
    }
    if (isOver()) for (const socket of free.splice(0)) socket.end();
    else setTimeout(pace, PACE_EVERY_MS);
  }

  await Promise.all(
    Array.from({ length: connections }, () =>
      Bun.connect<Talk>({
        hostname: "127.0.0.1",
        port,
        data: { askedAt: 0, text: "" },
        socket: {
          open(socket) {
            openCount++;
            goOn(socket);
          },
          data(socket, chunk) {
            socket.data.text += chunk.toString("latin1");
            const { text, askedAt } = socket.data;
            const end = text.indexOf("\r\n\r\n");
            if (end === -1) return;
            const length = Number(/content-length: (\d+)/i.exec(text)?.[1]);
            if (text.length < end + 4 + length) return;
            if (!text.startsWith("HTTP/1.1 201")) return done.reject(new Error(text));
            latencies.push(performance.now() - askedAt);
            bytes += text.length;
            socket.data.text = "";
            goOn(socket);
          },
          close() {
            openCount--;
            if (openCount === 0)
              done.resolve({ answeredCount: latencies.length, bytes, latencyMs: quantilesOf(latencies) });
          },
          error: (_socket, error) => done.reject(error),
        },
      }),
    ),
  );
  if (ratePerS !== null) pace();
  return done.promise;
}

interface Talk {
  askedAt: number;
  text: string;
}

if (import.meta.main)
  process.stdout.write(JSON.stringify(await run(JSON.parse(process.argv[2] ?? "") as Load)));
