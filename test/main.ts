import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync, statfsSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { PostgreSqlContainer } from "@testcontainers/postgresql";
import { Glob, SQL } from "bun";
import { startEmbeddedPostgres } from "../shared/platform/embedded-postgres/embedded-postgres.ts";
import { findNatsServer, natsVersion } from "./support/nats-binary.ts";
import { createMigratedDatabase, type TestDatabase } from "./support/postgres.ts";

/**
 * `npm test` checks format, lint and types, then runs every *.test.ts on a real Postgres and a real nats-server. `npm
 * test -- <word>...` runs only the test files whose path contains one of the words, long ones (`*.long.test.ts`)
 * included. `npm run test:long` runs all of the long ones. The program shows failures and ends with one line, "N
 * passed, N failed". It exits with 0 only if some test ran and none failed.
 */

/** The tests of a group run in one process. Changes that a test makes to its process or clock must not reach other groups. */
interface Group {
  name: string;
  holds: (file: string) => boolean;
}
const isCellUnderFaults = (file: string) => /^test\/chaos\/(cell\/|rolling|joining|firing)/.test(file);
const isChaos = (file: string) => file.startsWith("test/chaos/");
const isOperations = (file: string) => file.startsWith("test/operations/");
const isConsole = (file: string) => file.startsWith("test/console/");
const isFromOutside = (file: string) =>
  /^test\/(client|contract|golden|hostile|runtime-contract)\//.test(file);
const isBesideItsCode = (file: string) => !file.startsWith("test/");
const isSimulationOrAdmin = (file: string) => /^(test\/simulation|services\/admin)\//.test(file);
/** The groups of a stage run at once, since most tests wait more than they work. */
const STAGES: Group[][] = [
  [
    { name: "beside the code", holds: (file) => isBesideItsCode(file) && !isSimulationOrAdmin(file) },
    { name: "from outside", holds: isFromOutside },
    { name: "simulation and admin", holds: isSimulationOrAdmin },
    { name: "console", holds: isConsole },
    {
      name: "whole cells",
      holds: (file) =>
        ![isBesideItsCode, isFromOutside, isSimulationOrAdmin, isConsole, isChaos, isOperations].some(
          (holdsFile) => holdsFile(file),
        ),
    },
  ],
  [
    { name: "chaos", holds: (file) => isChaos(file) && !isCellUnderFaults(file) },
    { name: "cells under faults", holds: isCellUnderFaults },
    { name: "operations", holds: isOperations },
  ],
];
const POSTGRES_IMAGE = "postgres:18";
const POSTGRES_MAX_CONNECTIONS = 200;
/**
 * Only a power cut shows whether the disk has flushed a commit, and no test does that to the run's own server. The
 * databases of a run come and go, and each costs many flushes. The servers that tests kill and restore are others, and
 * flush.
 */
const WITHOUT_FLUSHES = "ALTER SYSTEM SET fsync = off";
/**
 * Linux keeps the files of this folder in memory. A run makes and drops hundreds of databases of some 600 files each, and ext4
 * looks past the files deleted in the last minutes before it makes another, which took a fifth of a run's CPU.
 */
const MEMORY_FOLDER = "/dev/shm";
/** A run's data grows to 0.4 GB. */
const MEMORY_BYTES_MIN = 2 * 2 ** 30;
const CONTAINER_START_TIMEOUT_MS = 120_000;
const TEST_TIMEOUT_MS = 240_000;
const GROUP_TIMEOUT_MS = 7_200_000;

interface Tally {
  passed: number;
  failed: number;
  skipped: number;
}

const root = dirname(import.meta.dir);
const words = process.argv.slice(2);
const scratch = mkdtempSync(join(tmpdir(), "jobwheel-test-"));
const interrupted = new AbortController();
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => interrupted.abort());

const total = await runEverything().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error);
  return { passed: 0, failed: 1, skipped: 0 };
});
rmSync(scratch, { recursive: true, force: true });
const skipped = total.skipped > 0 ? `, ${total.skipped} skipped` : "";
console.log(`${total.passed} passed, ${total.failed} failed${skipped}`);
process.exit(total.failed === 0 && total.passed > 0 && !interrupted.signal.aborted ? 0 : 1);

async function runEverything(): Promise<Tally> {
  const files = findTestFiles();
  if (files.length === 0) throw new Error(`there is no test file for: ${words.join(" ")}`);
  const parts: Tally[] = words.length === 0 ? [await runCheck()] : [];

  const nats = await findNatsServer();
  const postgres = await startPostgres();
  let template: TestDatabase | undefined;
  try {
    console.log(`Postgres ${await postgresVersion(postgres.url)} (${postgres.found})`);
    console.log(`nats-server ${natsVersion(nats)} (${nats})`);
    process.env.TEST_DATABASE_URL = postgres.url;
    template = await createMigratedDatabase("template");
    const environment = {
      ...process.env,
      TEST_TEMPLATE: new URL(template.url).pathname.slice(1),
      NATS_SERVER_BIN: nats,
    };
    for (const stage of STAGES) {
      const groups = stage
        .map(({ name, holds }) => ({ name, members: files.filter(holds) }))
        .filter(({ members }) => members.length > 0);
      if (interrupted.signal.aborted) break;
      const tallies = groups.map(({ name, members }, place) =>
        runGroup(name, members, environment, place === 0),
      );
      parts.push(...(await Promise.all(tallies)));
    }
  } finally {
    await template?.drop();
    await postgres.stop();
  }
  return parts.reduce(add);
}

function findTestFiles(): string[] {
  const files = ["services", "shared", "scripts", "test"].flatMap((folder) => [
    ...new Glob(`${folder}/**/*.test.ts`).scanSync({ cwd: root }),
  ]);
  const isWanted = (file: string) =>
    words.length === 0 ? !file.endsWith(".long.test.ts") : words.some((word) => file.includes(word));
  return files.filter(isWanted).sort();
}

/** The check counts as one test, so that "0 failed" includes it. */
async function runCheck(): Promise<Tally> {
  const code = await run([join(root, "scripts", "check.ts")], process.env);
  return { passed: code === 0 ? 1 : 0, failed: code === 0 ? 0 : 1, skipped: 0 };
}

/**
 * Runs a group and counts its tests. Bun writes its report at the end, and only of the files that loaded. So a file
 * without any test in the report counts as a failure, and so does a bad exit without a failed test.
 */
async function runGroup(
  name: string,
  files: string[],
  environment: NodeJS.ProcessEnv,
  isShown: boolean,
): Promise<Tally> {
  console.log(`${name}: ${files.length} files`);
  const report = join(scratch, `${name}.xml`);
  const reporter = ["--reporter=junit", `--reporter-outfile=${report}`];
  const code = await run(
    [
      "test",
      `--timeout=${TEST_TIMEOUT_MS}`,
      "--only-failures",
      ...reporter,
      ...files.map((file) => `./${file}`),
    ],
    environment,
    isShown ? null : join(scratch, `${name}.log`),
  );
  const tally = readReport(report, files);
  if (code !== 0 && tally.failed === 0) {
    console.error(`bun test ended with ${code} although no test failed (${name})`);
    return { ...tally, failed: 1 };
  }
  return tally;
}

function readReport(path: string, files: string[]): Tally {
  let report: string;
  try {
    report = readFileSync(path, "utf8");
  } catch {
    console.error("bun test ended without a report");
    return { passed: 0, failed: 1, skipped: 0 };
  }
  const tally: Tally = { passed: 0, failed: 0, skipped: 0 };
  const seen = new Set<string>();
  // A describe()'s suite lies within its file's and is counted there.
  for (const [element, file] of report.matchAll(/<testsuite name="([^"]*)" file="\1"[^>]*>/g)) {
    const count = (name: string) => Number(new RegExp(` ${name}="(\\d+)"`).exec(element)?.[1] ?? 0);
    seen.add(file ?? "");
    tally.failed += count("failures");
    tally.skipped += count("skipped");
    tally.passed += count("tests") - count("failures") - count("skipped");
  }
  for (const file of files.filter((file) => !seen.has(file))) {
    console.error(`no test of ${file} was run`);
    tally.failed += 1;
  }
  return tally;
}

/**
 * Runs Bun with the arguments. Its output goes to this terminal at once, or at its end if a file keeps it until then.
 * Answers its exit code, or -1 if it was killed.
 */
function run(args: string[], env: NodeJS.ProcessEnv, keptIn: string | null = null): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const signal = AbortSignal.any([interrupted.signal, AbortSignal.timeout(GROUP_TIMEOUT_MS)]);
  const output = keptIn === null ? "inherit" : openSync(keptIn, "w");
  const child = spawn(process.execPath, args, { cwd: root, env, stdio: ["inherit", output, output] });
  signal.addEventListener("abort", () => child.kill("SIGKILL"));
  child.on("error", reject);
  child.on("exit", (code) => {
    if (keptIn !== null) process.stdout.write(readFileSync(keptIn));
    resolve(code ?? -1);
  });
  return promise;
}

function add(one: Tally, other: Tally): Tally {
  return {
    passed: one.passed + other.passed,
    failed: one.failed + other.failed,
    skipped: one.skipped + other.skipped,
  };
}

interface TestPostgres {
  url: string;
  found: string;
  stop(): Promise<unknown>;
}

async function startPostgres(): Promise<TestPostgres> {
  const named = process.env.TEST_DATABASE_URL;
  if (named !== undefined) return { url: named, found: "TEST_DATABASE_URL", stop: async () => {} };
  const started = await startOwnPostgres();
  const sql = new SQL(started.url, { max: 1 });
  await sql.unsafe(WITHOUT_FLUSHES);
  await sql`SELECT pg_reload_conf()`;
  await sql.close();
  return started;
}

async function startOwnPostgres(): Promise<TestPostgres> {
  try {
    const container = await new PostgreSqlContainer(POSTGRES_IMAGE)
      .withCommand(["postgres", "-c", `max_connections=${POSTGRES_MAX_CONNECTIONS}`])
      .withStartupTimeout(CONTAINER_START_TIMEOUT_MS)
      .start();
    return { url: container.getConnectionUri(), found: "Docker", stop: () => container.stop() };
  } catch (error) {
    console.log(`no Postgres from Docker: ${error instanceof Error ? error.message : error}`);
  }
  const dataDir = mkdtempSync(join(isRoomInMemory() ? MEMORY_FOLDER : tmpdir(), "jobwheel-test-postgres-"));
  const embedded = await startEmbeddedPostgres({ dataDir });
  const stop = async () => {
    await embedded.stop();
    rmSync(dataDir, { recursive: true, force: true });
  };
  return { url: embedded.url, found: `embedded, in ${dataDir}`, stop };
}

function isRoomInMemory(): boolean {
  if (!existsSync(MEMORY_FOLDER)) return false;
  const { bavail, bsize } = statfsSync(MEMORY_FOLDER);
  return bavail * bsize >= MEMORY_BYTES_MIN;
}

async function postgresVersion(url: string): Promise<string> {
  const sql = new SQL(url, { max: 1 });
  try {
    const [row] = await sql`SELECT current_setting('server_version') AS version`;
    return row.version;
  } finally {
    await sql.close();
  }
}
