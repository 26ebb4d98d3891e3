import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { brotliDecompressSync, gunzipSync } from "node:zlib";
import { buildBundle } from "../../services/console/build/bundle.ts";
import { openBundle } from "../../services/console/build/kept.ts";
import { createConsolePages } from "../../services/console/pages.ts";
import { type Answer, readRefusal, startTestGateway, type TestGateway } from "../support/gateway.ts";

let gateway: TestGateway;

beforeAll(async () => {
  gateway = await startTestGateway();
});
afterAll(() => gateway.stop());

const BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
const asBrowser = (path: string, method = "GET") =>
  gateway.call(method, path, { headers: { Accept: BROWSER } });
const VIEWS = [
  "/",
  "/console",
  "/console/",
  "/console/production",
  "/console/development/jobs",
  "/console/production/jobs/job_01m88s1k1j0hbvpg8nq2vb16t8?x=1",
];

/** Expects JSON, with a header that tells caches that a browser gets another answer. */
function expectForPrograms(answer: Answer): void {
  readRefusal(answer, "resource_not_found");
  expect(answer.headers.get("vary")).toBe("Accept");
}

/** The files that a page names, as a browser resolves them. */
function filesOf(html: string, path: string): string[] {
  const named = [...html.matchAll(/(?:src|href)="([^"]+assets[^"]+)"/g)].map(([, href = ""]) => href);
  return named.map((href) => new URL(href, `http://host${path}`).pathname);
}

describe("the console is served", () => {
  test.each(VIEWS)("to browsers at %s, by a page that names files which are there", async (path) => {
    const { status, headers, text } = await asBrowser(path);
    expect(status).toBe(200);
    expect(headers.get("content-type")).toBe("text/html; charset=utf-8");
    const files = filesOf(text, path);
    expect(files).toHaveLength(4);
    for (const file of files) {
      const answer = await gateway.call("GET", file);
      expect(answer.status).toBe(200);
      expect(answer.headers.get("cache-control")).toBe("public, max-age=31536000, immutable");
      expect(answer.headers.get("x-content-type-options")).toBe("nosniff");
    }
  });

  test("under a policy that allows no script or style within the page, no other host, and no frame", async () => {
    const { headers, text } = await asBrowser("/console/production/jobs");
    const policy = headers.get("content-security-policy") ?? "";
    for (const rule of [
      "default-src 'none'",
      "script-src 'self'",
      "style-src 'self'",
      "frame-ancestors 'none'",
    ])
      expect(policy.split("; ")).toContain(rule);
    expect(policy).not.toMatch(/unsafe|\*|data:|http/);
    expect(text).not.toMatch(/<style|style=|<script(?![^>]* src=)|\bon\w+=|https?:/);
  });

  test("compressed as the browser takes it", async () => {
    const [file = ""] = filesOf((await asBrowser("/")).text, "/").filter((name) => name.endsWith(".css"));
    const get = async (accepted: string) => {
      const init = { headers: { "Accept-Encoding": accepted }, decompress: false };
      const response = await fetch(`http://127.0.0.1:${gateway.port}${file}`, init);
      expect(response.headers.get("vary")).toBe("Accept-Encoding");
      return { encoding: response.headers.get("content-encoding"), bytes: await response.bytes() };
    };
    const plain = await get("identity");
    expect(plain.encoding).toBeNull();
    const brotli = await get("gzip, deflate, br, zstd");
    expect([brotli.encoding, brotliDecompressSync(brotli.bytes)]).toEqual(["br", Buffer.from(plain.bytes)]);
    const zipped = await get("gzip, br;q=0");
    expect([zipped.encoding, gunzipSync(zipped.bytes)]).toEqual(["gzip", Buffer.from(plain.bytes)]);
  });

  test("beside the documentation, with a slash at its end or without", async () => {
    const init = { headers: { Accept: BROWSER }, redirect: "manual" } as const;
    const { status, headers } = await fetch(`http://127.0.0.1:${gateway.port}/docs/`, init);
    expect([status, headers.get("location"), headers.get("vary")]).toEqual([302, "../docs", "Accept"]);
    expectForPrograms(await gateway.call("GET", "/docs/"));
  });

  test("some time after a build that has failed, by one that the next request makes and later ones share", async () => {
    let builds = 0;
    const againMs = 1_000;
    const pages = createConsolePages(async () => {
      if (++builds === 1) throw new Error("the disk is full");
      return openBundle();
    }, againMs);
    const ask = () => pages.answer(new Request("http://host/", { headers: { Accept: BROWSER } }), "/");
    const failed = await Promise.allSettled([ask(), ask()]);
    expect(failed.map(({ status }) => status)).toEqual(["rejected", "rejected"]);
    expect(builds).toBe(1);
    await Bun.sleep(againMs + 100);
    const answers = await Promise.all([ask(), ask()]);
    expect([...answers, await ask()].map((answer) => answer?.status)).toEqual([200, 200, 200]);
    expect(builds).toBe(2);
  });

  test("and has a favicon", async () => {
    const { status, headers } = await gateway.call("GET", "/favicon.ico");
    expect([status, headers.get("content-type")]).toEqual([200, "image/svg+xml"]);
  });

  test("without anything that only Bun or Node have", async () => {
    const { assets } = await buildBundle();
    const script = new TextDecoder().decode(assets.find(({ name }) => /^main-.*js$/.test(name))?.bytes);
    expect(script.length).toBeGreaterThan(10_000);
    // The pattern is narrow, since the recipe for receivers is a text that names Bun and the receiver's environment.
    expect(script.match(/\bBuffer\.\w+|"node:/g) ?? []).toEqual([]);
  });

  test("with a first load of less than 150 KB, compressed", async () => {
    const { assets } = await buildBundle();
    const sum = assets.reduce((total, { brotli }) => total + brotli.length, 0);
    expect(sum).toBeGreaterThan(10_000);
    expect(sum).toBeLessThan(150 * 1024);
  });
});

describe("a path without a view", () => {
  test.each([
    "/console/staging/jobs",
    "/console/production/secrets",
    "/consoles",
    "/v1/jobs",
    "/console/assets/main.js",
  ])("is a page that says so for a browser, and JSON for everybody else: %s", async (path) => {
    const page = await asBrowser(path);
    expect([page.status, page.headers.get("content-type")]).toEqual([404, "text/html; charset=utf-8"]);
    expect(page.text).toContain("There is nothing here");
    expect(page.headers.get("vary")).toBe("Accept");
    for (const accept of ["*/*", "application/json", "text/htmlx"]) {
      expectForPrograms(await gateway.call("GET", path, { headers: { Accept: accept } }));
    }
  });

  test("below /v2 is the API's, for browsers too", async () => {
    readRefusal(await asBrowser("/v2/jobs"), "unauthorized");
    readRefusal(await asBrowser("/v2/nothing"), "unauthorized");
  });

  test.each(["/", "/console/production/jobs", "/nothing"])("takes no other method: POST %s", async (path) => {
    readRefusal(await asBrowser(path, "POST"), "resource_not_found");
  });

  test.each(["/nothing", "/console/production/jobs"])(
    "of 15,000 steps is JSON for browsers too: %s",
    async (path) => {
      readRefusal(await asBrowser(`${path}${"/".repeat(15_000)}`), "resource_not_found");
    },
  );

  test("of the console is JSON for programs", async () => {
    for (const path of VIEWS) expectForPrograms(await gateway.call("GET", path));
  });
});
