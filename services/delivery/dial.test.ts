import { afterEach, describe, expect, test } from "bun:test";
import { type Network, parseNetwork } from "../../shared/domain/address.ts";
import type { TargetRules } from "../../shared/domain/target.ts";
import { inTime } from "../../shared/store/test-support.ts";
import { startNameServer } from "../../test/runtime-contract/name-server.ts";
import { answerOf, type RawServer, startRawServer } from "../../test/runtime-contract/raw-server.ts";
import { until } from "../../test/runtime-contract/until.ts";
import type { Resolve } from "./dial.ts";
import { openOutbound } from "./outbound.ts";

const TIMEOUT_MS = 5_000;

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function serve(...args: Parameters<typeof startRawServer>): Promise<RawServer> {
  const server = await startRawServer(...args);
  closing.push(() => server.stop());
  return server;
}

/** Posts, and returns the outcome in one word or in the words of the fault. */
function poster(
  allowInsecure: boolean,
  resolve?: Resolve,
  opened?: TargetRules["opened"],
): (url: string) => Promise<string> {
  const own = [{ hostname: "own.example", port: 443 }];
  const outbound = openOutbound({ allowInsecure, own, ...(opened && { opened }) }, resolve);
  closing.push(() => outbound.close());
  const signal = new AbortController().signal;
  return async (url) => {
    const exchange = await outbound.post({ url, headers: {}, body: "{}", timeoutMs: TIMEOUT_MS, signal });
    if (exchange.kind === "answered") return `${exchange.status} ${exchange.bodyEnd}`;
    return exchange.kind === "faulted" ? exchange.message : exchange.kind;
  };
}

const four = (...addresses: string[]) => addresses.map((address) => ({ address, family: 4 as const }));

describe("a connection to a customer's host", () => {
  test("is made to the address that was judged, whatever the name stands for a moment later", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK", { connection: "close" })));
    const asked: string[] = [];
    const post = poster(true, async (hostname) => {
      asked.push(hostname);
      return asked.length === 1 ? four("127.0.0.1") : four("127.0.0.2");
    });
    expect(await post(`http://a.example:${server.port}/`)).toBe("200 complete");
    expect(asked).toEqual(["a.example"]);
    // The second address has no listener, and the error does not name it.
    expect(await post(`http://a.example:${server.port}/`)).toBe(
      "The target refused the connection (ECONNREFUSED).",
    );
    expect(asked.length).toBe(2);
  });

  test.each([
    ["the first", four("127.0.0.1", "8.8.8.8")],
    ["the last", four("8.8.8.8", "127.0.0.1")],
    ["an IPv6 one", [...four("8.8.8.8"), { address: "::ffff:127.0.0.1", family: 6 as const }]],
  ])("is not made if %s of the addresses may not be dialled", async (_which, addresses) => {
    const server = await serve((socket) => socket.write(answerOf("200 OK")));
    expect(await poster(false, async () => addresses)(`https://a.example:${server.port}/`)).toBe(
      "The name a.example could not be resolved (ENOTFOUND).",
    );
    expect(server.connectionCount).toBe(0);
  });

  test("does not wait for other names, however many have servers that are silent", async () => {
    const names = await startNameServer("127.0.0.1");
    closing.push(() => names.stop());
    const server = await serve((socket) => socket.write(answerOf("200 OK")));
    const post = poster(true);
    let silent: Promise<string>[] = [];
    await inTime(TIMEOUT_MS, async () => {
      let ended = 0;
      silent = Array.from({ length: 300 }, (_, index) =>
        post(`http://silent-${index}.example/`).finally(() => ended++),
      );
      for (let index = 0; index < 10; index++) {
        expect(await post(`http://present-${index}.example:${server.port}/`)).toBe("200 complete");
      }
      expect(ended).toBe(0);
    });
    expect(new Set(await Promise.all(silent))).toEqual(new Set(["stalled"]));
  });

  test("is not made without an address, and says which name it was", async () => {
    expect(await poster(true, async () => [])("http://a.example/")).toBe(
      "The name a.example has no address.",
    );
    const names = await startNameServer("127.0.0.1");
    closing.push(() => names.stop());
    expect(await poster(true)("http://absent.example/")).toBe(
      "The name absent.example could not be resolved (ENOTFOUND).",
    );
  });

  test.each([
    ["http://public.example/", "must be an https URL"],
    ["https://localhost/", "must have a full host name"],
    ["https://a.localhost/", "must have a public host name"],
    ["https://db.internal/", "must have a public host name"],
    ["https://own.example/", "must not lead back to this service"],
    ["https://own.example.:8443/", "must not lead back to this service"],
    ["https://[fd00::1]/", "must lead to a public address"],
  ])("is not made to %s, and its name is not even looked up", async (url, reason) => {
    let asked = 0;
    const post = poster(false, async () => {
      asked++;
      return four("8.8.8.8");
    });
    expect(await post(url)).toContain(`may not be dialled: its URL ${reason}`);
    expect(asked).toBe(0);
  });
});

describe("a private network that the operator has opened", () => {
  const loopback = [parseNetwork("127.0.0.0/8") as Network];
  const everything = [parseNetwork("0.0.0.0/0") as Network, parseNetwork("::/0") as Network];
  const answering = () => serve((socket) => socket.write(answerOf("200 OK", { connection: "close" })));

  test("is dialled over http, by an address within it and by a listed name", async () => {
    const server = await answering();
    const resolve: Resolve = async () => four("127.0.0.1");
    const byNetwork = poster(false, resolve, { networks: loopback, hosts: [] });
    expect(await byNetwork(`http://127.0.0.1:${server.port}/`)).toBe("200 complete");
    for (const listed of ["a.lan", ".lan"]) {
      const byName = poster(false, resolve, { networks: [], hosts: [listed] });
      expect(await byName(`http://a.lan:${server.port}/`)).toBe("200 complete");
    }
    expect(server.connectionCount).toBe(3);
  });

  test("is dialled over https for a name that is not listed, and over http it is not", async () => {
    const server = await answering();
    let asked = 0;
    const resolve: Resolve = async () => {
      asked++;
      return four("127.0.0.1");
    };
    const post = poster(false, resolve, { networks: loopback, hosts: [] });
    expect(await post(`http://a.example:${server.port}/`)).toContain("its URL must be an https URL");
    expect(asked).toBe(0);
    // The handshake is begun, and the server speaks no TLS.
    expect(await post(`https://a.example:${server.port}/`)).not.toMatch(/may not be dialled|resolved/);
    expect(server.connectionCount).toBe(1);
  });

  test.each([
    ["an address outside of it", four("192.168.0.1"), loopback, []],
    ["one address outside of it", four("127.0.0.1", "192.168.0.1"), loopback, []],
    ["a private address, and another name is listed", four("192.168.0.1"), loopback, ["a.example", ".b.lan"]],
    ["cloud metadata, and the name is listed", four("127.0.0.1", "169.254.169.254"), [], ["b.example"]],
    ["cloud metadata, and all networks are open", four("169.254.169.254"), everything, ["b.example"]],
    [
      "cloud metadata as an IPv4-mapped address",
      [{ address: "::ffff:169.254.169.254", family: 6 as const }],
      everything,
      ["b.example"],
    ],
    ["neither a private nor a loopback address", four("100.64.0.1"), loopback, ["b.example"]],
  ])("is not dialled for a name that leads to %s", async (_where, addresses, networks, hosts) => {
    const post = poster(false, async () => addresses, { networks, hosts });
    expect(await post("https://b.example/")).toBe("The name b.example could not be resolved (ENOTFOUND).");
  });

  test("is judged again when a connection is made, so that closing it takes effect", async () => {
    const server = await answering();
    const open = { networks: [], hosts: ["a.lan"] };
    const resolve: Resolve = async () => four("127.0.0.1");
    expect(await poster(false, resolve, open)(`http://a.lan:${server.port}/`)).toBe("200 complete");
    const message = await poster(false, resolve)(`http://a.lan:${server.port}/`);
    expect(message).toContain("may not be dialled: its URL must be an https URL");
    expect(server.connectionCount).toBe(1);
  });
});

describe("what a host sends for one answer", () => {
  const flood = (text: string) => text.repeat(Math.ceil(2_000_000 / text.length));

  test.each([
    ["interim answers", "HTTP/1.1 103 Early Hints\r\n\r\n", /more than 65536 bytes of headers/],
    ["headers", "x-more: 1\r\n", /more than 65536 bytes of headers/],
    ["chunks of one byte, which are read for 64 KB", "1\r\nx\r\n", /^200 enough$/],
  ])("is bounded: %s", async (_what, text, outcome) => {
    const head = text.startsWith("x-more")
      ? "HTTP/1.1 200 OK\r\n"
      : text.startsWith("1\r")
        ? "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        : "";
    const server = await serve((socket) => socket.write(head + flood(text)));
    expect(await poster(true)(server.url)).toMatch(outcome);
    await until(() => server.openCount === 0);
  });

  test("is counted anew for each request on a connection", async () => {
    const server = await serve((socket) => socket.write(answerOf("200 OK", {}, "x".repeat(60_000))));
    const post = poster(true);
    for (let count = 0; count < 40; count++) expect(await post(server.url)).toBe("200 complete");
    expect(server.connectionCount).toBeLessThan(10);
  });
});
