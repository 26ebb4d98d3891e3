import net from "node:net";
import { gzipSync } from "node:zlib";
import { answerOf, type RawServer, startRawServer } from "../runtime-contract/raw-server.ts";
import { claimPort } from "./port.ts";

/** A host that behaves badly. Its HostileKind tells what a run must say of it. */
export interface HostileTarget {
  url: string;
  /** The connections that are still open at the host. */
  readonly openCount: number;
  /** How many complete requests of a job arrived. Other processes may send some to a port that was another target's before. */
  countRequests(jobId: string): number;
  stop(): Promise<void>;
}

export interface HostileKind {
  start(): Promise<HostileTarget>;
  run: {
    status: "succeeded" | "failed" | "timed_out";
    responseStatus: number | null;
    /** Null where the run has no error. */
    error: RegExp | null;
  };
}

const GZIPPED_BYTES = 50_000_000;
const HEADER_BYTES = 64_000_000;
const POUR_BYTES = 65_536;
const DRIP_MS = 1_000;
const CHUNKED = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
const EARLY_HINTS = "HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n";

const STALLED = { status: "timed_out", responseStatus: null, error: /did not answer within/ } as const;
const SUCCEEDED = { status: "succeeded", responseStatus: 200, error: null } as const;
const failed = (error: RegExp, responseStatus: number | null = null) => ({
  status: "failed" as const,
  responseStatus,
  error,
});

/** Every kind of bad behaviour that needs only loopback and no certificate. */
export const HOSTILE_KINDS: Record<string, HostileKind> = {
  "refuses the connection": { start: startRefuser, run: failed(/ECONNREFUSED/) },
  "takes no connection": { start: startBlackhole, run: STALLED },
  "has no name": {
    start: async () => ({ ...(await startNothing()), url: "http://nowhere.invalid/" }),
    run: failed(/nowhere\.invalid could not be resolved/),
  },
  "accepts and stays silent": kindOf(() => {}, STALLED),
  "stays silent in the TLS handshake": {
    async start() {
      const target = await startRawTarget(() => {});
      return Object.defineProperty(target, "url", { value: target.url.replace("http:", "https:") });
    },
    run: STALLED,
  },
  "closes without an answer": kindOf((socket) => socket.end(), failed(/closed the connection without/)),
  "resets after the request was processed": kindOf(
    (socket) => socket.resetAndDestroy(),
    failed(/ECONNRESET|closed the connection/),
  ),
  "resets in the body": kindOf(
    (socket) => {
      socket.write("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", () => socket.resetAndDestroy());
    },
    failed(/answered 200, but its body broke off/, 200),
  ),
  "says nothing after the head": kindOf(
    (socket) => socket.write("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"),
    { status: "timed_out", responseStatus: 200, error: /answered 200, but its body was not complete within/ },
  ),
  "sends a byte a second": kindOf(
    (socket) => {
      socket.write("HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n");
      const timer = setInterval(() => socket.write("x"), DRIP_MS);
      socket.on("close", () => clearInterval(timer));
    },
    { status: "timed_out", responseStatus: 200, error: /was not complete within/ },
  ),
  "answers 200 without end": kindOf((socket) => pour(socket, "x", "HTTP/1.1 200 OK\r\n\r\n"), SUCCEEDED),
  "answers 500 without end": kindOf(
    (socket) => pour(socket, "🎡\u0000", "HTTP/1.1 500 No\r\n\r\n"),
    failed(/^(🎡\ufffd)+🎡?$/u, 500),
  ),
  "answers with a gzip bomb": kindOf(
    (socket) => {
      socket.write(`HTTP/1.1 500 No\r\ncontent-encoding: gzip\r\ncontent-length: ${gzipBomb.length}\r\n\r\n`);
      socket.write(gzipBomb);
    },
    failed(/^\(gzip, \d+ bytes\)$/, 500),
  ),
  "sends a header of 64 MB": kindOf(
    (socket) => pour(socket, "x", "HTTP/1.1 200 OK\r\nx-long: ", HEADER_BYTES),
    failed(/more than 65536 bytes of headers/),
  ),
  "sends headers without end": kindOf(
    (socket) => pour(socket, "x-more: 1\r\n", "HTTP/1.1 200 OK\r\n"),
    failed(/more than 65536 bytes of headers/),
  ),
  "sends trailers without end": kindOf(
    (socket) => pour(socket, "x-more: 1\r\n", `${CHUNKED}0\r\n`),
    failed(/body broke off/, 200),
  ),
  "sends early hints without end": kindOf(
    (socket) => pour(socket, EARLY_HINTS),
    failed(/more than 65536 bytes of headers/),
  ),
  "sends blank lines without end": kindOf(
    (socket) => pour(socket, "\r\n"),
    failed(/does not match the HTTP\/1\.1 protocol/),
  ),
  "sends a status line without end": kindOf(
    (socket) => pour(socket, "x", "HTTP/1.1 200 "),
    failed(/more than 65536 bytes of headers/),
  ),
  "sends blanks in a header without end": kindOf(
    (socket) => pour(socket, " ", "HTTP/1.1 200 OK\r\nx:"),
    failed(/more than 65536 bytes of headers/),
  ),
  "sends a chunk extension without end": kindOf(
    (socket) => pour(socket, "x", `${CHUNKED}1;`),
    failed(/body broke off/, 200),
  ),
  "sends a chunk size without end": kindOf(
    (socket) => pour(socket, "0", CHUNKED),
    failed(/body broke off/, 200),
  ),
  "sends early hints and then 200": kindOf(
    (socket) => socket.write(EARLY_HINTS + answerOf("200 OK")),
    SUCCEEDED,
  ),
  ...Object.fromEntries(
    [100, 101, 102, 199].map((status) => [
      `answers ${status} and then 200`,
      kindOf((socket) => socket.write(`HTTP/1.1 ${status} Interim\r\n\r\n${answerOf("200 OK")}`), SUCCEEDED),
    ]),
  ),
  "switches protocols": kindOf(
    (socket) =>
      socket.write("HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"),
    STALLED,
  ),
  "answers 204 with a body": kindOf(
    (socket) => socket.write(answerOf("204 No Content", { "content-length": "4" }, "body")),
    { ...SUCCEEDED, responseStatus: 204 },
  ),
  "announces a body with 204 and sends none": kindOf(
    (socket) => socket.write("HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n"),
    { ...SUCCEEDED, responseStatus: 204 },
  ),
  "answers 099": kindOf((socket) => socket.write(answerOf("099 What")), failed(/a status below 100/)),
  "answers a status line that is none": kindOf(
    (socket) => socket.write("HTTP/1.1 999999 What\r\n\r\n"),
    failed(/does not match the HTTP\/1\.1 protocol/),
  ),
  "speaks another protocol": kindOf(
    (socket) => socket.write("220 mail.example ESMTP\r\n"),
    failed(/does not match the HTTP\/1\.1 protocol/),
  ),
  "answers control characters": kindOf(
    (socket) => socket.end("\u0000\u001b[31m\u0007\r\n\r\n"),
    failed(/does not match the HTTP\/1\.1 protocol/),
  ),
  "gives a length and chunks": kindOf(
    (socket) =>
      socket.write(
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
      ),
    failed(/a length that is not that of its body, or with two/),
  ),
  "gives two lengths": kindOf(
    (socket) => socket.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok"),
    failed(/a length that is not that of its body, or with two/),
  ),
  "answers twice": kindOf((socket) => socket.write(answerOf("200 OK") + answerOf("500 No")), SUCCEEDED),
  "answers and closes at once": kindOf((socket) => socket.end(answerOf("200 OK")), SUCCEEDED),
  "redirects to the metadata service": kindOf(
    (socket) => socket.write(answerOf("302 Found", { location: "http://169.254.169.254/latest/meta-data/" })),
    failed(/302 with Location: http:\/\/169\.254\.169\.254\/latest\/meta-data\/ \(redirects are not/, 302),
  ),
  ...Object.fromEntries(
    [
      "1000000000",
      "99999999999999999999",
      "-1",
      "1e9",
      "0x10",
      "Fri, 31 Dec 9999 23:59:59 GMT",
      "Thu, 01 Jan 1970 00:00:00 GMT",
      "Someday, 99 Foo 20 99:99:99 GMT",
      "",
      "9".repeat(10_000),
    ].map((retryAfter) => [
      `asks to wait ${JSON.stringify(retryAfter.slice(0, 40))}`,
      kindOf(
        (socket) => socket.write(answerOf("503 Later", { "retry-after": retryAfter }, "later")),
        failed(/^later$/, 503),
      ),
    ]),
  ),
};

const gzipBomb = gzipSync(Buffer.alloc(GZIPPED_BYTES));

/** A host that accepts no connections: its backlog of waiting connections is full, as behind a silent firewall. */
export async function startBlackhole(): Promise<HostileTarget> {
  const listener = Bun.spawn(
    [
      "perl",
      "-MSocket",
      "-e",
      'socket(S,AF_INET,SOCK_STREAM,0);bind(S,sockaddr_in(0,inet_aton("127.0.0.1")));listen(S,0);$|=1;print((sockaddr_in(getsockname S))[0],"\\n");sleep 600',
    ],
    { stdout: "pipe" },
  );
  const { value } = await listener.stdout.getReader().read();
  const port = Number(new TextDecoder().decode(value));
  const fillers = Array.from({ length: 4 }, () => net.connect(port, "127.0.0.1").on("error", () => {}));
  return {
    url: `http://127.0.0.1:${port}/`,
    openCount: 0,
    countRequests: () => 0,
    async stop() {
      for (const filler of fillers) filler.destroy();
      listener.kill();
      await listener.exited;
    },
  };
}

/** Nothing listens at its port, which nobody else is given meanwhile. */
async function startRefuser(): Promise<HostileTarget> {
  return { ...(await startNothing()), url: `http://127.0.0.1:${await claimPort()}/hook` };
}

async function startNothing(): Promise<HostileTarget> {
  return { url: "", openCount: 0, countRequests: () => 0, stop: async () => {} };
}

async function startRawTarget(answer: Parameters<typeof startRawServer>[0]): Promise<HostileTarget> {
  const server: RawServer = await startRawServer(answer);
  return {
    url: `${server.url}/hook`,
    get openCount() {
      return server.openCount;
    },
    countRequests: (jobId) => server.requests.filter((request) => request.includes(jobId)).length,
    stop: () => server.stop(),
  };
}

function kindOf(answer: (socket: net.Socket) => unknown, run: HostileKind["run"]): HostileKind {
  return { start: () => startRawTarget((socket) => void answer(socket)), run };
}

/** Writes the same text for as long as the other side reads, up to `bytesMax`. */
function pour(socket: net.Socket, text: string, first = "", bytesMax = Number.POSITIVE_INFINITY): void {
  const chunk = Buffer.from(text.repeat(Math.ceil(POUR_BYTES / text.length)));
  let bytes = 0;
  const write = () => {
    if (socket.destroyed || bytes > bytesMax) return;
    bytes += chunk.length;
    if (socket.write(chunk)) setImmediate(write);
    else socket.once("drain", write);
  };
  socket.write(first);
  write();
}
