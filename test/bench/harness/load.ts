import { preciseNow, quantilesOf } from "./quantiles.ts";

/**
 * A program that makes the requests: `bun load.ts`, told by JSON on stdin. With a rate it keeps to the rate however late
 * the answers are. A request that finds no connection free counts as asked at the instant when it should have been.
 * Without a rate, each connection asks as soon as it was answered.
 */

export interface Load {
  port: number;
  key: string;
  path: string;
  /** The request's body, in which RUN_AT is replaced by the instant of the request's jobs. */
  body: string;
  /** The keys and bodies that requests send in turn, instead of one key and body. */
  turns?: { key: string; body: string }[];
  /** The requests' instants, this many a second from `firstAt` on. Only with `count`. */
  spread?: { firstAt: number; perS: number };
  /** Sends exactly this many requests, however long they take. */
  count?: number;
  /** Reports the instant of each job's 201. */
  tellsAnswers?: boolean;
  /** Requests per second; null for as many as are answered. */
  ratePerS: number | null;
  seconds: number;
  connections: number;
}

export const RUN_AT = "@run_at@";

export interface LoadReport {
  answeredCount: number;
  /** Job ids with the instants of their 201 and of their request's due time. Only with `tellsAnswers`. */
  answers: [jobId: string, at: number, askedAt: number][];
  /** Heads and bodies in both directions. */
  bytes: number;
  /** The time from a request to its 201, at QUANTILES. With a rate it begins when the request should have been asked. */
  latencyMs: number[];
}

const PACE_EVERY_MS = 1;

async function run(load: Load): Promise<LoadReport> {
  const { port, key, path, ratePerS, seconds, connections, spread } = load;
  const requestOf = (key: string, body: string) =>
    `POST ${path} HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nAuthorization: Bearer ${key}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  const turns = load.turns ?? [{ key, body: load.body }];
  const plain = turns.map((turn) => requestOf(turn.key, turn.body));
  const answers: LoadReport["answers"] = [];
  const latencies: number[] = [];
  let bytes = 0;
  let openCount = 0;
  let begunAt = performance.now();
  const endAt = begunAt + seconds * 1_000;
  const isPaced = ratePerS !== null;
  const wantedCount = load.count ?? (isPaced ? Math.round(ratePerS * seconds) : Number.POSITIVE_INFINITY);
  let askedCount = 0;
  const isOver = () =>
    askedCount >= wantedCount || (!isPaced && load.count === undefined && performance.now() >= endAt);
  const free: Bun.Socket<Talk>[] = [];
  const done = Promise.withResolvers<LoadReport>();

  function nextRequest(): string {
    const index = askedCount % turns.length;
    if (spread === undefined) return plain[index] ?? "";
    const runAt = new Date(spread.firstAt + (askedCount * 1_000) / spread.perS).toISOString();
    const turn = turns[index] ?? { key: "", body: "" };
    return requestOf(turn.key, turn.body.replaceAll(RUN_AT, runAt));
  }
  function ask(socket: Bun.Socket<Talk>): void {
    const request = nextRequest();
    socket.data.askedAt = isPaced ? begunAt + (askedCount * 1_000) / ratePerS : performance.now();
    askedCount++;
    bytes += request.length;
    socket.write(request);
  }
  function goOn(socket: Bun.Socket<Talk>): void {
    if (isOver()) socket.end();
    else if (!isPaced) ask(socket);
    else free.push(socket);
  }
  /** Sends the requests that are due by now, as far as connections are free. */
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
            if (load.tellsAnswers)
              answers.push([
                /"id":"([^"]+)"/.exec(text)?.[1] ?? "",
                preciseNow(),
                performance.timeOrigin + askedAt,
              ]);
            bytes += text.length;
            socket.data.text = "";
            goOn(socket);
          },
          close() {
            openCount--;
            if (openCount === 0)
              done.resolve({
                answeredCount: latencies.length,
                answers,
                bytes,
                latencyMs: quantilesOf(latencies),
              });
          },
          error: (_socket, error) => done.reject(error),
        },
      }),
    ),
  );
  // The time in which the connections were opened counts in no request's latency.
  begunAt = performance.now();
  if (isPaced) pace();
  return done.promise;
}

interface Talk {
  askedAt: number;
  text: string;
}

if (import.meta.main) process.stdout.write(JSON.stringify(await run((await Bun.stdin.json()) as Load)));
