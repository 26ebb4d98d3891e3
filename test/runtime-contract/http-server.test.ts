import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import net from "node:net";

let server: ReturnType<typeof Bun.serve>;
let port = 0;
beforeAll(() => {
  server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    idleTimeout: 0,
    maxRequestBodySize: 1_000,
    async fetch(request) {
      const { pathname, search } = new URL(request.url);
      if (pathname === "/throws") throw new Error("a bug");
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

/** Sends bytes and answers with all that came until the server closed. */
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

  test("gives what a handler throws to its error handler", async () => {
    const answer = await send("GET /throws HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    expect(answer).toStartWith("HTTP/1.1 500");
    expect(answer).toEndWith("caught");
  });

  test.each([
    ["no host", "GET / HTTP/1.1\r\n\r\n"],
    ["both a length and chunks", post("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")],
    ["a broken request line", "NONSENSE\r\n\r\n"],
  ])("refuses %s with 400 and closes", async (_what, text) => {
    expect(await send(text)).toStartWith("HTTP/1.1 400");
  });

  test("answers many requests that came on one socket, in their order", async () => {
    const first = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n";
    const answer = await send(`${first}GET /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`);
    expect(answer.indexOf(`"path":"/1"`)).toBeGreaterThan(0);
    expect(answer.indexOf(`"path":"/2"`)).toBeGreaterThan(answer.indexOf(`"path":"/1"`));
  });
});
