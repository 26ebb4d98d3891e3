import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { signHeaders } from "../../services/delivery/sign.ts";
import type { Receiver } from "../../shared/client/receive/index.ts";
import { makeSecret } from "../../shared/domain/signing.ts";
import { startTestGateway, type TestGateway } from "../support/gateway.ts";

const ROOM = join(import.meta.dir, "../../shared/client");
const [use = "", receive = ""] = [
  ...readFileSync(join(ROOM, "README.md"), "utf8").matchAll(/^```ts\n(.*?)^```$/gms),
].map(([, lines = ""]) =>
  lines
    .replace('"@jobwheel/client"', JSON.stringify(join(ROOM, "index.ts")))
    .replace('"@jobwheel/client/receive"', JSON.stringify(join(ROOM, "receive/index.ts"))),
);

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
  const secret = makeSecret(randomBytes);
  writeFileSync(file, receive.replace("process.env.JOBWHEEL_SECRET", JSON.stringify(secret)));
  const { receiver } = (await import(file)) as { receiver: Receiver };
  const send = (body: string, attempt: number, signed = body) => {
    const facts = {
      "service-job-id": "job_1",
      "service-run-id": `run_${attempt}`,
      "service-attempt-fence": String(attempt),
      "service-scheduled-at": new Date().toISOString(),
      "service-environment": "production",
    };
    const signature = signHeaders(signed, { id: `run_${attempt}`, sentAt: Date.now(), secrets: [secret] });
    const headers = { ...facts, ...signature };
    return receiver(new Request("https://example.com/hook", { method: "POST", headers, body }));
  };
  const busy = await send('{"invoice":9711}', 1);
  expect([busy.status, busy.headers.get("retry-after")]).toEqual([503, "60"]);
  expect((await send('{"invoice":4711}', 2)).status).toBe(200);
  expect((await send("{}", 3)).headers.get("service-no-retry")).toBe("true");
  expect((await send('{"invoice":1}', 4, '{"invoice":4711}')).status).toBe(401);
});
