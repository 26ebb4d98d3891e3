import { afterAll, afterEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { LookupFunction } from "node:net";
import type { TlsOptions } from "node:tls";
import { Agent, buildConnector } from "undici/index.js";
import { makeAuthority } from "./certificates.ts";
import { answerOf, startRawServer } from "./raw-server.ts";

setDefaultTimeout(30_000);

const authority = makeAuthority();
afterAll(() => authority.remove());

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

const toLoopback: LookupFunction = (_hostname, _options, callback) =>
  callback(null, [{ address: "127.0.0.1", family: 4 }]);

/** Posts to `https://<name>` at a server that shows this certificate; the status, or the text of the error. */
async function postTo(
  name: string,
  tls: TlsOptions,
  ca: string | null = authority.cert,
): Promise<number | string> {
  const server = await startRawServer((socket) => socket.write(answerOf("200 OK")), { tls });
  closing.push(() => server.stop());
  const connect = buildConnector({
    lookup: toLoopback,
    ...(ca === null ? {} : { ca }),
  } as buildConnector.BuildOptions);
  const agent = new Agent({ connect });
  closing.push(() => agent.destroy());
  const origin = `https://${name}:${server.port}`;
  const asked = agent.request({ origin, path: "/", method: "POST", body: "{}" });
  const outcome = await asked.then(
    ({ statusCode }) => statusCode,
    (error: { code?: string }) => String(error.code),
  );
  // Whatever the fault is, nothing may have been sent.
  if (outcome !== 200) expect(server.requests).toEqual([]);
  return outcome;
}

describe("TLS in the HTTP client", () => {
  test("takes a certificate for the name, and for an address in the URL", async () => {
    expect(await postTo("right.example", authority.issue("DNS:right.example"))).toBe(200);
    expect(await postTo("a.wild.example", authority.issue("DNS:*.wild.example"))).toBe(200);
    expect(await postTo("127.0.0.1", authority.issue("IP:127.0.0.1"))).toBe(200);
  });

  test("refuses a certificate for another name or another address", async () => {
    expect(await postTo("right.example", authority.issue("DNS:wrong.example"))).toBe(
      "ERR_TLS_CERT_ALTNAME_INVALID",
    );
    expect(await postTo("127.0.0.1", authority.issue("IP:127.0.0.2"))).toBe("ERR_TLS_CERT_ALTNAME_INVALID");
  });

  test("refuses one that has expired", async () => {
    expect(await postTo("right.example", authority.issue("DNS:right.example", -1))).toBe("CERT_HAS_EXPIRED");
  });

  test("refuses one that is signed by itself, or by an authority that is not known", async () => {
    expect(await postTo("right.example", authority.selfSigned("DNS:right.example"))).toBe(
      "DEPTH_ZERO_SELF_SIGNED_CERT",
    );
    expect(await postTo("right.example", authority.issue("DNS:right.example"), null)).toMatch(
      /UNABLE_TO_VERIFY_LEAF_SIGNATURE|UNABLE_TO_GET_ISSUER_CERT/,
    );
  });

  test("asks for the name with SNI, and checks the certificate that it was given for it", async () => {
    const asked: string[] = [];
    const { key, cert } = authority.issue("DNS:right.example");
    const options: TlsOptions = {
      key,
      cert,
      SNICallback: (name, callback) => {
        asked.push(name);
        callback(null);
      },
    };
    expect(await postTo("right.example", options)).toBe(200);
    expect(asked).toEqual(["right.example"]);
  });

  test("checks every new connection: one that was good does not vouch for the next", async () => {
    const good = authority.issue("DNS:right.example");
    const bad = authority.selfSigned("DNS:right.example");
    let port = 0;
    const connect = buildConnector({ lookup: toLoopback, ca: authority.cert } as buildConnector.BuildOptions);
    const agent = new Agent({ connect });
    closing.push(() => agent.destroy());
    const ask = async (tls: TlsOptions) => {
      const server = await startRawServer(
        (socket) => socket.end(answerOf("200 OK", { connection: "close" })),
        { tls, ...(port === 0 ? {} : { port }) },
      );
      port = server.port;
      try {
        return await agent
          .request({ origin: `https://right.example:${port}`, path: "/", method: "POST", body: "{}" })
          .then(
            ({ statusCode }) => statusCode,
            (error: { code?: string }) => String(error.code),
          );
      } finally {
        await server.stop();
      }
    };
    expect(await ask(good)).toBe(200);
    expect(await ask(bad)).toBe("DEPTH_ZERO_SELF_SIGNED_CERT");
  });
});
