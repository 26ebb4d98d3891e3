import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { signHeaders } from "../../services/delivery/sign.ts";
import { makeSecret } from "../../shared/domain/signing.ts";
import { startTestGateway, type TestGateway } from "../support/gateway.ts";

const ROOM = join(import.meta.dir, "../../shared/client");
const [use = "", receive = ""] = [
  ...readFileSync(join(ROOM, "README.md"), "utf8").matchAll(/^```ts\n(.*?)^```$/gms),
].map(([, lines = ""]) => lines.replace('"./index.ts"', JSON.stringify(join(ROOM, "index.ts"))));

let gateway: TestGateway;
const folder = mkdtempSync(join(tmpdir(), "client-readme-"));
beforeAll(async () => {
  gateway = await startTestGateway();
});
afterAll(async () => {
  await gateway.stop();
  rmSync(folder, { recursive: true, force: true });
});

test("the first example of the client's README.md runs as it stands", async () => {
  const file = join(folder, "use.ts");
  writeFileSync(file, use);
  const { production } = await gateway.addProject();
  const child = Bun.spawn([process.execPath, file], {
    env: { ...process.env, JOBWHEEL_URL: `http://127.0.0.1:${gateway.port}`, JOBWHEEL_KEY: production },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const [said, complaint] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  expect([await child.exited, complaint]).toEqual([0, ""]);
  expect(said).toMatch(/^resource_not_found req_\w+\n$/);
});

test("the receiver of the client's README.md takes what the service signs, and nothing else", async () => {
  const file = join(folder, "receive.ts");
  writeFileSync(file, receive);
  const example = (await import(file)) as { receive(request: Request, secret: string): Promise<Response> };
  const [secret, body] = [makeSecret(randomBytes), '{"invoice":4711}'];
  const headers = signHeaders(body, { id: "run_1", sentAt: Date.now(), secrets: [secret] });
  const send = (text: string) =>
    example.receive(new Request("https://example.com/hook", { method: "POST", headers, body: text }), secret);
  expect((await send(body)).status).toBe(200);
  expect((await send(`${body} `)).status).toBe(401);
});
