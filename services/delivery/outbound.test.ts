import { afterEach, describe, expect, test } from "bun:test";
import type net from "node:net";
import { ERROR_BYTES_MAX, type Exchange, RESPONSE_BODY_BYTES_MAX } from "../../shared/domain/run.ts";
import type { TargetRules } from "../../shared/domain/target.ts";
import { makeAuthority } from "../../test/runtime-contract/certificates.ts";
import { startNameServer } from "../../test/runtime-contract/name-server.ts";
import { answerOf, type RawServer, startRawServer } from "../../test/runtime-contract/raw-server.ts";
import { countFds, until } from "../../test/runtime-contract/until.ts";
import { startStopwatch } from "../../test/support/stopwatch.ts";
import { startBlackhole } from "../../test/support/target-hostile.ts";
import { type Outbound, type OutboundRequest, openOutbound } from "./outbound.ts";

const INSECURE: TargetRules = { allowInsecure: true, own: [] };
const SECURE: TargetRules = { allowInsecure: false, own: [] };

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

function open(rules: TargetRules = INSECURE): Outbound {
  const outbound = openOutbound(rules);
  closing.push(() => outbound.close());
  return outbound;
}

async function serve(...args: Parameters<typeof startRawServer>): Promise<RawServer> {
  const server = await startRawServer(...args);
  closing.push(() => server.stop());
  return server;
}

const never = new AbortController().signal;
const requestTo = (url: string, options: Partial<OutboundRequest> = {}): OutboundRequest => ({
  url,
  headers: { "content-type": "application/json" },
  body: "{}",
  timeoutMs: 10_000,
  signal: never,
  ...options,
});

/** Long enough to read all that a host has sent, even on a busy machine. */
const HEARD_MS = 10_000;

/** The exchange with a host that answers as `answer` says. */
async function postTo(
  answer: Parameters<typeof startRawServer>[0],
  options: Partial<OutboundRequest> = {},
): Promise<Exchange> {
  const server = await serve(answer);
  const exchange = await open().post(requestTo(`${server.url}/hook`, options));
  // The socket is closed once the exchange is over, unless the host has answered completely.
  if (exchange.kind !== "answered" || exchange.bodyEnd !== "complete") {
    await until(() => server.openCount === 0);
  }
  return exchange;
}

const textOf = (exchange: Exchange) =>
  exchange.kind === "answered" ? Buffer.from(exchange.body).toString() : exchange.kind;

describe("a request to a customer's host", () => {
  test("is one POST with the path, the query, the headers and the body as given", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK", {}, "fine")));
    const exchange = await open().post(
      requestTo(`${server.url}/a%20b/?q=1&q=%C3%A9#fragment`, {
        headers: { "content-type": "application/json", "service-attempt": "3" },
        body: '{"größe":1}',
      }),
    );
    expect(exchange).toMatchObject({ kind: "answered", status: 200, bodyEnd: "complete" });
    const [head = "", body] = server.requests[0]?.split("\r\n\r\n") ?? [];
    expect(head.split("\r\n").sort()).toEqual([
      "POST /a%20b/?q=1&q=%C3%A9 HTTP/1.1",
      "connection: keep-alive",
      "content-length: 13",
      "content-type: application/json",
      `host: 127.0.0.1:${server.port}`,
      "service-attempt: 3",
    ]);
    expect(Buffer.from(body ?? "", "latin1").toString()).toBe('{"größe":1}');
  });

  test("reads the headers that matter, the first where one is repeated", async () => {
    const exchange = await postTo((socket) =>
      socket.write(
        "HTTP/1.1 503 Later\r\nRetry-After: 7\r\nretry-after: 8\r\nService-No-Retry: true\r\nLocation: /x\r\ncontent-length: 0\r\n\r\n",
      ),
    );
    expect(exchange).toMatchObject({
      status: 503,
      headers: { retryAfter: "7", serviceNoRetry: "true", location: "/x" },
    });
  });

  test("does not follow a redirect", async () => {
    const server = await serve((socket) => socket.write(answerOf("302 Found", { location: "/elsewhere" })));
    const exchange = await open().post(requestTo(server.url));
    expect(exchange).toMatchObject({ status: 302, headers: { location: "/elsewhere" } });
    expect(server.requests.length).toBe(1);
  });

  test("uses a socket again", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK", {}, "ok")));
    const outbound = open();
    for (let count = 0; count < 20; count++) await outbound.post(requestTo(server.url));
    expect(server.connectionCount).toBeLessThan(5);
  });
});

describe("a hostile host", () => {
  test("that refuses the connection is a fault that says so", async () => {
    const server = await startRawServer(() => {});
    await server.stop();
    const exchange = await open().post(requestTo(server.url));
    expect(exchange).toEqual({ kind: "faulted", message: expect.stringContaining("ECONNREFUSED") });
  });

  test("that resets after the request is a fault", async () => {
    const exchange = await postTo((socket) => socket.resetAndDestroy());
    expect(exchange).toEqual({
      kind: "faulted",
      message: "The target reset the connection (ECONNRESET).",
    });
  });

  test("that closes after the request is a fault, and nothing is sent again", async () => {
    const server = await serve((socket) => socket.end());
    expect((await open().post(requestTo(server.url))).kind).toBe("faulted");
    expect(server.requests.length).toBe(1);
  });

  test.each([
    "garbage\r\n\r\n",
    "HTTP/1.1 999999 What\r\n\r\n",
    "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
    "\u0000".repeat(100),
    "HTTP/1.1 20",
  ])("that answers %j is a fault, and has answered", async (bytes) => {
    const exchange = await postTo((socket) => socket.end(bytes));
    expect(exchange).toMatchObject({ kind: "faulted", hasAnswered: true });
  });

  test.each([100, 101, 102, 103, 199])("that answers %d before its answer is waited for", async (status) => {
    const interim = `HTTP/1.1 ${status} Interim\r\nx-a: 1\r\n\r\n`;
    const exchange = await postTo((socket) =>
      socket.write(interim + interim + answerOf("200 OK", {}, "done")),
    );
    expect(exchange).toMatchObject({ status: 200, bodyEnd: "complete" });
    expect(textOf(exchange)).toBe("done");
  });

  test("that answers 101 and nothing else is a stall at the deadline", async () => {
    const answer = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";
    expect(await postTo((socket) => socket.write(answer), { timeoutMs: 300 })).toEqual({ kind: "stalled" });
  });

  test.each([204, 304])("that sends a body with %d is complete with its head", async (status) => {
    for (const framing of [
      "content-length: 4\r\n\r\nbody",
      "transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    ]) {
      const server = await serve((socket) => socket.write(`HTTP/1.1 ${status} It\r\n${framing}`));
      const exchange = await open().post(requestTo(server.url));
      expect(exchange).toMatchObject({ status, bodyEnd: "complete", bodyBytes: 0 });
      // The connection is closed, since the body could be read as the next answer.
      await until(() => server.openCount === 0);
    }
  });

  test("that takes no connections is a stall at the deadline", async () => {
    const { url, stop } = await startBlackhole();
    closing.push(stop);
    const begunAt = performance.now();
    const outbound = open();
    const exchange = await outbound.post(requestTo(url, { timeoutMs: 500 }));
    expect(exchange).toEqual({ kind: "stalled" });
    expect(performance.now() - begunAt).toBeGreaterThanOrEqual(499);
    // A drain does not wait for connections that are still being made.
    const draining = startStopwatch();
    await outbound.close();
    expect(draining.stop()).toBeLessThan(5_000);
  });

  test("that accepts and stays silent is a stall at the deadline", async () => {
    const begunAt = performance.now();
    expect(await postTo(() => {}, { timeoutMs: 300 })).toEqual({ kind: "stalled" });
    expect(performance.now() - begunAt).toBeGreaterThanOrEqual(299);
  });

  test("that stalls in its body is a stall with its status", async () => {
    const exchange = await postTo(
      (socket) => socket.write("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"),
      { timeoutMs: HEARD_MS },
    );
    expect(exchange).toMatchObject({ kind: "answered", status: 200, bodyEnd: "stalled" });
    expect(textOf(exchange)).toBe("half");
  });

  test("that drips has one deadline over head and body together", async () => {
    const drip = (socket: net.Socket, text: string) => {
      const timer = setInterval(() => socket.write(text), 50);
      socket.on("close", () => clearInterval(timer));
    };
    const inHead = await postTo(
      (socket) => {
        socket.write("HTTP/1.1 200 OK\r\n");
        drip(socket, "x-a: 1\r\n");
      },
      { timeoutMs: 400 },
    );
    expect(inHead).toEqual({ kind: "stalled" });
    let isAnotherOver = false;
    const inBody = await postTo(
      (socket) => {
        setTimeout(() => {
          socket.write("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n");
          drip(socket, "x");
          // By then a deadline that began with the body would have passed.
          setTimeout(() => {
            isAnotherOver = true;
          }, HEARD_MS);
        }, HEARD_MS / 2);
      },
      { timeoutMs: HEARD_MS },
    );
    expect(inBody).toMatchObject({ kind: "answered", status: 200, bodyEnd: "stalled" });
    expect(isAnotherOver).toBe(false);
  });

  test.each(["content-length: 10\r\n\r\nhalf", "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"])(
    "that breaks off after %j keeps its status",
    async (rest) => {
      const exchange = await postTo((socket) => socket.end(`HTTP/1.1 200 OK\r\n${rest}`));
      expect(exchange).toMatchObject({ kind: "answered", status: 200, bodyEnd: "broken" });
      expect(textOf(exchange)).toBe("half");
    },
  );

  test("that answers without end is read for 64 KB and then closed", async () => {
    let written = 0;
    const exchange = await postTo((socket) => {
      socket.write("HTTP/1.1 200 OK\r\n\r\n");
      const chunk = Buffer.alloc(16_384, "x");
      const pour = () => {
        if (socket.destroyed) return;
        written += chunk.length;
        if (socket.write(chunk)) setImmediate(pour);
        else socket.once("drain", pour);
      };
      pour();
    });
    expect(exchange).toMatchObject({ status: 200, bodyEnd: "enough" });
    expect(textOf(exchange)).toBe("x".repeat(2 * ERROR_BYTES_MAX));
    // The rest stood in the buffers of the system when the socket was closed.
    expect(written).toBeLessThan(50_000_000);
  });

  test("that answers 64 KB exactly, or a byte less, is complete or enough, and so good either way", async () => {
    for (const length of [RESPONSE_BODY_BYTES_MAX - 1, RESPONSE_BODY_BYTES_MAX]) {
      const exchange = await postTo((socket) => socket.write(answerOf("200 OK", {}, "x".repeat(length))));
      expect(exchange).toMatchObject({ bodyEnd: length < RESPONSE_BODY_BYTES_MAX ? "complete" : "enough" });
      expect(textOf(exchange)).toBe("x".repeat(2 * ERROR_BYTES_MAX));
    }
  });

  test("that sends a huge header is a fault", async () => {
    const exchange = await postTo((socket) =>
      socket.write(answerOf("200 OK", { "x-huge": "x".repeat(100_000) })),
    );
    expect(exchange).toEqual({
      kind: "faulted",
      message: "The target sent more than 65536 bytes of headers.",
      hasAnswered: true,
    });
  });

  test("that has no name is a fault that names it", async () => {
    const names = await startNameServer("127.0.0.1");
    closing.push(() => names.stop());
    const exchange = await open().post(requestTo("http://absent.example/"));
    expect(exchange).toEqual({ kind: "faulted", message: expect.stringContaining("absent.example") });
  });

  test("whose certificate no authority has signed is a fault, before anything is sent", async () => {
    const authority = makeAuthority();
    try {
      const server = await serve((socket) => socket.write(answerOf("200 OK")), {
        tls: authority.issue("IP:127.0.0.1"),
      });
      expect((await open().post(requestTo(server.url))).kind).toBe("faulted");
      expect(server.requests).toEqual([]);
    } finally {
      authority.remove();
    }
  });
});

describe("a shutdown", () => {
  test("breaks off what is on the wire", async () => {
    const server = await serve(() => {});
    const shutdown = new AbortController();
    const asked = open().post(requestTo(server.url, { signal: shutdown.signal }));
    await until(() => server.requests.length === 1);
    shutdown.abort();
    expect((await asked).kind).toBe("faulted");
    await until(() => server.openCount === 0);
  });

  test("that came before the request lets nothing be sent", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK")));
    const exchange = await open().post(requestTo(server.url, { signal: AbortSignal.abort() }));
    expect(exchange.kind).toBe("faulted");
    expect(server.connectionCount).toBe(0);
  });
});

describe("an address that may not be dialled", () => {
  test.each([
    "https://127.0.0.1",
    "https://127.1",
    "https://[::1]",
    "https://[::ffff:127.0.0.1]",
    "https://0.0.0.0",
    "https://localhost",
    "https://10.0.0.1",
    "https://169.254.169.254",
    "https://[fd00::1]",
    "https://[64:ff9b::7f00:1]",
  ])("is refused at once: %s", async (origin) => {
    const server = await serve((socket) => socket.write(answerOf("200 OK")));
    const exchange = await open(SECURE).post(requestTo(`${origin}:${server.port}/`, { timeoutMs: 5_000 }));
    expect(exchange).toEqual({ kind: "faulted", message: expect.stringContaining("may not be dialled") });
    expect(server.connectionCount).toBe(0);
  });

  test("is refused by its scheme and its name as well, whatever the rules were when the URL was accepted", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK")));
    const outbound = openOutbound(SECURE, async () => [{ address: "127.0.0.1", family: 4 }]);
    closing.push(() => outbound.close());
    for (const origin of ["http://public.example", "https://a.internal", "https://receiver"]) {
      const exchange = await outbound.post(requestTo(`${origin}:${server.port}/`));
      expect([origin, exchange]).toEqual([
        origin,
        { kind: "faulted", message: expect.stringContaining("may not be dialled: its URL must") },
      ]);
    }
    expect(server.connectionCount).toBe(0);
  });

  test.each(["http://127.0.0.1", "http://localhost", "http://[::ffff:127.0.0.1]"])(
    "is our own gateway's, even where insecure targets are allowed: %s",
    async (origin) => {
      const gateway = await serve((socket) => socket.write(answerOf("200 OK")));
      const neighbour = await serve((socket) => socket.write(answerOf("200 OK")));
      const outbound = open({ allowInsecure: true, own: [{ hostname: "127.0.0.1", port: gateway.port }] });
      const refused = await outbound.post(requestTo(`${origin}:${gateway.port}/`));
      expect(refused).toEqual({ kind: "faulted", message: expect.stringContaining("may not be dialled") });
      expect(gateway.connectionCount).toBe(0);
      expect(await outbound.post(requestTo(`${origin}:${neighbour.port}/`))).toMatchObject({ status: 200 });
    },
  );
});

describe("after an attack", () => {
  test("of 2,000 hostile answers sockets and memory are back", async () => {
    const ways: ((socket: net.Socket) => unknown)[] = [
      (socket) => socket.resetAndDestroy(),
      (socket) => socket.end("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"),
      (socket) => socket.write("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"),
      () => {},
      (socket) => socket.write(answerOf("200 OK", { "x-huge": "x".repeat(100_000) })),
      (socket) => socket.write(`HTTP/1.1 200 OK\r\n\r\n${"x".repeat(100_000)}`),
      (socket) => socket.end("garbage\r\n\r\n"),
      (socket) => socket.write(answerOf("200 OK", {}, "ok")),
    ];
    const server = await serve((socket, _request, place) => void ways[place % ways.length]?.(socket));
    const outbound = open();
    const attack = async (count: number) => {
      for (let begun = 0; begun < count; begun += 200) {
        await Promise.all(
          Array.from({ length: 200 }, () => outbound.post(requestTo(server.url, { timeoutMs: 300 }))),
        );
      }
      await until(
        () => server.openCount === 0,
        () => `${server.openCount} open`,
      );
      server.requests.length = 0;
      Bun.gc(true);
    };
    await attack(400);
    const fdsBefore = countFds();
    const bytesBefore = process.memoryUsage().heapUsed;
    await attack(2_000);
    await until(() => countFds() <= fdsBefore + 10);
    expect(process.memoryUsage().heapUsed - bytesBefore).toBeLessThan(20_000_000);
  });
});
