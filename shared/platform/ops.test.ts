import { afterEach, describe, expect, test } from "bun:test";
import { createMetrics } from "./metrics/metrics.ts";
import { type Ops, startOps } from "./ops.ts";

let ops: Ops | undefined;
afterEach(() => ops?.stop());

function start(
  ready: () => boolean | Promise<boolean>,
  routes: Record<string, (request: Request) => Promise<Response>> = {},
): (path: string, init?: RequestInit) => Promise<Response> {
  const started = startOps({ host: "127.0.0.1", port: 0, ready, metrics: createMetrics(), routes });
  ops = started;
  return (path, init) => fetch(`http://127.0.0.1:${started.port}${path}`, init);
}

describe("the port for operators", () => {
  test("tells that the process is alive, and shows its metrics", async () => {
    const call = start(() => true);
    expect((await call("/healthz")).status).toBe(200);
    const page = await call("/metrics");
    expect(page.headers.get("content-type")).toStartWith("text/plain");
    expect(await page.text()).toContain("\njobwheel_webhooks_disabled_total 0\n");
  });

  test("tells whether the process serves, checked for each request, and stays alive while it does not", async () => {
    let serves = true;
    const call = start(async () => serves);
    expect((await call("/readyz")).status).toBe(200);
    serves = false;
    expect((await call("/readyz")).status).toBe(503);
    expect((await call("/healthz")).status).toBe(200);
  });

  test("counts a failed or hanging check as not ready", async () => {
    let call = start(() => Promise.reject(new Error("no Postgres")));
    expect((await call("/readyz")).status).toBe(503);
    await ops?.stop();
    call = start(() => Promise.withResolvers<boolean>().promise);
    expect((await call("/readyz")).status).toBe(503);
  });

  test("has further routes by method and path, and answers 404 to all others", async () => {
    const call = start(() => true, {
      "POST /echo": async (request) => new Response(await request.text()),
    });
    expect(await (await call("/echo", { method: "POST", body: "hello" })).text()).toBe("hello");
    expect((await call("/echo")).status).toBe(404);
    expect((await call("/healthz", { method: "POST" })).status).toBe(404);
    expect((await call("/healthz", { method: "HEAD" })).status).toBe(200);
    expect((await call("/")).status).toBe(404);
  });

  test("tells nothing about the error of a route", async () => {
    const call = start(() => true, { "GET /boom": () => Promise.reject(new Error("secret detail")) });
    const answer = await call("/boom");
    expect(answer.status).toBe(500);
    expect(await answer.text()).toBe("internal error\n");
  });

  test("refuses a port on which another process listens", async () => {
    const source = `Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: () => new Response() }).port`;
    const other = Bun.spawn([process.execPath, "-e", `console.log(${source})`]);
    try {
      for await (const line of other.stdout.pipeThrough(new TextDecoderStream())) {
        const port = Number(line);
        expect(port).toBeGreaterThan(0);
        expect(() =>
          startOps({ host: "127.0.0.1", port, ready: () => true, metrics: createMetrics() }),
        ).toThrow("in use");
        break;
      }
    } finally {
      other.kill();
    }
  });
});
