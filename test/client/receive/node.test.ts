import { afterAll, beforeAll, expect, test } from "bun:test";
import http from "node:http";
import type { AddressInfo } from "node:net";
import express from "express";
import { makeSealKey } from "../../../shared/client/index.ts";
import { toNode } from "../../../shared/client/receive/index.ts";
import { attemptRequest, listen, recordBodies } from "./support.ts";

const key = makeSealKey();
const reported: unknown[] = [];
const taken = toNode(
  listen({
    openWith: key,
    onAttempt: ({ payload }) => expect(payload).toEqual({ invoice: 4711 }),
    onError: (error) => reported.push(error),
  }).receiver,
);
const app = express();
app.use("/raw", express.raw({ type: "*/*" }), taken);
app.use("/parsed", express.json(), taken);
app.use("/plain", taken);
const server = http.createServer(app);
beforeAll(() => new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening)));
afterAll(() => server.close());

/** Sends an attempt over a socket, whose payload is sealed for this path. */
async function send(path: string): Promise<{ status: number; text: string }> {
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`;
  const { client, bodies } = recordBodies({ sealWith: key });
  await client.jobs.create({ target_url: url, payload: { invoice: 4711 } });
  const response = await fetch(
    attemptRequest({ url, jobId: path, text: JSON.stringify(bodies[0]?.payload) }),
  );
  return { status: response.status, text: await response.text() };
}

test.each(["/plain", "/plain/hook?a=1", "/raw"])(
  "takes the bytes as they came, or as Express has kept them, at the whole path: %s",
  async (path) => {
    expect(await send(path)).toEqual({ status: 200, text: "ok" });
  },
);

test("says what to do where the body was parsed before", async () => {
  expect((await send("/parsed")).status).toBe(500);
  expect(String(reported[0])).toContain("mount the receiver before express.json()");
});

test("refuses a body that is too large before it has arrived", async () => {
  const { port } = server.address() as AddressInfo;
  const refused = Promise.withResolvers<number | undefined>();
  const request = http.request({
    port,
    path: "/plain",
    method: "POST",
    headers: { "content-length": 2 ** 30 },
  });
  request.on("response", ({ statusCode }) => refused.resolve(statusCode)).on("error", refused.reject);
  request.write("{");
  expect(await refused.promise).toBe(413);
  request.on("error", () => undefined).destroy();
});
