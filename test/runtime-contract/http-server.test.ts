import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import net from "node:net";
import { until } from "./until.ts";

let server: ReturnType<typeof Bun.serve>;
let port = 0;
beforeAll(() => {
  server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    idleTimeout: 0,
    maxRequestBodySize: 1_000,
    routes: {
      "/routed/:id": ({ params }) => new Response(`id ${params.id}`),
      "/routed/*": () => new Response("below"),
    },
    async fetch(request) {
      const { pathname, search } = new URL(request.url);
      if (pathname === "/throws") throw new Error("a bug");
      if (pathname === "/slow") return answerSlowly(request);
      if (pathname === "/large") return new Response(large());
      const body = await request.text();
      return Response.json({
        method: request.method,
        path: pathname + search,
        body,
        headers: [...request.headers],
      });
    },
    error: () => new Response("caught", { status: 500 }),
  });
  port = server.port ?? 0;
});
afterAll(() => server.stop(true));

const IDLE_SECONDS = 1;
/** These bytes together take much longer than Bun's timers may be late. The timers tick every 4 s. */
const SLOW_BODY_BYTES = 100;
const BYTE_EVERY_MS = 100;
const SLOW_TEST_TIMEOUT_MS = 60_000;

const slow = { begun: 0, gone: 0, release: Promise.withResolvers<void>() };

async function answerSlowly(request: Request): Promise<Response> {
  slow.begun++;
  await slow.release.promise;
  // The handler looks at the signal for the first time after the client has gone.
  if (request.signal.aborted) slow.gone++;
  return new Response("at last");
}

const PIECE = new Uint8Array(65_536);
const PIECES_MAX = 1_000;
const stream = { pulls: 0, isCanceled: false };

function large(): ReadableStream {
  stream.pulls = 0;
  stream.isCanceled = false;
  return new ReadableStream({
    pull(controller) {
      if (stream.pulls++ < PIECES_MAX) controller.enqueue(PIECE);
      else controller.close();
    },
    cancel() {
      stream.isCanceled = true;
    },
  });
}

/** Sends bytes. Answers everything that came until the server closed. */
function send(text: string): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  let answer = "";
  const socket = net.connect(port, "127.0.0.1", () => socket.write(text));
  socket.on("data", (chunk: Buffer) => {
    answer += chunk.toString("latin1");
  });
  socket.on("error", reject);
  socket.on("close", () => resolve(answer));
  return promise;
}

const post = (headers: string, body = "") =>
  `POST /p?q=1 HTTP/1.1\r\nHost: a.example\r\n${headers}\r\n${body}`;

const SLOW = "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n";

describe("the HTTP server", () => {
  test("gives a body as it was sent, with a length and in chunks", async () => {
    const whole = await send(post("Content-Length: 4\r\nConnection: close\r\n", "ab\r\n"));
    expect(whole).toContain(JSON.stringify("ab\r\n"));
    const chunked = await send(
      post("Transfer-Encoding: chunked\r\nConnection: close\r\n", "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"),
    );
    expect(chunked).toContain(`"body":"abc"`);
  });

  test("gives header names in lower case and joins repeated ones", async () => {
    const answer = await send(post("X-A: 1\r\nX-A: 2\r\nContent-Length: 0\r\nConnection: close\r\n"));
    expect(answer).toContain(`["x-a","1, 2"]`);
  });

  test("refuses a body over maxRequestBodySize with a bare 413", async () => {
    const answer = await send(post("Content-Length: 1001\r\nConnection: close\r\n", "x".repeat(1_001)));
    expect(answer).toStartWith("HTTP/1.1 413");
    expect(answer.split("\r\n\r\n")[1] ?? "").toBe("");
  });

  test("passes what a handler throws to its error handler", async () => {
    const answer = await send("GET /throws HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    expect(answer).toStartWith("HTTP/1.1 500");
    expect(answer).toEndWith("caught");
  });

  test.each<[string, number, string]>([
    ["no host", 400, "GET / HTTP/1.1\r\n\r\n"],
    [
      "both a length and chunks",
      400,
      post("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
    ],
    ["two lengths that differ", 400, post("Content-Length: 4\r\nContent-Length: 5\r\n", "abcd")],
    ["a negative length", 400, post("Content-Length: -1\r\n")],
    ["another coding than chunks", 400, post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n")],
    ["a folded header", 400, post("A: 1\r\n B: 2\r\n")],
    ["a control character in a header", 400, post("A: \u0001\r\n")],
    ["an empty line before the request", 400, `\r\n${post("")}`],
    ["a broken request line", 400, "NONSENSE\r\n\r\n"],
    ["a request without a version", 505, "GET /\r\n\r\n"],
    ["another version", 505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"],
    ["16 KB of headers", 431, post(`A: ${"a".repeat(16_384)}\r\n`)],
    ["200 headers", 431, post("A: 1\r\n".repeat(200))],
  ])("refuses %s with a bare %d before any handler, and closes", async (_what, status, text) => {
    expect(await send(text)).toMatch(new RegExp(`^HTTP/1.1 ${status} [^\\r]+\r\nConnection: close\r\n\r\n$`));
  });

  test("reads trailers behind chunks as another request, which it refuses with a bare 400", async () => {
    const chunks = "1\r\na\r\n0\r\nX: 1\r\n\r\n";
    const answer = await send(post("Transfer-Encoding: chunked\r\n", chunks));
    expect(answer).toContain(`"body":"a"`);
    expect(answer).toEndWith("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
  });

  test.each(["FROBNICATE", "get"])("closes without an answer on the method %s", async (method) => {
    expect(await send(`${method} / HTTP/1.1\r\nHost: a\r\n\r\n`)).toBe("");
  });

  test.each(["TRACE", "CONNECT", "PROPFIND", "QUERY"])("passes on the method %s", async (method) => {
    const answer = await send(`${method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`);
    expect(answer).toContain(`"method":"${method}"`);
  });

  test("gives the path with dot segments removed and backslashes turned into slashes", async () => {
    const answer = await send("GET /a/./b/%2e%2e\\c HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    expect(answer).toContain(`"path":"/a/c"`);
  });

  test.each([
    ["/routed/a", "id a"],
    ["/routed/a?b/../c", "id a"],
    ["http://other/routed/a", "id a"],
    ["/routed/..", "id .."],
    ["/routed/%2E%2e", "id .."],
    ["/routed/.\\a", "id .\\a"],
    ["/routed/a#b", "id a#b"],
    ["/routed/./a", "below"],
    ["/routed/a/../../routed/a", "below"],
    ["/./routed/a", '"path":"/routed/a"'],
    ["/routed\\a", '"path":"/routed/a"'],
  ])("chooses a route by the path as it was sent: %s", async (path, expected) => {
    for (const method of ["GET", "POST"]) {
      const lines = "Host: a\r\nContent-Length: 0\r\nConnection: close\r\n";
      expect(await send(`${method} ${path} HTTP/1.1\r\n${lines}\r\n`)).toContain(expected);
    }
  });

  test("reads two equal lengths as one, and two hosts as the first, and gives both joined", async () => {
    const lengths = await send(post("Content-Length: 2\r\nContent-Length: 2\r\nConnection: close\r\n", "ab"));
    expect(lengths).toContain(`["content-length","2, 2"]`);
    const hosts = await send(post("Host: b.example\r\nConnection: close\r\n"));
    expect(hosts).toContain(`["host","a.example, b.example"]`);
  });

  test.each<[string, (socket: net.Socket) => void]>([
    ["is gone", (socket) => socket.destroy()],
    ["has closed its side", (socket) => socket.end()],
    ["has sent what is not HTTP", (socket) => socket.write("NONSENSE\r\n\r\n")],
    ["has sent another request before it was answered", (socket) => socket.write(SLOW)],
  ])("tells a handler, whenever it asks, that the client %s, and sends no answer", async (_what, act) => {
    Object.assign(slow, { begun: 0, gone: 0, release: Promise.withResolvers<void>() });
    let answer = "";
    const socket = net.connect({ port, host: "127.0.0.1", allowHalfOpen: true }, () => socket.write(SLOW));
    const closed = Promise.withResolvers<void>();
    socket.on("data", (chunk: Buffer) => (answer += chunk.toString("latin1")));
    socket.on("error", () => undefined);
    socket.on("end", () => socket.end());
    socket.on("close", () => closed.resolve());
    await until(() => slow.begun === 1);
    act(socket);
    await closed.promise;
    // After this answer, the server has received what was sent before.
    await send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    slow.release.resolve();
    await until(() => slow.gone === 1);
    expect(slow.begun).toBe(1);
    expect(answer).not.toContain("at last");
  });

  test.concurrent(
    "cuts a connection at its idle timeout even while a body arrives, unless it is told to wait",
    async () => {
      const idle = Bun.serve({
        hostname: "127.0.0.1",
        port: 0,
        idleTimeout: IDLE_SECONDS,
        async fetch(request, server) {
          const isPatient = request.headers.has("patient");
          if (isPatient) server.timeout(request, 0);
          const { length } = await request.text();
          if (isPatient) server.timeout(request, IDLE_SECONDS);
          return new Response(`${length} bytes`);
        },
      });
      const post = (line: string) => {
        const { promise, resolve } = Promise.withResolvers<{ text: string; sentCount: number }>();
        let text = "";
        let sentCount = 0;
        const start = `POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ${SLOW_BODY_BYTES}\r\n${line}\r\n`;
        const socket = net.connect(idle.port ?? 0, "127.0.0.1", () => socket.write(start));
        const timer = setInterval(() => {
          if (sentCount++ < SLOW_BODY_BYTES) socket.write("x");
        }, BYTE_EVERY_MS);
        socket.on("data", (chunk: Buffer) => (text += chunk.toString()));
        socket.on("error", () => undefined);
        socket.on("close", () => {
          clearInterval(timer);
          resolve({ text, sentCount });
        });
        return promise;
      };
      const [hasty, patient] = await Promise.all([post(""), post("Patient: yes\r\n")]);
      await idle.stop(true);
      expect(hasty.text).toBe("");
      expect(hasty.sentCount).toBeLessThan(SLOW_BODY_BYTES);
      expect(patient.text).toEndWith(`${SLOW_BODY_BYTES} bytes`);
    },
    SLOW_TEST_TIMEOUT_MS,
  );

  test("reads a stream no further than its client reads, and cancels it when the client goes", async () => {
    const socket = net.connect(port, "127.0.0.1", () =>
      socket.write("GET /large HTTP/1.1\r\nHost: a\r\n\r\n"),
    );
    socket.pause();
    socket.on("error", () => undefined);
    let before = -1;
    await until(() => {
      const isStill = stream.pulls > 0 && stream.pulls === before;
      before = stream.pulls;
      return isStill;
    });
    expect(stream.pulls).toBeLessThan(PIECES_MAX / 2);
    socket.destroy();
    await until(() => stream.isCanceled);
  });

  test("answers many requests on one socket in their order", async () => {
    const first = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n";
    const answer = await send(`${first}GET /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`);
    expect(answer.indexOf(`"path":"/1"`)).toBeGreaterThan(0);
    expect(answer.indexOf(`"path":"/2"`)).toBeGreaterThan(answer.indexOf(`"path":"/1"`));
  });
});
