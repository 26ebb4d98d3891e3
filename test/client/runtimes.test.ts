import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { signHeaders } from "../../services/delivery/sign.ts";
import { makeSecret } from "../../shared/domain/signing.ts";
import { startTestGateway, TARGET_URL, type TestGateway } from "../support/gateway.ts";
import { startFaultyProxy } from "./faulty-proxy.ts";

let gateway: TestGateway;
let folder: string;
/** A server that accepts connections and never answers. */
const silent = net.createServer();

beforeAll(async () => {
  gateway = await startTestGateway();
  await new Promise<void>((listening) => silent.listen(0, "127.0.0.1", listening));
  folder = mkdtempSync(join(tmpdir(), "jobwheel-client-"));
});
afterAll(async () => {
  silent.close();
  rmSync(folder, { recursive: true, force: true });
  await gateway.stop();
});

const CUSTOMER_PROGRAM = join(import.meta.dir, "customer-program.mjs");
const CLIENT = join(import.meta.dir, "../../shared/client/index.ts");
const MINIFIED_BYTES_MAX = 18_000;

async function build(format: "esm" | "cjs", minify = false): Promise<string> {
  const built = await Bun.build({ entrypoints: [CLIENT], target: "browser", format, minify });
  return (await built.outputs[0]?.text()) ?? "";
}

describe("the built client", () => {
  test.each([
    ["node", "modules"],
    ["node", "sandbox"],
    [process.execPath, "modules"],
  ] as const)("works for a customer of %s: %s", async (runtime, mode) => {
    const file = join(folder, mode === "sandbox" ? "client.cjs" : "client.mjs");
    await Bun.write(file, await build(mode === "sandbox" ? "cjs" : "esm"));
    const project = await gateway.addProject();
    const secret = makeSecret(randomBytes);
    const body = '{"n":1}';
    const proxy = await startFaultyProxy(gateway);
    proxy.faults.push("answer lost", "answer cut in half");
    const input = {
      baseUrl: proxy.url,
      silentUrl: `http://127.0.0.1:${(silent.address() as net.AddressInfo).port}`,
      apiKey: project.production,
      targetUrl: TARGET_URL,
      received: { body, headers: signHeaders(body, { id: "run_1", sentAt: Date.now(), secrets: [secret] }) },
      secret,
    };
    const customer = Bun.spawn([runtime, CUSTOMER_PROGRAM, mode, file, JSON.stringify(input)], {
      stderr: "pipe",
    });
    const [said, complaint, code] = await Promise.all([
      new Response(customer.stdout).text(),
      new Response(customer.stderr).text(),
      customer.exited,
    ]);
    await proxy.stop();
    expect({ complaint, code }).toEqual({ complaint: "", code: 0 });
    expect(JSON.parse(said)).toEqual({
      isReplayed: true,
      isExact: true,
      walked: 21,
      payloads: Array.from({ length: 20 }, (_, n) => n),
      canceled: "canceled",
      refused: [true, "invalid_request", "target_url"],
      late: "TimeoutError",
      aborted: "gone",
      verified: body,
      forged: "SignatureError",
      warnings: [],
    });
  });

  test("imports nothing and is small", async () => {
    const code = await build("esm", true);
    expect(new Bun.Transpiler({ loader: "js" }).scanImports(code)).toEqual([]);
    expect(code.length).toBeLessThan(MINIFIED_BYTES_MAX);
  });
});
