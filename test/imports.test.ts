import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { Glob } from "bun";

const STORE_BELOW = ["shared/domain", "shared/contract", "shared/platform"];

/**
 * The rooms that each room may import: domain <- contract <- store, bus <- services; platform serves the last three.
 * Services meet in rows and messages only, and the standalone alone composes them. `process` puts together what every
 * service's process needs, from the rooms below it. Customers install the client, which takes types from the contract
 * and has no dependencies.
 */
const ROOMS: Record<string, string[]> = {
  "shared/domain": [],
  "shared/contract": ["shared/domain"],
  "shared/client": ["shared/contract", "shared/domain"],
  "shared/platform": ["shared/domain"],
  "shared/store/database": STORE_BELOW,
  "shared/store/queue": [...STORE_BELOW, "shared/store/database"],
  "shared/store/retention": [...STORE_BELOW, "shared/store/database"],
  "shared/store/resources": [
    ...STORE_BELOW,
    ...["database", "queue", "retention"].map((room) => `shared/store/${room}`),
  ],
  "shared/store/insights": [
    ...STORE_BELOW,
    ...["database", "queue", "resources"].map((room) => `shared/store/${room}`),
  ],
  "shared/store/cell": [...STORE_BELOW, "shared/store"],
  "shared/bus": ["shared/domain", "shared/contract", "shared/platform"],
  "shared/process": ["shared"],
  "services/gateway": ["shared", "services/console"],
  "services/worker": ["shared"],
  "services/delivery": ["shared"],
  "services/admin": ["shared"],
  // The pages of the console run in browsers, and are a client of the API as any other.
  "services/console/app": ["shared/client", "shared/domain"],
  // This room builds the files that browsers load, for gateways to serve.
  "services/console": ["shared/domain"],
  // The command line that users install talks to the API by the client alone.
  "services/cli": ["shared/client", "shared/domain"],
  "services/standalone": ["shared", "services"],
  // This room packs the client, whose types it writes from the contract.
  "scripts/client": ["shared/contract", "shared/domain"],
  scripts: [],
};

/** The one file or folder that imports each package, so that replacing a package changes nothing else. */
const PLACES: Record<string, string> = {
  "@nats-io/jetstream": "shared/bus/",
  "@nats-io/nats-core": "shared/bus/",
  "@nats-io/transport-node": "shared/bus/",
  "@opentelemetry/api": "shared/platform/traces/recorder.ts",
  "@opentelemetry/exporter-trace-otlp-http": "shared/platform/traces/recorder.ts",
  "@opentelemetry/resources": "shared/platform/traces/recorder.ts",
  "@opentelemetry/sdk-trace": "shared/platform/traces/recorder.ts",
  "@preact/signals": "services/console/app/",
  "@sinclair/typebox": "shared/contract/",
  "drizzle-orm": "shared/store/",
  elysia: "services/gateway/",
  "ipaddr.js": "shared/domain/address.ts",
  pg: "shared/store/",
  preact: "services/console/app/",
  pino: "shared/platform/log.ts",
  "prom-client": "shared/platform/",
  "swagger-ui-dist": "services/gateway/docs-pages.ts",
  uplot: "services/console/app/ui/chart.tsx",
  yaml: "services/cli/commands/apply.ts",
};

/** The code of these rooms runs where there are no built-in modules. */
const RUNS_ANYWHERE = ["shared/client", "services/console/app"];

/** Built-in modules that only compute. */
const PURE_BUILTINS = ["node:crypto", "node:buffer", "node:net", "node:url", "node:util"];

/** Sources of time, chance or outside data, which a rule has to take as arguments. */
const IMPURE = [
  /\bDate\.now\b/g,
  /\bnew Date(?:\(\s*\)|\b(?!\())/g,
  /(?<!new )\bDate\(/g,
  /\bTemporal\.Now\b/g,
  /\bperformance\./g,
  /\bMath\.random\b/g,
  /\bcrypto\.\w*[rR]andom\w*/g,
  /import\s*\{[^}]*\brandom\w+[^}]*\}\s*from\s*"node:crypto"/g,
  /(?<!\.)\bprocess\b/g,
  /\bimport\.meta\.env\b/g,
  /\bBun\.(?!cron\b|hash\b|CryptoHasher\b)/g,
  /\bfetch\(/g,
  /\bset(?:Timeout|Interval|Immediate)\(/g,
  /\bconsole\./g,
];

/** A file that is about one thing has fewer lines than this. */
const LINES_BELOW = 350;

const root = dirname(import.meta.dir);

describe("the repository", () => {
  const sources = [...new Glob("{services,shared,scripts}/**/*.{ts,tsx}").scanSync({ cwd: root })]
    .filter((file) => !isTest(file))
    .sort()
    .map((file) => [file, readFileSync(join(root, file), "utf8")] as const);

  test("imports only in the direction that its rooms allow, and each package in its one place", () => {
    expect(sources.flatMap(([file, source]) => judge(file, source))).toEqual([]);
  });

  test("has no files that import each other in a circle", () => {
    const importsOf = sources.map(([file, source]) => [file, findImportedFiles(file, source)] as const);
    expect(findCircles(new Map(importsOf))).toEqual([]);
  });

  test("has no file of the product with 350 lines or more", () => {
    const styles = [...new Glob("services/**/*.css").scanSync({ cwd: root })];
    const files = [...sources.map(([file]) => file), ...styles].filter(
      (file) => readFileSync(join(root, file), "utf8").split("\n").length - 1 >= LINES_BELOW,
    );
    expect(files).toEqual([]);
  });

  test("names a place for every package that it depends on", () => {
    const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as {
      dependencies: Record<string, string>;
    };
    expect(Object.keys(PLACES).sort()).toEqual(Object.keys(manifest.dependencies).sort());
  });

  test("lets no package run anything when it is installed", () => {
    const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
    // Without this list Bun trusts some packages by itself, one that reports installations among them.
    expect(manifest.trustedDependencies).toEqual([]);
  });
});

describe("the judge of imports", () => {
  test.each([
    ["shared/domain/job.ts", `import { Type } from "../contract/job.ts";`],
    ["shared/contract/job.ts", `import type { Row } from "../store/schema.ts";`],
    ["shared/store/resources/jobs.ts", `export * from "../bus/bus.ts";`],
    ["shared/platform/health.ts", `import {\n  a,\n  b,\n} from "../store/database.ts";`],
    ["shared/client/jobs.ts", `import { JOB_STATUSES } from "../domain/job.ts";`],
    ["shared/client/jobs.ts", `import type { Static } from "@sinclair/typebox";`],
    ["shared/client/receive/node.ts", `import { JOB_STATUSES } from "../../domain/job.ts";`],
    ["shared/client/signature.ts", `import { createHmac } from "node:crypto";`],
    ["shared/client/signature.ts", `import type { IncomingMessage } from "node:http";`],
    ["services/worker/main.ts", `const { start } = await import("../delivery/main.ts");`],
    ["services/worker/main.ts", `import "../../test/support/postgres.ts";`],
    ["shared/platform/log.ts", `let level: import("../contract/error.ts").Level;`],
    ["services/gateway/app.ts", `import type { Pool } from "pg";`],
    ["services/gateway/app.ts", `import { sql } from "drizzle-orm/sql";`],
    ["services/gateway/app.ts", `const { Pool } = await import("../../node_modules/pg/lib/index.js");`],
    ["services/console/app/main.tsx", `import { listOf } from "../../../shared/contract/list.ts";`],
    ["services/console/app/main.tsx", `import { readFileSync } from "node:fs";`],
    ["services/console/pages.ts", `import { render } from "preact";`],
    ["services/gateway/app.ts", `import unknown from "left-pad";`],
    ["shared/platform/metrics/metrics.ts", `const pino = require("pino");`],
    ["shared/domain/job.ts", `import { readFileSync } from "node:fs";`],
    ["shared/domain/job.ts", `import { SQL } from "bun";`],
    ["shared/domain/job.ts", `export const now = () => Date.now();`],
    ["shared/domain/job.ts", `export const now = () => new Date();`],
    ["shared/domain/job.ts", `export const chance = Math.random;`],
    ["shared/domain/job.ts", `export const level = process.env.LOG_LEVEL;`],
    ["shared/domain/job.ts", `import { randomBytes } from "node:crypto"; export const id = randomBytes(16);`],
  ])("refuses in %s: %s", (file, source) => {
    expect(judge(file, source)).not.toEqual([]);
  });

  test.each([
    [
      "shared/domain/job.ts",
      `export const later = (now: Date) => new Date(now.getTime() + 1); // not Date.now()`,
    ],
    ["shared/domain/signing.ts", `import { createHmac } from "node:crypto"; export { createHmac };`],
    ["shared/contract/job.ts", `import { Type } from "@sinclair/typebox/type";\nimport "../domain/job.ts";`],
    [
      "shared/client/jobs.ts",
      `import type { JobStatus } from "../domain/job.ts";\nimport { ApiError } from "./errors.ts";\nthrow new ApiError({} as JobStatus);`,
    ],
    [
      "shared/store/database/database.ts",
      `import pg from "pg";\nimport { log } from "../../platform/log.ts";`,
    ],
    ["shared/client/receive/node.ts", `import { verifySignature } from "../signature.ts";`],
    ["services/standalone/main.ts", `import { start } from "../worker/main.ts";`],
    ["services/worker/main.test.ts", `import "../../test/support/postgres.ts";\nimport pg from "pg";`],
    ["services/gateway/routes/jobs.ts", `import { refuse } from "../errors.ts";`],
  ])("accepts in %s: %s", (file, source) => {
    expect(judge(file, source)).toEqual([]);
  });
});

describe("the search for circles of imports", () => {
  test("finds a circle of two and one of three, and none where two files import the same third", () => {
    const importsOf = new Map([
      ["a", ["b", "d"]],
      ["b", ["a", "c"]],
      ["c", ["d", "e"]],
      ["d", []],
      ["e", ["f"]],
      ["f", ["c"]],
    ]);
    expect(findCircles(importsOf)).toEqual(["a > b > a", "c > e > f > c"]);
  });

  test("counts an import of types, and one that is made while the program runs", () => {
    const source = `import type { A } from "./a.ts";\nconst { b } = await import("../b.ts");\nimport "pg";`;
    expect(findImportedFiles("shared/platform/c.ts", source)).toEqual([
      "shared/platform/a.ts",
      "shared/b.ts",
    ]);
  });
});

/** Tests stand beside the code that they test, and may import any tools and support. */
function isTest(file: string): boolean {
  return /(?:\.test|test-support)\.ts$/.test(file);
}

/** Every circle of imports, as the path that leads from one of its files back to it. */
function findCircles(importsOf: ReadonlyMap<string, readonly string[]>): string[] {
  const circles: string[] = [];
  const done = new Set<string>();
  function visit(file: string, path: readonly string[]): void {
    const start = path.indexOf(file);
    if (start >= 0) circles.push([...path.slice(start), file].join(" > "));
    if (start >= 0 || done.has(file)) return;
    for (const imported of importsOf.get(file) ?? []) visit(imported, [...path, file]);
    done.add(file);
  }
  for (const file of importsOf.keys()) visit(file, []);
  return circles;
}

function findImportedFiles(file: string, source: string): string[] {
  return findImports(source)
    .filter((specifier) => specifier.startsWith("."))
    .map((specifier) => normalize(join(dirname(file), specifier)));
}

/** Every reason why the file, by its path from the root, may not hold this source. */
function judge(file: string, source: string): string[] {
  if (isTest(file)) return [];
  const room = findRoom(file);
  if (room === undefined) return [`${file} stands in no known room`];
  const imports = findImports(source).flatMap((specifier) => judgeImport(file, room, specifier));
  if (room === "shared/domain") return [...imports, ...findImpurities(file, source)];
  return room === "shared/client" ? [...imports, ...findBurdens(file, source)] : imports;
}

function judgeImport(file: string, room: string, specifier: string): string[] {
  const packaged = specifier.split("node_modules/").at(-1) ?? specifier;
  if (packaged.startsWith(".")) {
    const target = normalize(join(dirname(file), packaged));
    const allowed = [room, ...(ROOMS[room] ?? [])].some((prefix) => target.startsWith(`${prefix}/`));
    return allowed ? [] : [`${file} imports ${target}`];
  }
  if (/^(?:node:|bun$|bun:)/.test(packaged)) {
    const isAllowed =
      room === "shared/domain" ? PURE_BUILTINS.includes(packaged) : !RUNS_ANYWHERE.includes(room);
    return isAllowed ? [] : [`${file} imports ${packaged}`];
  }
  const name = packaged.split("/", packaged.startsWith("@") ? 2 : 1).join("/");
  const place = PLACES[name];
  return place !== undefined && file.startsWith(place) ? [] : [`${file} imports ${name}, not ${place}`];
}

function findRoom(file: string): string | undefined {
  return Object.keys(ROOMS).find((room) => file.startsWith(`${room}/`));
}

/** Everything that the source imports, types included; a transpiler would leave those out. */
function findImports(source: string): string[] {
  const statements = /^\s*(?:import|export)\b(?:[^"';]*?\bfrom)?\s*["']([^"']+)["']/gm;
  const calls = /\b(?:import|require|import\.meta\.resolve)\(\s*["']([^"']+)["']/g;
  return [statements, calls].flatMap((pattern) =>
    [...source.matchAll(pattern)].map((match) => match[1] ?? ""),
  );
}

/** The imports that a bundler would add from outside of the client's room. The transpiler leaves out types. */
function findBurdens(file: string, source: string): string[] {
  const imports = new Bun.Transpiler({ loader: "ts" }).scanImports(source);
  return imports
    .filter(
      ({ path }) =>
        !path.startsWith(".") || !normalize(join(dirname(file), path)).startsWith("shared/client/"),
    )
    .map(({ path }) => `${file} brings ${path} along`);
}

function findImpurities(file: string, source: string): string[] {
  // The transpiler removes comments, which may mention Date.now().
  const code = new Bun.Transpiler({ loader: "ts" }).transformSync(source);
  return IMPURE.flatMap((pattern) => [...code.matchAll(pattern)].map((match) => `${file} uses ${match[0]}`));
}
