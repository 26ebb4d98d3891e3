import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import manifest from "../../../package.json";
import { createClient } from "../../../shared/client/index.ts";
import { until } from "../../flow/support.ts";
import { claimPort } from "../../support/port.ts";
import { createTestDatabase, type TestDatabase } from "../../support/postgres.ts";
import { CHECKOUT, type ServiceProcess, startService } from "../../support/service-process.ts";
import { type InstalledPackage, installPackage } from "./installed.ts";

setDefaultTimeout(180_000);

let client: InstalledPackage;
let database: TestDatabase;
let standalone: ServiceProcess;
let environment: { PATH: string; JOBWHEEL_KEY: string; JOBWHEEL_URL: string; JOBWHEEL_SECRET: string };
const dataDir = mkdtempSync(join(tmpdir(), "first-hour-"));

beforeAll(async () => {
  [client, database] = await Promise.all([
    installPackage("shared/client", ["@types/node", "express", "hono"]),
    createTestDatabase("first_hour"),
  ]);
  standalone = await startService("standalone", { DATA_DIR: dataDir, DATABASE_URL: database.url });
  const apiKey = await until(() => /svc_dev_[A-Za-z0-9]+(?=\s)/.exec(standalone.output)?.[0]);
  const baseUrl = `http://127.0.0.1:${standalone.port}`;
  const { secret } = await createClient({ baseUrl, apiKey }).project.rotateSigningSecret();
  const given = { JOBWHEEL_KEY: apiKey, JOBWHEEL_URL: baseUrl, JOBWHEEL_SECRET: secret };
  environment = { PATH: process.env.PATH ?? "", ...given };
  copyFileSync(join(import.meta.dir, "first-hour.ts"), join(client.folder, "first-hour.ts"));
});
afterAll(async () => {
  await standalone?.end("SIGTERM");
  await database?.drop();
  client?.remove();
  rmSync(dataDir, { recursive: true, force: true });
});

const STRICT = {
  strict: true,
  exactOptionalPropertyTypes: true,
  noUncheckedIndexedAccess: true,
  skipLibCheck: false,
  target: "es2022",
};

describe("the packed client", () => {
  test("holds what it needs and nothing else", () => {
    const kinds = client.files.map((file) => file.replace(/[\w-]+(?=\.(?:js|d\.ts|mjs|py|go|php|sh)$)/, "*"));
    expect([...new Set(kinds)].sort()).toEqual(
      [
        ...["LICENSE", "README.md", "package.json", "dist/*.d.ts", "dist/*.js"],
        ...["dist/receive/*.d.ts", "dist/receive/*.js"],
        ...["go", "mjs", "php", "py", "sh"].map((extension) => `examples/*.${extension}`),
      ].sort(),
    );
    const packed = JSON.parse(readInstalled("package.json"));
    expect(packed).toMatchObject({ version: manifest.version, license: manifest.license });
    expect([packed.dependencies, packed.peerDependencies]).toEqual([undefined, undefined]);
    expect(readInstalled("LICENSE")).toBe(readFileSync(join(CHECKOUT, "LICENSE"), "utf8"));
  });

  test.each([
    ["of node16", { module: "node16", lib: ["es2022"], types: ["node"] }],
    ["of a bundler, without the types of Node", { module: "preserve", lib: ["es2022", "dom"], types: [] }],
  ])("compiles what both README.md show, by strict rules %s", async (_, options) => {
    const files = ["README.md", "shared/client/README.md"].flatMap(writeSnippets);
    expect(files.length).toBe(5);
    if (options.types.length === 0) {
      const globals = "declare const process: { env: Record<string, string | undefined> };";
      writeFileSync(join(client.folder, "globals.d.ts"), globals);
      files.push("globals.d.ts");
    }
    expect(await client.compile(files, { ...STRICT, ...options, noEmit: true })).toBe("");
  });

  test("leads from its installation to a verified delivery, on Node", async () => {
    const options = { ...STRICT, module: "nodenext", lib: ["es2022"], types: ["node"] };
    expect(await client.compile(["first-hour.ts"], options)).toBe("");
    const { code, said, complaint } = await client.run(["node", "first-hour.js"], environment);
    expect([code, complaint]).toEqual([0, ""]);
    expect(JSON.parse(said)).toEqual({
      seen: [1, 2].map((attempt) => ({ attempt, payload: { invoice: 4711 } })),
      status: "succeeded",
      errors: [null, "not yet"],
      members: ["$sealed"],
      refused: "resource_not_found",
    });
  });

  test("is bundled without anything beside it", async () => {
    const entrypoints = ["@jobwheel/client", "@jobwheel/client/receive"].map((name) =>
      Bun.resolveSync(name, client.folder),
    );
    const { outputs } = await Bun.build({ entrypoints, target: "browser" });
    for (const output of outputs)
      expect(new Bun.Transpiler({ loader: "js" }).scanImports(await output.text())).toEqual([]);
  });
});

describe("the example", () => {
  test.each([
    ["node-http.mjs", "node"],
    ["express.mjs", "node"],
    ["hono.mjs", process.execPath],
    ["request-response.mjs", process.execPath],
  ])("%s receives what send.mjs sends", async (name, runtime) => {
    for (const file of [name, "send.mjs"])
      copyFileSync(
        join(client.folder, "node_modules/@jobwheel/client/examples", file),
        join(client.folder, file),
      );
    const port = await claimPort();
    const server = Bun.spawn([runtime, name], {
      cwd: client.folder,
      env: { ...environment, PORT: String(port) },
      stdio: ["ignore", "pipe", "inherit"],
    });
    try {
      const url = `http://127.0.0.1:${port}/hook`;
      await until(() => fetch(url).then(Boolean, () => false));
      const sent = await client.run(["node", "send.mjs", url], environment);
      expect(sent).toMatchObject({ code: 0, complaint: "" });
      expect(sent.said).toMatch(/^attempt 1: succeeded 200 \njob_\w+ has succeeded\n$/);
    } finally {
      server.kill();
    }
    expect(await new Response(server.stdout).text()).toMatch(/^invoice 4711 by job_\w+, attempt 1$/m);
  });
});

const readInstalled = (file: string) =>
  readFileSync(join(client.folder, "node_modules/@jobwheel/client", file), "utf8");

/** Writes each example of the page into a file of its own. Answers their names. */
function writeSnippets(page: string): string[] {
  const text = readFileSync(join(CHECKOUT, page), "utf8");
  return [...text.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, lines = ""], index) => {
    const name = `${page.replaceAll(/\W/g, "-")}-${index}.ts`;
    writeFileSync(join(client.folder, name), lines);
    return name;
  });
}
