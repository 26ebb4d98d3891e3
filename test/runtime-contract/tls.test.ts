import { afterAll, afterEach, describe, expect, test } from "bun:test";
import net from "node:net";
import tls, { type TlsOptions } from "node:tls";
import { claimPort } from "../support/port.ts";
import { makeAuthority } from "./certificates.ts";
import { answerOf, startRawServer } from "./raw-server.ts";
import { countFds, until } from "./until.ts";

const authority = makeAuthority();
afterAll(() => authority.remove());

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

/**
 * Connects to a host at a server with this certificate, as the delivery side does: over a connected socket, with SNI
 * for a name and without SNI for an address. Answers the status, or the code of the error.
 */
async function postTo(
  host: string,
  certificate: TlsOptions,
  ca: string | null = authority.cert,
): Promise<number | string> {
  const address = net.isIPv6(host) ? host : "127.0.0.1";
  const server = await startRawServer((socket) => socket.write(answerOf("200 OK")), {
    tls: certificate,
    host: address,
  });
  closing.push(() => server.stop());
  const outcome = await ask(server.port, address, host, ca);
  // After any fault the server must have received nothing.
  if (outcome !== 200) expect(server.requests).toEqual([]);
  return outcome;
}

async function ask(port: number, address: string, host: string, ca: string | null): Promise<number | string> {
  const socket = net.connect({ port, host: address });
  await new Promise((resolve) => socket.once("connect", resolve));
  const secured = tls.connect({
    socket,
    host,
    ...(net.isIP(host) === 0 ? { servername: host } : {}),
    ALPNProtocols: ["http/1.1"],
    rejectUnauthorized: true,
    ...(ca === null ? {} : { ca }),
  });
  closing.push(async () => secured.destroy());
  return new Promise((resolve) => {
    secured.on("error", (error: NodeJS.ErrnoException) => resolve(String(error.code)));
    secured.on("data", (chunk: Buffer) => resolve(Number(chunk.toString("latin1").slice(9, 12))));
    secured.once("secureConnect", () => {
      if (secured.authorized) secured.write("POST / HTTP/1.1\r\n\r\n");
    });
  });
}

describe("TLS of node:tls", () => {
  test("accepts a certificate for the name, and for an address", async () => {
    expect(await postTo("right.example", authority.issue("DNS:right.example"))).toBe(200);
    expect(await postTo("a.wild.example", authority.issue("DNS:*.wild.example"))).toBe(200);
    expect(await postTo("127.0.0.1", authority.issue("IP:127.0.0.1"))).toBe(200);
    expect(await postTo("::1", authority.issue("IP:::1"))).toBe(200);
  });

  test.each([
    ["right.example", "DNS:wrong.example"],
    ["a.b.wild.example", "DNS:*.wild.example"],
    ["right.example", "IP:127.0.0.1"],
    ["127.0.0.1", "IP:127.0.0.2"],
    ["127.0.0.1", "DNS:right.example"],
    ["127.0.0.1", "DNS:127.0.0.1"],
    ["::1", "IP:127.0.0.1"],
  ])("refuses for the host %s a certificate for %s", async (host, names) => {
    expect(await postTo(host, authority.issue(names))).toBe("ERR_TLS_CERT_ALTNAME_INVALID");
  });

  test("refuses an expired certificate", async () => {
    expect(await postTo("right.example", authority.issue("DNS:right.example", -1))).toBe("CERT_HAS_EXPIRED");
    expect(await postTo("127.0.0.1", authority.issue("IP:127.0.0.1", -1))).toBe("CERT_HAS_EXPIRED");
  });

  test("refuses a self-signed certificate, and one of an unknown authority", async () => {
    expect(await postTo("right.example", authority.selfSigned("DNS:right.example"))).toBe(
      "DEPTH_ZERO_SELF_SIGNED_CERT",
    );
    expect(await postTo("127.0.0.1", authority.selfSigned("IP:127.0.0.1"))).toBe(
      "DEPTH_ZERO_SELF_SIGNED_CERT",
    );
    expect(await postTo("right.example", authority.issue("DNS:right.example"), null)).toMatch(
      /UNABLE_TO_VERIFY_LEAF_SIGNATURE|UNABLE_TO_GET_ISSUER_CERT/,
    );
  });

  test("asks for a name with SNI, for an address without it, and offers HTTP/1.1 only", async () => {
    const asked: [string | false, string[]][] = [];
    const { key, cert } = authority.issue("DNS:right.example,IP:127.0.0.1");
    const options: TlsOptions = {
      key,
      cert,
      ALPNCallback: ({ servername, protocols }) => {
        asked.push([servername, protocols]);
        return "http/1.1";
      },
    };
    expect(await postTo("right.example", options)).toBe(200);
    expect(await postTo("127.0.0.1", options)).toBe(200);
    expect(asked).toEqual([
      ["right.example", ["http/1.1"]],
      [false, ["http/1.1"]],
    ]);
  });

  test("fails if the target speaks only HTTP/2", async () => {
    const options = { ...authority.issue("DNS:right.example"), ALPNProtocols: ["h2"] };
    expect(await postTo("right.example", options)).toContain("NO_APPLICATION_PROTOCOL");
  });

  test("checks every new connection, also after a good one", async () => {
    const server = await startRawServer((socket) => socket.end(answerOf("200 OK")), {
      tls: authority.issue("DNS:right.example"),
      // No other process gets the port between the two servers.
      port: await claimPort(),
    });
    expect(await ask(server.port, "127.0.0.1", "right.example", authority.cert)).toBe(200);
    await server.stop();
    const next = await startRawServer((socket) => socket.end(answerOf("200 OK")), {
      tls: authority.selfSigned("DNS:right.example"),
      port: server.port,
    });
    closing.push(() => next.stop());
    expect(await ask(next.port, "127.0.0.1", "right.example", authority.cert)).toBe(
      "DEPTH_ZERO_SELF_SIGNED_CERT",
    );
  });

  test("destroys its socket when it is destroyed in the handshake", async () => {
    const server = await startRawServer(() => undefined);
    closing.push(() => server.stop());
    const fdsBefore = countFds();
    const secured = await Promise.all(
      Array.from({ length: 20 }, async () => {
        const socket = net.connect({ port: server.port, host: "127.0.0.1" });
        await new Promise((resolve) => socket.once("connect", resolve));
        return tls
          .connect({ socket, host: "right.example", servername: "right.example" })
          .on("error", () => undefined);
      }),
    );
    await until(() => server.openCount === 20);
    for (const socket of secured) socket.destroy();
    await until(() => server.openCount === 0 && countFds() <= fdsBefore);
  });
});
