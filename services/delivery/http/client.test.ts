import { afterEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import tls from "node:tls";
import type { Exchange } from "../../../shared/domain/run.ts";
import { inTime } from "../../../shared/store/test-support.ts";
import { makeAuthority } from "../../../test/runtime-contract/certificates.ts";
import { answerOf, type RawServer, startRawServer } from "../../../test/runtime-contract/raw-server.ts";
import { countFds, until } from "../../../test/runtime-contract/until.ts";
import { startBlackhole } from "../../../test/support/target-hostile.ts";
import type { Resolve } from "../dial.ts";
import { type Outbound, type OutboundRequest, openOutbound } from "../outbound.ts";
import { Client } from "./client.ts";
import type { Reached } from "./reach.ts";

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function serve(...args: Parameters<typeof startRawServer>): Promise<RawServer> {
  const server = await startRawServer(...args);
  closing.push(() => server.stop());
  return server;
}

/** An authority that this process trusts until the test is over. */
function trustAuthority(): ReturnType<typeof makeAuthority> {
  const authority = makeAuthority();
  closing.push(() => authority.remove());
  const trusted = tls.getCACertificates("default");
  tls.setDefaultCACertificates([authority.cert]);
  closing.push(() => tls.setDefaultCACertificates(trusted));
  return authority;
}

/** Whether a target speaks TLS, and what it is served with then. */
const WAYS_TO_TARGET = {
  "plain HTTP": () => ({}),
  TLS: () => ({ tls: trustAuthority().issue("IP:127.0.0.1") }),
};
const WAYS = Object.entries(WAYS_TO_TARGET);

function open(resolve?: Resolve): Outbound {
  const outbound = openOutbound({ allowInsecure: true, own: [] }, resolve);
  closing.push(() => outbound.close());
  return outbound;
}

const { signal: never } = new AbortController();
const requestTo = (url: string, wish: Partial<OutboundRequest> = {}): OutboundRequest => ({
  ...{ url, headers: {}, body: "{}", timeoutMs: 20_000, signal: never },
  ...wish,
});

/** The outcome of an exchange, in a word or two, or in the words of the fault. */
function wordsOf(exchange: Exchange): string {
  if (exchange.kind === "answered") return `${exchange.status} ${exchange.bodyEnd}`;
  return exchange.kind === "faulted" ? exchange.message : exchange.kind;
}

/** A kept connection is used again within 800 ms. */
const USABLE_MS = 700;
/** A connection of a host that says so is used again although a slow machine leaves it idle for a while. */
const KEPT = { "keep-alive": "timeout=5" };
const FINE = answerOf("200 OK", KEPT, "ok");
/** The most descriptors that a target in this process may hold itself. The requests are far more. */
const TARGETS_FDS_MAX = 5;
const NO_ANSWER = "The target closed the connection without an answer.";
const RESET = "The target reset the connection (ECONNRESET).";
/** Larger than the part of a write that the system takes while the other end reads nothing. */
const LARGE = "x".repeat(8_000_000);

describe("a connection", () => {
  test.each([
    ["an answer with a length", FINE, 1],
    [
      "chunks",
      "HTTP/1.1 200 OK\r\nkeep-alive: timeout=5\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
      1,
    ],
    ["a 204", "HTTP/1.1 204 No\r\nkeep-alive: timeout=5\r\n\r\n", 1],
    ["a failure", answerOf("500 No", KEPT, "no"), 1],
    ["interim answers", `HTTP/1.1 100 Continue\r\n\r\n${FINE}`, 1],
    ["Connection: close", answerOf("200 OK", { connection: "close" }), 2],
    ["Keep-Alive: timeout=0", answerOf("200 OK", { "keep-alive": "timeout=0" }), 2],
    ["HTTP/1.0", "HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", 2],
    ["another answer behind it", FINE + FINE, 2],
    ["a body with a 204", "HTTP/1.1 204 No\r\ncontent-length: 2\r\n\r\n", 2],
  ])("is used again or not, after %s", async (_what, answer, connectionCount) => {
    await inTime(USABLE_MS, async () => {
      const server = await serve((socket) => socket.write(answer));
      const outbound = open();
      for (let count = 0; count < 2; count++) {
        expect((await outbound.post(requestTo(server.url))).kind).toBe("answered");
      }
      expect(server.connectionCount).toBe(connectionCount);
      expect(server.requests.length).toBe(2);
    });
  });

  test.each(WAYS)("on which the target speaks unasked is not used again, over %s", async (_way, wishOf) => {
    const sockets: net.Socket[] = [];
    const server = await serve((socket) => {
      sockets.push(socket);
      socket.write(FINE);
    }, wishOf());
    const outbound = open();
    await outbound.post(requestTo(server.url));
    sockets[0]?.write(answerOf("500 Not yours"));
    await until(() => server.openCount === 0);
    expect(wordsOf(await outbound.post(requestTo(server.url)))).toBe("200 complete");
    expect(server.connectionCount).toBe(2);
  });

  test.each(WAYS)("whose close has arrived unseen is not used again, over %s", async (_way, wishOf) => {
    const server = await serve((socket) => socket.end(FINE), wishOf());
    const outbound = open();
    for (let count = 0; count < 50; count++) {
      expect(wordsOf(await outbound.post(requestTo(server.url)))).toBe("200 complete");
      // The event loop stands still while the close arrives.
      const standUntil = performance.now() + 2;
      while (performance.now() < standUntil);
    }
  });

  test("is of one origin alone", async () => {
    await inTime(USABLE_MS, async () => {
      const server = await serve((socket) => socket.write(FINE));
      const outbound = open(async () => [{ address: "127.0.0.1", family: 4 }]);
      for (const name of ["a.example", "b.example", "a.example"]) {
        await outbound.post(requestTo(`http://${name}:${server.port}/`));
      }
      expect(server.connectionCount).toBe(2);
    });
  });

  test("is closed once it has been idle for long enough", async () => {
    const server = await serve((socket) => socket.write(FINE));
    await open().post(requestTo(server.url));
    await until(() => server.openCount === 0);
  });
});

describe("a kept connection that is closed in place of an answer", () => {
  for (const [how, close] of [
    ["closed", (socket: net.Socket) => socket.end()],
    ["reset", (socket: net.Socket) => socket.resetAndDestroy()],
  ] as const) {
    test.each(WAYS)(
      `leaves the outcome unknown where it was ${how}, over %s: nothing is sent again, and the next has a fresh one`,
      async (_way, wishOf) => {
        const wish = wishOf();
        await inTime(USABLE_MS, async () => {
          const server = await serve((socket, _request, place) => {
            if (place === 2) close(socket);
            else socket.write(FINE);
          }, wish);
          const outbound = open();
          const outcomes: string[] = [];
          for (let count = 0; count < 3; count++)
            outcomes.push(wordsOf(await outbound.post(requestTo(server.url))));
          expect(outcomes).toEqual(["200 complete", "unknown", "200 complete"]);
          expect([server.requests.length, server.connectionCount]).toEqual([3, 2]);
        });
      },
    );
  }

  test("is the target's failure where a byte of an answer had come", async () => {
    await inTime(USABLE_MS, async () => {
      const server = await serve((socket, _request, place) => {
        if (place === 2) socket.end("H");
        else socket.write(FINE);
      });
      const outbound = open();
      await outbound.post(requestTo(server.url));
      expect(wordsOf(await outbound.post(requestTo(server.url)))).toContain("within the head");
    });
  });
});

describe("a target that ends the connection", () => {
  test.each([
    ["before it reads", "", NO_ANSWER],
    ["in the status line", "HTTP/1.1 20", "The target closed the connection within the head of its answer."],
    [
      "in the head",
      "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n",
      "The target closed the connection within the head of its answer.",
    ],
    [
      "after an interim answer",
      "HTTP/1.1 103 Hints\r\n\r\n",
      "The target closed the connection within the head of its answer.",
    ],
    ["before the body", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", "200 broken"],
    ["in a chunk", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nok", "200 broken"],
    ["in the trailers", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-a: 1\r\n", "200 broken"],
    ["after all", FINE, "200 complete"],
  ])("%s is told from one that resets it", async (_when, bytes, comes) => {
    const ending = await serve((socket) => socket.end(bytes));
    expect(wordsOf(await open().post(requestTo(ending.url)))).toBe(comes);
    const resetting = await serve((socket) => {
      if (bytes === "") socket.resetAndDestroy();
      // A reset discards the bytes that the system still holds, so it follows once they are read.
      else socket.write(bytes, () => setTimeout(() => socket.resetAndDestroy(), 50));
    });
    const reset = comes === NO_ANSWER || comes.includes("head") ? RESET : comes;
    expect(wordsOf(await open().post(requestTo(resetting.url)))).toBe(reset);
    await until(() => ending.openCount + resetting.openCount === 0);
  });

  test("by a reset has not completed a body without a length", async () => {
    const server = await serve((socket) => {
      socket.write("HTTP/1.1 200 OK\r\n\r\nall of it?", () => setTimeout(() => socket.resetAndDestroy(), 50));
    });
    expect(wordsOf(await open().post(requestTo(server.url)))).toBe("200 broken");
  });
});

describe("a request", () => {
  test("is one write, and whole however slowly the target reads it", async () => {
    const body = JSON.stringify("x".repeat(262_142));
    const chunks: number[] = [];
    const server = net.createServer((socket) => {
      let bytes = 0;
      socket.on("data", (chunk) => {
        chunks.push(chunk.length);
        bytes += chunk.length;
        socket.pause();
        setTimeout(() => socket.resume(), 1);
        if (bytes > body.length) socket.write(answerOf("200 OK", {}, String(bytes)));
      });
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    closing.push(() => server.close());
    const url = `http://127.0.0.1:${(server.address() as net.AddressInfo).port}/`;
    const small = await open().post(requestTo(url, { body: " ".repeat(300_000) }));
    expect(wordsOf(small)).toBe("200 complete");
    chunks.length = 0;
    const exchange = await open().post(requestTo(url, { body }));
    expect(exchange).toMatchObject({ status: 200, bodyEnd: "complete" });
    expect(chunks.reduce((sum, length) => sum + length, 0)).toBeGreaterThan(body.length);
  });

  test("that is answered before it was read has that answer, and its connection is not used again", async () => {
    const server = net.createServer((socket) => {
      socket.on("error", () => undefined);
      socket.once("data", () => {
        socket.pause();
        socket.write(answerOf("413 Too large", {}, "too large"));
      });
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    closing.push(() => server.close());
    const url = `http://127.0.0.1:${(server.address() as net.AddressInfo).port}/`;
    const outbound = open();
    for (let count = 0; count < 3; count++) {
      expect(wordsOf(await outbound.post(requestTo(url, { body: LARGE })))).toBe("413 complete");
    }
  });

  test("that is answered and then cut off has that answer", async () => {
    const server = net.createServer((socket) => {
      socket.on("error", () => undefined);
      socket.once("data", () => {
        socket.pause();
        socket.write(answerOf("413 Too large"), () => setTimeout(() => socket.destroy(), 20));
      });
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    closing.push(() => server.close());
    const url = `http://127.0.0.1:${(server.address() as net.AddressInfo).port}/`;
    expect(wordsOf(await open().post(requestTo(url, { body: LARGE })))).toBe("413 complete");
  });

  test("that the target does not read stalls at its deadline, and leaves nothing", async () => {
    const server = net.createServer((socket) => socket.pause().on("error", () => undefined));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    closing.push(() => server.close());
    const url = `http://127.0.0.1:${(server.address() as net.AddressInfo).port}/`;
    const fdsBefore = countFds();
    const outbound = open();
    expect(await outbound.post(requestTo(url, { body: LARGE, timeoutMs: 300 }))).toEqual({ kind: "stalled" });
    // The other end of the connection is in this process.
    await until(() => countFds() <= fdsBefore + 1);
  });

  test("is one of more than 2,000 in flight at once", async () => {
    const sockets: net.Socket[] = [];
    const server = await serve((socket) => void sockets.push(socket));
    const outbound = open();
    const posts: Promise<Exchange>[] = [];
    // A slow machine does not make all connections within the time that each may take.
    while (posts.length < 2_100) {
      for (let count = 0; count < 100; count++)
        posts.push(outbound.post(requestTo(server.url, { timeoutMs: 50_000 })));
      await until(
        () => sockets.length === posts.length,
        () => `${sockets.length} arrived`,
      );
    }
    for (const socket of sockets) socket.write(FINE);
    expect(new Set((await Promise.all(posts)).map(wordsOf))).toEqual(new Set(["200 complete"]));
  });
});

describe("a target over TLS", () => {
  test.each(["end", "resetAndDestroy"] as const)("that does %s in the handshake is a fault", async (how) => {
    const server = net.createServer((socket) =>
      socket.on("error", () => undefined).once("data", () => socket[how]()),
    );
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    closing.push(() => server.close());
    const url = `https://127.0.0.1:${(server.address() as net.AddressInfo).port}/`;
    for (let count = 0; count < 20; count++) {
      const words = wordsOf(await open().post(requestTo(url)));
      expect([RESET, "The target closed the connection in the TLS handshake."]).toContain(words);
    }
  });
});

describe("a target that is trusted", () => {
  test("and sends session tickets without end is a fault, long before the deadline", async () => {
    const { key, cert } = trustAuthority().issue("DNS:a.example");
    const folder = mkdtempSync(join(tmpdir(), "tickets-"));
    closing.push(() => rmSync(folder, { recursive: true }));
    writeFileSync(join(folder, "target.pem"), key + cert);
    const place = ["-accept", "127.0.0.1:0", "-cert", "target.pem", "-naccept", "1"];
    const target = Bun.spawn(["openssl", "s_server", ...place, "-tls1_3", "-num_tickets", "300000"], {
      cwd: folder,
      stdin: "pipe",
      stdout: "pipe",
      stderr: "ignore",
    });
    closing.push(() => target.kill());
    let told = "";
    for await (const piece of target.stdout) {
      told += new TextDecoder().decode(piece);
      if (told.includes("ACCEPT")) break;
    }
    const port = /ACCEPT \S+:(\d+)/.exec(told)?.[1];
    const outbound = open(async () => [{ address: "127.0.0.1", family: 4 }]);
    expect(wordsOf(await outbound.post(requestTo(`https://a.example:${port}/`)))).toBe(
      "The target sent session tickets without end (ERR_TLS_TICKETS)",
    );
  });
});

describe("a resolver that does not answer", () => {
  test("keeps no hold of the requests that have ended meanwhile", async () => {
    const reached: Reached[] = [];
    const client = new Client((_url, told) => {
      reached.push(told);
      return { cancel: () => undefined };
    });
    closing.push(() => client.close());
    const count = 20;
    let freed = 0;
    const registry = new FinalizationRegistry(() => freed++);
    const post = () => {
      const request = Buffer.alloc(100_000);
      registry.register(request, null);
      return client.post(new URL("http://a.example/"), {
        ...{ request, signal: never, deadlineAt: performance.now() + 100 },
      });
    };
    const exchanges = await Promise.all(Array.from({ length: count }, post));
    expect(exchanges.map(wordsOf)).toEqual(exchanges.map(() => "stalled"));
    await until(() => {
      Bun.gc(true);
      // The garbage collector may see a few of them on the stack.
      return freed >= count / 2;
    });
    expect(reached.length).toBe(count);
  });
});

describe("breaking off", () => {
  const silentTls = async () => (await serve(() => undefined)).url.replace("http:", "https:");
  const states: Record<string, () => Promise<{ url: string; resolve?: Resolve }>> = {
    "while the name is looked up": async () => ({
      url: "http://a.example/",
      resolve: () => new Promise(() => undefined),
    }),
    "while it is connecting": async () => {
      const { url, stop } = await startBlackhole();
      closing.push(stop);
      return { url };
    },
    "in the TLS handshake": async () => ({ url: await silentTls() }),
    "before the answer": async () => ({ url: (await serve(() => undefined)).url }),
    "in the head": async () => ({ url: (await serve((socket) => socket.write("HTTP/1.1 200 OK\r\n"))).url }),
  };
  test.each(Object.entries(states))(
    "%s leaves no descriptor, for a shutdown and at a deadline",
    async (_when, start) => {
      const { url, resolve } = await start();
      const outbound = open(resolve);
      const fdsBefore = countFds();
      const shutdown = new AbortController();
      const posts = Array.from({ length: 20 }, () =>
        outbound.post(requestTo(url, { signal: shutdown.signal })),
      );
      const stalled = Array.from({ length: 20 }, () => outbound.post(requestTo(url, { timeoutMs: 400 })));
      for (const exchange of await Promise.all(stalled)) expect(exchange).toEqual({ kind: "stalled" });
      shutdown.abort();
      for (const exchange of await Promise.all(posts)) expect(exchange.kind).toBe("faulted");
      await until(
        () => countFds() <= fdsBefore + TARGETS_FDS_MAX,
        () => `${countFds() - fdsBefore} more`,
      );
    },
  );

  test("in the body keeps the status", async () => {
    const server = await serve((socket) => socket.write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"));
    const shutdown = new AbortController();
    const posts = [
      open().post(requestTo(server.url, { signal: shutdown.signal })),
      open().post(requestTo(server.url, { timeoutMs: 10_000 })),
    ];
    await until(() => server.requests.length === 2);
    expect(wordsOf((await posts[1]) as Exchange)).toBe("200 stalled");
    shutdown.abort();
    expect(wordsOf((await posts[0]) as Exchange)).toBe("200 broken");
    await until(() => server.openCount === 0);
  });

  test("by closing the client ends everything at once", async () => {
    const server = await serve(() => undefined);
    const outbound = open();
    const post = outbound.post(requestTo(server.url));
    await until(() => server.requests.length === 1);
    await outbound.close();
    expect((await post).kind).toBe("faulted");
    await until(() => server.openCount === 0);
  });
});

describe("a name with several addresses", () => {
  const to =
    (...addresses: string[]): Resolve =>
    async () =>
      addresses.map((address) => ({ address, family: net.isIPv6(address) ? 6 : 4 }));

  test("is tried at the next address if the first refuses", async () => {
    const server = await serve((socket) => socket.write(FINE));
    const outbound = open(to("127.0.0.2", "127.0.0.3", "127.0.0.1"));
    expect(wordsOf(await outbound.post(requestTo(`http://a.example:${server.port}/`)))).toBe("200 complete");
    expect(server.requests.length).toBe(1);
  });

  test("is tried at the next address if the first is silent, and the first is given up", async () => {
    const { url, stop } = await startBlackhole();
    closing.push(stop);
    const { port } = new URL(url);
    const server = await serve((socket) => socket.write(FINE), { host: "127.0.0.9", port: Number(port) });
    const fdsBefore = countFds();
    const outbound = open(to("127.0.0.1", "127.0.0.9"));
    expect(wordsOf(await outbound.post(requestTo(`http://a.example:${port}/`)))).toBe("200 complete");
    expect(server.requests.length).toBe(1);
    await outbound.close();
    await until(() => countFds() <= fdsBefore);
  });

  test("has failed once all tried addresses have, at most four", async () => {
    const server = await serve((socket) => socket.write(FINE));
    const addresses = Array.from({ length: 4 }, (_, index) => `127.0.0.${index + 2}`);
    const outbound = open(to(...addresses, "127.0.0.1"));
    expect(wordsOf(await outbound.post(requestTo(`http://a.example:${server.port}/`)))).toBe(
      "The target refused the connection (ECONNREFUSED).",
    );
    expect(server.connectionCount).toBe(0);
  });
});

describe("what is told of a target", () => {
  test("never names the address that its name stands for", async () => {
    const resetting = await serve((socket) => socket.resetAndDestroy());
    const plain = await serve((socket) => socket.end(FINE));
    const authority = makeAuthority();
    closing.push(() => authority.remove());
    const certified = await serve(() => undefined, { tls: authority.issue("DNS:a.example") });
    const { url: blackhole, stop } = await startBlackhole();
    closing.push(stop);
    const nobody = await startRawServer(() => undefined);
    await nobody.stop();
    const outbound = open(async () => [{ address: "127.0.0.1", family: 4 }]);
    const urls = [
      ...[
        `http://a.example:${resetting.port}/`,
        `https://a.example:${plain.port}/`,
        `https://a.example:${certified.port}/`,
      ],
      ...[
        `http://a.example:${new URL(blackhole).port}/`,
        `http://a.example:${nobody.port}/`,
        `https://a.example:${nobody.port}/`,
      ],
    ];
    await Promise.all(
      urls.map(async (url) => {
        const words = wordsOf(await outbound.post(requestTo(url)));
        expect(words).not.toMatch(/\d+\.\d+\.\d+\.\d+|200/);
        expect(words).not.toBe("stalled");
      }),
    );
  });

  test("asks for a name by SNI, and for an address without", async () => {
    const authority = makeAuthority();
    closing.push(() => authority.remove());
    const asked: (string | false | undefined)[] = [];
    const { key, cert } = authority.issue("DNS:a.example,IP:127.0.0.1");
    const server = tls.createServer({
      key,
      cert,
      SNICallback: (name, callback) => {
        asked.push(name);
        callback(null);
      },
    });
    server.on("tlsClientError", () => undefined);
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    closing.push(() => server.close());
    const { port } = server.address() as net.AddressInfo;
    const outbound = open(async () => [{ address: "127.0.0.1", family: 4 }]);
    // This process does not trust the certificate, which it checks after the SNI was sent.
    expect(wordsOf(await outbound.post(requestTo(`https://a.example:${port}/`)))).toContain("certificate");
    expect(asked).toEqual(["a.example"]);
    // RFC 6066, section 3: the name is sent without the dot that may end it.
    await outbound.post(requestTo(`https://b.example.:${port}/`));
    expect(asked.splice(1)).toEqual(["b.example"]);
    expect(wordsOf(await outbound.post(requestTo(`https://127.0.0.1:${port}/`)))).toContain("certificate");
    expect(asked).toEqual(["a.example"]);
  });
});
