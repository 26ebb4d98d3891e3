import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readRefusal, type TestGateway } from "../../support/gateway.ts";
import { type ProxiedGateway, startProxiedGateway } from "../../support/proxied-gateway.ts";

let gateway: TestGateway;
let proxied: ProxiedGateway;

beforeAll(async () => {
  proxied = await startProxiedGateway();
  ({ gateway } = proxied);
});
afterAll(() => proxied.stop());

const PAGES = [
  ["/openapi.json", "application/json"],
  ["/docs", "text/html; charset=utf-8"],
  ["/docs/start.js", "text/javascript; charset=utf-8"],
  ["/docs/swagger-ui-bundle.js", "text/javascript; charset=utf-8"],
  ["/docs/swagger-ui.css", "text/css; charset=utf-8"],
  ["/docs/favicon-32x32.png", "image/png"],
] as const;

describe.each(PAGES)("%s", (path, type) => {
  test("is served without a key, a request rate or a version", async () => {
    const answer = await gateway.call("GET", path);
    expect(answer.status).toBe(200);
    expect(answer.text.length).toBeGreaterThan(50);
    expect(answer.headers.get("content-type")).toBe(type);
    for (const name of ["ratelimit-limit", "service-version", "set-cookie"]) {
      expect(answer.headers.get(name)).toBeNull();
    }
  });

  test("answers HEAD as GET, without the body", async () => {
    const [get, head] = [await gateway.call("GET", path), await gateway.call("HEAD", path)];
    const plain = ({ headers }: typeof get) =>
      [...headers].filter(([name]) => !["date", "request-id"].includes(name)).sort();
    expect(head.status).toBe(200);
    expect(head.text).toBe("");
    expect(plain(head)).toEqual(plain(get));
  });

  test("is not sent again to a client that has it", async () => {
    const tag = (await gateway.call("GET", path)).headers.get("etag") ?? "";
    for (const known of [tag, `W/${tag}`, `"other", ${tag}`, "*"]) {
      const answer = await gateway.call("GET", path, { headers: { "If-None-Match": known } });
      expect([answer.status, answer.text, answer.headers.get("etag")]).toEqual([304, "", tag]);
    }
    const answer = await gateway.call("GET", path, { headers: { "If-None-Match": '"other"' } });
    expect(answer.status).toBe(200);
  });

  test("refuses other methods", async () => {
    for (const method of ["POST", "PUT", "DELETE", "OPTIONS"]) {
      const answer = await gateway.call(method, path);
      readRefusal(answer, "method_not_allowed");
      expect(answer.headers.get("allow")).toBe("GET, HEAD");
    }
  });

  test("lets a browser load nothing from elsewhere", async () => {
    const { headers } = await gateway.call("GET", path);
    const policy = headers.get("content-security-policy") ?? "";
    expect(policy).toContain("default-src 'none'");
    expect(policy).not.toMatch(/https?:|\*|unsafe-eval|script-src[^;]*unsafe-inline/);
    expect(headers.get("x-content-type-options")).toBe("nosniff");
  });
});

test("the description of the API can be read while the database is away", async () => {
  proxied.proxy.cut();
  try {
    for (const [path] of PAGES) expect((await gateway.call("GET", path)).status).toBe(200);
  } finally {
    proxied.proxy.mend();
  }
});

test.each(["/docs/", "/openapi", "/docs/../package.json", "/docs/swagger-ui-bundle.js.map", "/docs/%2e%2e"])(
  "nothing else of the page's package is served: %s",
  async (path) => {
    const raw = await gateway.send(`GET ${path} HTTP/1.1\r\nHost: test\r\n\r\n`);
    expect(raw).toStartWith("HTTP/1.1 404");
  },
);

test("the published document names the address at which clients reach the gateway", async () => {
  const serversOf = async (port: number) =>
    JSON.parse((await gateway.call("GET", "/openapi.json", { port })).text).servers;
  expect(await serversOf(gateway.port)).toMatchObject([{ url: "/" }]);
  const behindProxy = await gateway.startMate({ publicUrl: "https://jobs.example.com/api/" });
  try {
    expect(await serversOf(behindProxy.port)).toMatchObject([{ url: "https://jobs.example.com/api" }]);
  } finally {
    await behindProxy.stop();
  }
});
