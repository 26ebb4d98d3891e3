import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { runInTerminal, STANDALONE, standaloneSettings, type Terminal } from "../support/terminal.ts";
import { until } from "./support.ts";

setDefaultTimeout(600_000);

const dataDir = mkdtempSync(join(tmpdir(), "fresh-start-"));
const home = join(dataDir, "postgres");
const version = join(home, "data", "PG_VERSION");
const QUESTION = "Type yes to go on: ";
let first: ServiceProcess;
let firstProject: string | undefined;
let terminal: Terminal | undefined;

const findProject = (text: string) => /prj_[a-z0-9]+/.exec(text)?.[0];

beforeAll(async () => {
  first = await startService("standalone", { DATA_DIR: dataDir });
  firstProject = await until(() => findProject(first.output));
  writeFileSync(join(dataDir, "notes.txt"), "mine");
});
afterAll(async () => {
  await first.end("SIGKILL");
  await terminal?.end("SIGKILL");
  rmSync(dataDir, { recursive: true, force: true });
});

/** Runs the standalone without a terminal until it ends. */
async function run(words: readonly string[], settings: Record<string, string> = {}) {
  const env = await standaloneSettings({ DATA_DIR: dataDir, ...settings });
  const child = Bun.spawnSync([...STANDALONE, ...words], { env });
  return { exitCode: child.exitCode, stdout: child.stdout.toString(), stderr: child.stderr.toString() };
}

test("a data folder in use is one sentence, with --fresh too, and nothing of it is touched", async () => {
  const inUse = `The data folder ${dataDir} is in use by the process with pid ${first.pid}.`;
  const samePorts = { PORT: String(first.port), OPS_PORT: String(first.opsPort) };
  for (const [words, settings] of [
    [[], {}],
    [[], samePorts],
    [["--fresh", "--yes"], {}],
  ] as const) {
    expect(await run(words, settings)).toEqual({
      exitCode: 1,
      stdout: "",
      stderr: `${inUse} Stop that one, or set DATA_DIR to another folder.\n`,
    });
  }
  expect((await fetch(`http://127.0.0.1:${first.opsPort}/readyz`)).status).toBe(200);
});

test("without --test-clock there is no clock to see or to put ahead", async () => {
  for (const [method, path] of [
    ["GET", "/clock"],
    ["POST", "/clock/advance"],
  ] as const) {
    const response = await fetch(`http://127.0.0.1:${first.opsPort}${path}`, { method });
    expect([response.status, await response.json()]).toMatchObject([
      404,
      { error: { code: "resource_not_found", request_id: expect.stringMatching(/^req_/) } },
    ]);
  }
});

test("a data folder that was used without --test-clock stays without", async () => {
  await first.end("SIGTERM");
  expect(await run(["--test-clock"])).toEqual({
    exitCode: 1,
    stdout: "",
    stderr: `The data folder ${dataDir} was used without --test-clock, and a test clock would put it into the future for good: set DATA_DIR to another folder.\n`,
  });
});

test("--fresh removes nothing with DATABASE_URL, without a terminal or --yes, or where it could not start", async () => {
  expect(await run(["--fresh", "--yes"], { DATABASE_URL: "postgres://127.0.0.1:1/x" })).toEqual({
    exitCode: 1,
    stdout: "",
    stderr:
      "--fresh removes the data of the standalone's own Postgres, and DATABASE_URL names another one.\n",
  });
  expect(await run(["--fresh"])).toEqual({
    exitCode: 1,
    stdout: "",
    stderr: "--fresh asks before it removes anything: without a terminal add --yes.\n",
  });
  const taken = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: () => new Response() });
  const inUse = { exitCode: 1, stderr: expect.stringContaining(`Port ${taken.port} `) };
  const settings = { PORT: String(taken.port) };
  expect(await run(["--fresh", "--yes"], settings).finally(() => taken.stop(true))).toMatchObject(inUse);
  for (const words of [["--frehs"], ["fresh"], ["--yes"], ["--fresh=no"]]) {
    expect([words, (await run(words)).exitCode]).toEqual([words, 2]);
  }
  expect(existsSync(version)).toBe(true);
});

test.each(["no\n", "\n", "\u0004", "\u0003"])("the answer %j removes nothing", async (answer) => {
  const asked = runInTerminal([...STANDALONE, "--fresh"], await standaloneSettings({ DATA_DIR: dataDir }));
  await until(() => asked.text.includes(QUESTION));
  expect(asked.text).toContain(`This removes ${home}: all projects`);
  asked.type(answer);
  expect(await asked.ended).not.toBe(0);
  expect(existsSync(version)).toBe(true);
});

test("the answer yes starts over, with new keys, and leaves all but the database as it was", async () => {
  const secretsKey = readFileSync(join(dataDir, "secrets-key"), "utf8");
  const settings = await standaloneSettings({ DATA_DIR: dataDir });
  terminal = runInTerminal([...STANDALONE, "--fresh"], settings);
  await until(() => terminal?.text.includes(QUESTION));
  terminal.type("yes\n");
  await until(() => terminal?.text.includes("another key"));
  expect(terminal.text).toContain(`Removed ${home}.\n`);
  expect(terminal.text).toMatch(/svc_dev_/);
  expect(findProject(terminal.text)).not.toBe(firstProject);
  expect(terminal.text).toContain(`data            ${dataDir}\n`);
  expect(terminal.text).toContain(`DATA_DIR=${dataDir} npm run --silent admin -- secret show --project `);
  expect(readFileSync(join(dataDir, "secrets-key"), "utf8")).toBe(secretsKey);
  expect(readdirSync(dataDir).sort()).toEqual(["notes.txt", "postgres", "secrets-key"]);
  // The standalone takes no later input at this terminal as an answer.
  expect(await terminal.end("SIGINT")).toBe(0);
});
