import { afterEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { LookupFunction } from "node:net";
import { gzipSync } from "node:zlib";
// The bare name is a stub on Bun; this is the package itself, as the delivery side imports it.
import { Agent, buildConnector, type Dispatcher } from "undici/index.js";
import { answerOf, type RawServer, startRawServer } from "./raw-server.ts";
import { countFds, until } from "./until.ts";

setDefaultTimeout(150_000);

/** Far less than the minute that a socket would stay open otherwise. */
const CLOSED_MS_MAX = 15_000;
/** Until thousands of connections are open. */
const MANY_MS_MAX = 60_000;

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function serve(...args: Parameters<typeof startRawServer>): Promise<RawServer> {
  const server = await startRawServer(...args);
  closing.push(() => server.stop());
  return server;
}

function openAgent(options: Agent.Options = {}): Agent {
  const agent = new Agent({ pipelining: 1, headersTimeout: 0, bodyTimeout: 0, ...options });
  closing.push(() => agent.destroy());
  return agent;
}

const post = (agent: Agent, origin: string, options: Partial<Dispatcher.RequestOptions> = {}) =>
  agent.request({ origin, path: "/", method: "POST", body: "{}", ...options });

/** The error's code, or that there was none. */
const fault = (asked: Promise<unknown>): Promise<unknown> =>
  asked.then(
    () => "no error",
    (error: { code?: unknown; name?: unknown }) => error.code ?? error.name,
  );

describe("the HTTP client", () => {
  test("dials the address that its lookup gave, and asks it for every name", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK")));
    const asked: string[] = [];
    const lookup: LookupFunction = (hostname, options, callback) => {
      asked.push(hostname);
      // `all` is what the connector asks for; an answer of the other form would be dialled too.
      expect(options.all).toBe(true);
      callback(null, [{ address: "127.0.0.1", family: 4 }]);
    };
    const agent = openAgent({ connect: buildConnector({ lookup } as buildConnector.BuildOptions) });
    const { statusCode } = await post(agent, `http://nowhere.invalid:${server.port}`);
    expect(statusCode).toBe(200);
    expect(asked).toEqual(["nowhere.invalid"]);
    expect(server.requests[0]).toContain(`host: nowhere.invalid:${server.port}\r\n`);
  });

  test("connects to nothing when its lookup refuses", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK")));
    const lookup: LookupFunction = (_hostname, _options, callback) =>
      callback(new Error("refused by the lookup"), []);
    const agent = openAgent({ connect: buildConnector({ lookup } as buildConnector.BuildOptions) });
    await expect(post(agent, `http://nowhere.invalid:${server.port}`)).rejects.toThrow(
      "refused by the lookup",
    );
    expect(server.connectionCount).toBe(0);
  });

  test("does not ask the lookup for an address in the URL", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK")));
    let asked = 0;
    const lookup: LookupFunction = (_hostname, _options, callback) => {
      asked++;
      callback(null, [{ address: "127.0.0.1", family: 4 }]);
    };
    const agent = openAgent({ connect: buildConnector({ lookup } as buildConnector.BuildOptions) });
    await (await post(agent, server.url)).body.dump();
    expect(asked).toBe(0);
  });

  test("tries the next of several addresses when the first refuses", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK")));
    const lookup: LookupFunction = (_hostname, _options, callback) =>
      callback(null, [
        { address: "127.0.0.2", family: 4 },
        { address: "127.0.0.1", family: 4 },
      ]);
    const agent = openAgent({ connect: buildConnector({ lookup } as buildConnector.BuildOptions) });
    expect((await post(agent, `http://nowhere.invalid:${server.port}`)).statusCode).toBe(200);
  });

  test("uses an idle socket again while keep-alive lasts and closes it afterwards", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK", {}, "ok")));
    const lasting = openAgent({ keepAliveTimeout: 60_000, keepAliveMaxTimeout: 60_000 });
    for (let count = 0; count < 20; count++) await (await post(lasting, server.url)).body.text();
    // A socket is free a little after its answer was read, so the next request may find none and open a second.
    const connectionCount = server.connectionCount;
    expect(connectionCount).toBeLessThanOrEqual(2);
    expect(server.openCount).toBe(connectionCount);
    const brief = openAgent({ keepAliveTimeout: 1_500, keepAliveMaxTimeout: 1_500 });
    for (let count = 1; count <= 2; count++) {
      await (await post(brief, server.url)).body.text();
      await until(() => server.openCount === connectionCount, undefined, CLOSED_MS_MAX);
      expect(server.connectionCount).toBe(connectionCount + count);
    }
  });

  test("closes an idle socket as early as the server's own keep-alive asks", async () => {
    const server = await serve((socket) =>
      socket.write(answerOf("200 OK", { "keep-alive": "timeout=3" }, "ok")),
    );
    // Two seconds are taken off for the way; without the header this would stay for a minute.
    const agent = openAgent({ keepAliveTimeout: 60_000, keepAliveMaxTimeout: 60_000 });
    await (await post(agent, server.url)).body.text();
    await until(() => server.openCount === 0, undefined, CLOSED_MS_MAX);
  });

  test("never sends a POST twice when the server closes the socket under it", async () => {
    const server = await serve((socket, _request, place) => {
      if (place === 1) socket.write(answerOf("200 OK", {}, "ok"));
      else socket.destroy();
    });
    const agent = openAgent({ connections: 1, keepAliveTimeout: 60_000, keepAliveMaxTimeout: 60_000 });
    await (await post(agent, server.url)).body.text();
    // The second goes over the socket of the first, which the server closes without an answer.
    expect(await fault(post(agent, server.url))).toBe("UND_ERR_SOCKET");
    expect(server.connectionCount).toBe(1);
    expect(server.requests.length).toBe(2);
  });

  test("takes a new socket, and sends once, when the server has closed an idle one", async () => {
    const server = await serve((socket) => {
      socket.write(answerOf("200 OK", {}, "ok"));
      socket.end();
    });
    const agent = openAgent({ keepAliveTimeout: 60_000, keepAliveMaxTimeout: 60_000 });
    await (await post(agent, server.url)).body.text();
    await until(() => server.openCount === 0);
    expect((await post(agent, server.url)).statusCode).toBe(200);
    expect(server.requests.length).toBe(2);
  });

  test("sends each POST once, or fails it, where servers close at any moment after their answer", async () => {
    const server = await serve((socket) => {
      socket.write(answerOf("200 OK", {}, "ok"));
      setTimeout(() => socket.destroy(), Math.random() * 4);
    });
    const agent = openAgent({ keepAliveTimeout: 1_500, keepAliveMaxTimeout: 1_500 });
    const outcomes = new Map<unknown, number>();
    for (let count = 0; count < 500; count++) {
      const asked = post(agent, server.url, { path: `/${count}` }).then(({ body }) => body.text());
      const outcome = await fault(asked);
      outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
    }
    const paths = server.requests.map((request) => request.slice(0, request.indexOf(" HTTP")));
    expect(new Set(paths).size).toBe(paths.length);
    // What failed, failed as a fault of the network.
    const known = ["no error", "UND_ERR_SOCKET", "ECONNRESET", "EPIPE"];
    expect([...outcomes.keys()].filter((outcome) => !known.includes(String(outcome)))).toEqual([]);
    expect(outcomes.get("no error")).toBeGreaterThan(250);
    expect(paths.length).toBeGreaterThanOrEqual(outcomes.get("no error") ?? 0);
  });

  test("has more than 2,000 requests in flight at once", async () => {
    const count = 2_100;
    const sockets: { write(text: string): unknown }[] = [];
    const server = await serve((socket) => void sockets.push(socket));
    const agent = openAgent({ connect: { timeout: MANY_MS_MAX } });
    const asked = Array.from({ length: count }, async () => (await post(agent, server.url)).body.text());
    await until(
      () => sockets.length === count,
      () => `${sockets.length} of ${count} arrived`,
      MANY_MS_MAX,
    );
    for (const socket of sockets) socket.write(answerOf("200 OK", {}, "ok"));
    expect((await Promise.all(asked)).every((text) => text === "ok")).toBe(true);
  });

  test.each(["before the head of the answer", "in the body"])(
    "closes the socket when it is aborted %s",
    async (moment) => {
      const inBody = moment === "in the body";
      const server = await serve((socket) => {
        if (inBody) socket.write("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nthis is only the beginning");
      });
      const agent = openAgent();
      const fdsBefore = countFds();
      const abort = new AbortController();
      const asked = Array.from({ length: 50 }, async () => {
        const response = await post(agent, server.url, { signal: abort.signal });
        return response.body.text();
      });
      const faults = Promise.all(asked.map(fault));
      await until(() => server.requests.length === 50 && server.openCount === 50);
      abort.abort();
      expect(new Set(await faults)).toEqual(new Set([DOMException.ABORT_ERR]));
      await until(
        () => server.openCount === 0 && countFds() <= fdsBefore + 5,
        () => `${server.openCount} open, ${countFds() - fdsBefore} more descriptors`,
      );
    },
  );

  test("sends nothing once it is connected if it was aborted before", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK")));
    const dial = buildConnector({});
    let connect: (() => void) | undefined;
    const agent = openAgent({
      connect: (options, callback) => {
        connect = () => void dial(options, callback);
      },
    });
    const abort = new AbortController();
    let isOver = false;
    const asked = fault(post(agent, server.url, { signal: abort.signal })).finally(() => {
      isOver = true;
    });
    await until(() => connect !== undefined);
    abort.abort();
    // That the promise still waits for the connection is why its caller must not wait for the promise alone.
    await Bun.sleep(0);
    expect(isOver).toBe(false);
    connect?.();
    expect(await asked).toBe(DOMException.ABORT_ERR);
    expect(server.requests).toEqual([]);
  });

  test("does not follow a redirect", async () => {
    const server = await serve((socket) =>
      socket.write(answerOf("307 Temporary Redirect", { location: "/else" })),
    );
    const agent = openAgent();
    const { statusCode, headers } = await post(agent, server.url);
    expect([statusCode, headers.location]).toEqual([307, "/else"]);
    expect(server.requests.length).toBe(1);
  });

  test("refuses headers beyond maxHeaderSize and closes the socket", async () => {
    const server = await serve((socket) =>
      socket.write(answerOf("200 OK", { "x-long": "x".repeat(70_000) })),
    );
    const agent = openAgent({ maxHeaderSize: 65_536 });
    expect(await fault(post(agent, server.url))).toBe("UND_ERR_HEADERS_OVERFLOW");
    await until(() => server.openCount === 0);
  });

  test("refuses headers beyond maxHeaderSize that come one by one without end", async () => {
    const server = await serve((socket) => {
      socket.write("HTTP/1.1 200 OK\r\n");
      const line = `x-line: ${"x".repeat(1_000)}\r\n`;
      const drip = () => {
        if (!socket.destroyed && socket.write(line)) setImmediate(drip);
        else socket.once("drain", drip);
      };
      drip();
    });
    const agent = openAgent({ maxHeaderSize: 65_536 });
    expect(await fault(post(agent, server.url))).toBe("UND_ERR_HEADERS_OVERFLOW");
  });

  test("waits for a head and a body without a limit of its own when both timeouts are 0", async () => {
    const pauseMs = 2_500;
    const server = await serve((socket) => {
      setTimeout(() => socket.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"), pauseMs);
      setTimeout(() => socket.write("ok"), 2 * pauseMs);
    });
    // keepAliveTimeout is shorter than either pause: it must not count while a request is in progress.
    const agent = openAgent({ keepAliveTimeout: 1_000, keepAliveMaxTimeout: 1_000 });
    const answer = await post(agent, server.url);
    expect(await answer.body.text()).toBe("ok");
  });

  test("does honour a headersTimeout that is set", async () => {
    const server = await serve(() => {});
    const agent = openAgent({ headersTimeout: 500 });
    expect(await fault(post(agent, server.url))).toBe("UND_ERR_HEADERS_TIMEOUT");
  });

  test.each([
    ["a content-length", "content-length: 100\r\n\r\nhalf"],
    ["chunks", "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"],
    ["a chunk that is cut", "transfer-encoding: chunked\r\n\r\n40\r\nhalf"],
  ])("gives the status and then an error while reading when a body of %s is cut off", async (_what, rest) => {
    const server = await serve((socket) => socket.end(`HTTP/1.1 200 OK\r\n${rest}`));
    const agent = openAgent();
    const answer = await post(agent, server.url);
    expect(answer.statusCode).toBe(200);
    expect(await fault(answer.body.text())).toBe("UND_ERR_SOCKET");
  });

  test("takes a body without a length as complete when the server closes", async () => {
    const server = await serve((socket) => socket.end("HTTP/1.1 200 OK\r\n\r\nall of it"));
    const agent = openAgent();
    expect(await (await post(agent, server.url)).body.text()).toBe("all of it");
  });

  test("steps over 102 and 103, and takes 100 and 101 as faults", async () => {
    const server = await serve((socket, request) => {
      const status = /^POST \/(\d+)/.exec(request)?.[1];
      socket.write(`HTTP/1.1 ${status} Interim\r\n\r\n${answerOf("200 OK", {}, "ok")}`);
    });
    const agent = openAgent();
    for (const path of ["/102", "/103"]) {
      const answer = await post(agent, server.url, { path });
      expect([answer.statusCode, await answer.body.text()]).toEqual([200, "ok"]);
    }
    for (const path of ["/100", "/101"]) {
      expect(["UND_ERR_SOCKET", "ERR_ASSERTION"]).toContain(
        (await fault(post(agent, server.url, { path }))) as string,
      );
    }
  });

  test("reads a connection by read() and sends a request by write(), by which answers are bounded", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK", {}, "ok")));
    const dial = buildConnector({});
    const counts = { read: 0, written: 0 };
    const agent = openAgent({
      connect: (options, callback) =>
        dial(options, (error, socket) => {
          if (error !== null) return callback(error, null);
          const read = socket.read.bind(socket);
          socket.read = (size?: number) => {
            const chunk = read(size);
            counts.read += chunk?.length ?? 0;
            return chunk;
          };
          const write = socket.write.bind(socket) as (...args: unknown[]) => boolean;
          socket.write = (...args: unknown[]) => {
            counts.written++;
            return write(...args);
          };
          callback(null, socket);
        }),
    });
    for (let count = 1; count <= 3; count++) {
      await (await post(agent, server.url)).body.text();
      expect(counts.read).toBe(count * answerOf("200 OK", {}, "ok").length);
      expect(counts.written).toBeGreaterThanOrEqual(count);
    }
  });

  test("does not unpack what is packed", async () => {
    const packed = gzipSync(Buffer.alloc(10_000_000));
    const server = await serve((socket) => {
      socket.write(`HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: ${packed.length}\r\n\r\n`);
      socket.write(packed);
    });
    const { body } = await post(openAgent(), server.url);
    expect(Buffer.from(await body.arrayBuffer()).equals(packed)).toBe(true);
  });

  test("takes a length beside chunks, and two lengths, as faults", async () => {
    const heads = [
      "content-length: 2\r\ntransfer-encoding: chunked",
      "content-length: 2\r\ncontent-length: 3",
    ];
    for (const head of heads) {
      const server = await serve((socket) => socket.write(`HTTP/1.1 200 OK\r\n${head}\r\n\r\n`));
      expect(await fault(post(openAgent(), server.url))).toBe("UND_ERR_RES_CONTENT_LENGTH_MISMATCH");
    }
  });

  test("reads no further than its caller: an endless body stops the server", async () => {
    let written = 0;
    const server = await serve((socket) => {
      socket.write("HTTP/1.1 200 OK\r\n\r\n");
      const chunk = Buffer.alloc(65_536, "x");
      const pour = () => {
        while (!socket.destroyed && written < 100_000_000) {
          written += chunk.length;
          if (!socket.write(chunk)) {
            socket.once("drain", pour);
            return;
          }
        }
      };
      pour();
    });
    const agent = openAgent();
    const { body } = await post(agent, server.url);
    for await (const _chunk of body) break;
    body.on("error", () => {});
    body.destroy();
    await until(() => server.openCount === 0);
    expect(written).toBeLessThan(50_000_000);
  });

  test("fails what is in flight when the agent is destroyed", async () => {
    const server = await serve(() => {});
    const agent = new Agent({ headersTimeout: 0 });
    const asked = fault(post(agent, server.url));
    await until(() => server.requests.length === 1);
    await agent.destroy();
    expect(await asked).toBe("UND_ERR_DESTROYED");
    await until(() => server.openCount === 0);
  });
});
