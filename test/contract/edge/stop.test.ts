import { expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import net from "node:net";
import { startGateway } from "../../../services/gateway/start.ts";
import { createLog } from "../../../shared/platform/log.ts";
import { createMetrics } from "../../../shared/platform/metrics/metrics.ts";
import { createSeal } from "../../../shared/platform/seal/seal.ts";
import { parseRaw, startTestGateway, TARGET_URL } from "../../support/gateway.ts";

test("a gateway that stops finishes its requests in progress and takes no more", async () => {
  const other = await startTestGateway();
  const project = await other.addProject();
  const gateway = await startGateway({
    host: "127.0.0.1",
    port: 0,
    db: other.db,
    bus: other.bus,
    clock: { now: () => Date.now(), stop() {} },
    log: createLog({ level: "error", name: "test" }),
    metrics: createMetrics(),
    shardsPerRegion: 64,
    targets: { allowInsecure: false, own: [] },
    publicUrl: null,
    seal: createSeal(randomBytes(32)),
    storeTimeMsMax: 30_000,
  });
  const body = JSON.stringify({ target_url: TARGET_URL });
  const head =
    `POST /v2/jobs HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer ${project.production}\r\n` +
    `Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: ${body.length}\r\n\r\n`;

  const begun = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  let text = "";
  const socket = net.connect(gateway.port, "127.0.0.1", () => socket.write(head));
  socket.on("data", (chunk: Buffer) => {
    text += chunk.toString();
    begun.resolve();
  });
  socket.on("close", () => ended.resolve());
  await begun.promise;
  const stopped = gateway.stop();
  socket.write(body);
  await stopped;
  await ended.promise;
  expect(parseRaw(text.slice(text.lastIndexOf("HTTP/1.1"))).status).toBe(201);

  const refused = Promise.withResolvers<string>();
  net.connect(gateway.port, "127.0.0.1").on("error", (error: NodeJS.ErrnoException) => {
    refused.resolve(error.code ?? "");
  });
  expect(await refused.promise).toBe("ECONNREFUSED");
  await other.stop();
});
