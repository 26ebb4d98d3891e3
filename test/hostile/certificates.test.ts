import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import net from "node:net";
import { join } from "node:path";
import type { TlsOptions } from "node:tls";
import { type Authority, makeAuthority } from "../runtime-contract/certificates.ts";
import { answerOf, type RawServer, startRawServer } from "../runtime-contract/raw-server.ts";
import { startCertifiedTargets } from "../support/target-certificates.ts";
import type { CertifiedRuns } from "./certified-runs.ts";

/** A name that has its own certificate; every name resolves to this machine. */
const NAME = "right.example";

let authority: Authority;
beforeAll(() => {
  authority = makeAuthority();
});
afterAll(() => authority.remove());

/** The outcome of a POST by a process that trusts the authority, and the requests that the host received. */
async function postTo(tls: TlsOptions): Promise<{ outcome: string; requests: string[] }> {
  const server: RawServer = await startRawServer((socket) => socket.write(answerOf("200 OK")), { tls });
  try {
    return { outcome: await postFromElsewhere(`https://${NAME}:${server.port}/`), requests: server.requests };
  } finally {
    await server.stop();
  }
}

async function postFromElsewhere(url: string): Promise<string> {
  // A process reads the authorities that it trusts once, at its start.
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "single-post.ts"), url], {
    env: { ...process.env, NODE_EXTRA_CA_CERTS: authority.certPath },
    stdout: "pipe",
    stderr: "inherit",
  });
  const text = await new Response(child.stdout).text();
  await child.exited;
  return text.trim();
}

describe("a target over TLS", () => {
  test("with a certificate for its name receives its request", async () => {
    const { outcome, requests } = await postTo(authority.issue(`DNS:${NAME}`));
    expect([outcome, requests.length]).toEqual(["200 complete", 1]);
  });

  test.each([
    [
      "a certificate for another name",
      () => authority.issue("DNS:wrong.example"),
      "ERR_TLS_CERT_ALTNAME_INVALID",
    ],
    [
      "a certificate for its address alone",
      () => authority.issue("IP:127.0.0.1"),
      "ERR_TLS_CERT_ALTNAME_INVALID",
    ],
    ["a certificate that has expired", () => authority.issue(`DNS:${NAME}`, -1), "CERT_HAS_EXPIRED"],
    [
      "a certificate that it signed itself",
      () => authority.selfSigned(`DNS:${NAME}`),
      "DEPTH_ZERO_SELF_SIGNED_CERT",
    ],
  ])("with %s receives nothing, and the fault names the reason", async (_what, issue, code) => {
    const { outcome, requests } = await postTo(issue());
    expect(outcome).toContain(code);
    expect(requests).toEqual([]);
  });

  test("that does not speak TLS receives only the beginning of a handshake", async () => {
    const heard: Buffer[] = [];
    const server = net.createServer((socket) =>
      socket
        .on("error", () => {})
        .on("data", (chunk) => {
          heard.push(Buffer.from(chunk));
          socket.end(answerOf("200 OK"));
        }),
    );
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as net.AddressInfo;
    expect(await postFromElsewhere(`https://${NAME}:${port}/secret-path`)).not.toStartWith("200");
    expect(Buffer.concat(heard).toString("latin1")).not.toContain("secret-path");
    server.close();
  });
});

describe("runs at targets over TLS", () => {
  test("fail before anything is sent if the certificate is wrong, name the fault, and return each permit once", async () => {
    const { good, bad, environment, stop } = await startCertifiedTargets();
    const targets = [good, ...Object.values(bad)];
    const child = Bun.spawn(
      [process.execPath, join(import.meta.dir, "certified-runs.ts"), ...targets.map(({ url }) => url)],
      { env: { ...process.env, ...environment }, stdout: "pipe", stderr: "inherit" },
    );
    const { runs, permits }: CertifiedRuns = JSON.parse(await new Response(child.stdout).text());
    expect(await child.exited).toBe(0);
    const failed = (code: string) =>
      Array(2).fill({ status: "failed", responseStatus: null, error: expect.stringContaining(code) });
    expect(runs).toMatchObject([
      [{ status: "succeeded", responseStatus: 200, error: null }],
      failed("ERR_TLS_CERT_ALTNAME_INVALID"),
      failed("CERT_HAS_EXPIRED"),
      failed("DEPTH_ZERO_SELF_SIGNED_CERT"),
    ]);
    expect(targets.map(({ requests }) => requests.length)).toEqual([1, 0, 0, 0]);
    expect(permits).toEqual({ in_use: 0, returned: 7 });
    await stop();
  });
});
