import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { findNatsServer } from "../support/nats-binary.ts";
import { generate, readGenerated } from "./chart/files.ts";
import { findPromtool } from "./debian-binary.ts";
import { layOut, readImage } from "./image.ts";
import { CELLS, DEPLOY, findApplied, type Resource, render, renderCell } from "./manifests.ts";
import { judgeDashboard, judgeRules, judgeRunbook, RULES_FILE } from "./monitoring.ts";
import { readValues, writeConfiguration } from "./nats-chart.ts";
import { judgePolicy } from "./policy.ts";
import { judgeSchemas } from "./schemas.ts";

/**
 * `npm run check:deploy`: judges everything in deploy/ that can be judged without a cluster and a container engine. It
 * shows every complaint and every part that was not judged, and ends with 1 if there is a complaint. Folders as
 * arguments are judged together as one cell, in place of the cells of this repository.
 */

const ownFolders = process.argv.slice(2).map((folder) => resolve(folder));
const cells = ownFolders.length > 0 ? ["yours"] : Object.keys(CELLS);
const rendered = new Map<string, Resource[]>();
const renderOnce = (cell: string) =>
  rendered.getOrInsertComputed(cell, () =>
    ownFolders.length > 0 ? ownFolders.flatMap(render) : renderCell(cell),
  );

const ROOT = dirname(DEPLOY);
/** The exit code of a service that lacks only its settings. */
const SETTINGS_MISSING = 2;

const withoutSchema = new Set<string>();
const ofCells: Record<string, () => string[]> = {
  "schemas of Kubernetes and its extensions": () =>
    eachCell((resources) => {
      const { complaints, unjudged } = judgeSchemas(resources);
      for (const name of unjudged) withoutSchema.add(name);
      return complaints;
    }),
  policy: () =>
    eachCell((resources) =>
      Object.entries(judgePolicy(resources)).map(([rule, found]) => `${rule}: ${found.join(", ")}`),
    ),
};
const ofRepository: Record<string, () => string[]> = {
  "every folder renders, and belongs to a cell": () => {
    const known = Object.values(CELLS).flat();
    return findApplied().flatMap((folder) => [
      ...(known.includes(folder) ? [] : [`${folder} belongs to no cell`]),
      ...attempt(() => (render(folder).length > 0 ? [] : [`${folder} is empty`])),
    ]);
  },
  "the chart has the files that npm run chart writes": () =>
    isDeepStrictEqual(readGenerated(), generate())
      ? []
      : ["deploy/chart is older than the manifests: npm run chart"],
  "nats-server takes the configuration that the values make": () => inScratch(checkNats),
  "promtool takes the configuration of Prometheus": () =>
    complaintsOf(findPromtool(), ["check", "config", join(DEPLOY, "compose", "prometheus.yml")]),
  "promtool takes the rules, and they fire as their tests say": () => [
    ...complaintsOf(findPromtool(), ["check", "rules", "--lint=all", "--lint-fatal", RULES_FILE]),
    ...complaintsOf(findPromtool(), [
      "test",
      "rules",
      ...["rules", "outages"].map((name) => join(import.meta.dir, `${name}.promtool.yaml`)),
    ]),
  ],
  "rules and dashboard ask for what the services expose": () => [...judgeRules(), ...judgeDashboard()],
  "each alert leads to its section of the runbook": () => judgeRunbook(),
  "each service finds all that it imports in what the image holds": () => inScratch(checkImage),
};

const nats = ownFolders.length > 0 ? "" : await findNatsServer();
const checks = ownFolders.length > 0 ? ofCells : { ...ofRepository, ...ofCells };
let failedCount = 0;
for (const [name, check] of Object.entries(checks)) {
  const complaints = attempt(check);
  console.log(`${complaints.length === 0 ? "ok    " : "FAILED"} ${name}`);
  for (const complaint of complaints) console.log(`         ${complaint}`);
  if (complaints.length > 0) failedCount++;
}
console.log(`\nNot checked here, for want of a cluster and of an engine for containers:
  the image is not built, compose.yaml is not started, nothing is applied and no roll-out is seen;
  the chart of NATS is not rendered: its values are checked in its configuration only;
  no package has the schema of: ${[...withoutSchema].join(", ")};
  no Grafana shows the dashboard, and no Alertmanager sends anything on.
That the processes run with the manifests' arguments and environment is tested by npm test -- test/deploy, that every
alert fires, that a backup goes on and that operators' commands do as they say by npm test -- test/operations`);
process.exit(failedCount === 0 ? 0 : 1);

function eachCell(judge: (resources: Resource[]) => string[]): string[] {
  return cells.flatMap((cell) => judge(renderOnce(cell)).map((complaint) => `${cell}: ${complaint}`));
}

/** Runs a check. An error of the check becomes a complaint like any other. */
function attempt(check: () => string[]): string[] {
  try {
    return check();
  } catch (error) {
    return [error instanceof Error ? error.message : String(error)];
  }
}

function checkNats(folder: string): string[] {
  const file = join(folder, "nats.conf");
  writeFileSync(file, writeConfiguration(readValues(), { server_name: "check" }, folder));
  const passwords = { GATEWAY_PASSWORD: "wheel", WORKER_PASSWORD: "wheel", DELIVERY_PASSWORD: "wheel" };
  return complaintsOf(nats, ["-t", "-c", file], { env: passwords });
}

/** Installs only the packages of the image, with the image's own command. */
function checkImage(folder: string): string[] {
  const app = join(folder, "app");
  layOut(readImage(), app);
  rmSync(join(app, "node_modules"));
  cpSync(join(ROOT, "bun.lock"), join(app, "bun.lock"));
  const install = ["install", "--frozen-lockfile", "--production", "--omit=optional", "--ignore-scripts"];
  const failed = complaintsOf(process.execPath, install, { cwd: app });
  if (failed.length > 0) return failed;
  // The Containerfile installs the packages once for all kinds of machines.
  const native = [...new Bun.Glob("node_modules/**/*.{node,so,dylib,exe}").scanSync({ cwd: app })];
  if (native.length > 0) return native.map((file) => `${file} is for one kind of machine`);

  const entries = readdirSync(join(app, "services")).map((service) => `services/${service}/main.ts`);
  return (
    [...entries, "services/admin/migrate.ts"]
      // The standalone has an image of its own, which test/deploy/standalone-image.test.ts follows.
      .filter((entry) => existsSync(join(app, entry)) && !entry.includes("standalone"))
      .flatMap((entry) => {
        const args = entry === "services/admin/main.ts" ? [entry, "--help"] : [entry];
        const { status, stdout, stderr } = spawnSync(process.execPath, args, {
          cwd: app,
          env: {},
          encoding: "utf8",
        });
        const isComplete =
          status === 0 || status === SETTINGS_MISSING || stderr.startsWith("DATABASE_URL is not set");
        return isComplete ? [] : [`${entry}: ${(stdout + stderr).trim()}`];
      })
  );
}

function complaintsOf(
  file: string,
  args: string[],
  options: { cwd?: string; env?: Record<string, string> } = {},
): string[] {
  const env = { ...process.env, ...options.env };
  const { status, stdout, stderr, error } = spawnSync(file, args, { ...options, env, encoding: "utf8" });
  return status === 0 ? [] : [error?.message ?? `${stdout}${stderr}`.trim()];
}

function inScratch(check: (folder: string) => string[]): string[] {
  const folder = mkdtempSync(join(tmpdir(), "check-deploy-"));
  try {
    return check(folder);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
