import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { makeKey } from "../../shared/domain/key.ts";
import { claimPort } from "../support/port.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { runInTerminal, STANDALONE, standaloneSettings, type Terminal } from "../support/terminal.ts";
import { until } from "./support.ts";

const CANARY = "canary";
/** A production key that is in no database. */
const strange = makeKey("production", randomBytes);
const ESCAPE = "\u001b";
const COLOURS = new RegExp(`${ESCAPE}\\[[0-9]+m`, "g");
const REASON = "The target refused the connection (ECONNREFUSED).";

let database: TestDatabase;
let dataDir: string;
beforeAll(async () => {
  database = await createTestDatabase("terminal");
  dataDir = mkdtempSync(join(tmpdir(), "terminal-"));
});
afterAll(async () => {
  await database.drop();
  rmSync(dataDir, { recursive: true, force: true });
});

/** Sends a job to a port without a listener. Answers the job's id. */
async function sendToNobody(port: number | string, key: string): Promise<string> {
  const target_url = `http://127.0.0.1:${await claimPort()}/${CANARY}?token=${CANARY}`;
  const response = await fetchServed(`http://127.0.0.1:${port}/v2/jobs`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify({ target_url, payload: { [CANARY]: CANARY }, retry_policy: { max_attempts: 1 } }),
  });
  return ((await response.json()) as { id: string }).id;
}

const findKey = (text: string) => /svc_dev_[A-Za-z0-9]+(?=\s)/.exec(text)?.[0];
const findProject = (text: string) => /prj_[a-z0-9]+/.exec(text)?.[0];
const lineOf = (text: string, id: string) =>
  text.split("\n").find((line) => line.includes("attempt.settled") && line.includes(id));

describe("the standalone at a terminal, started for the first time and again without one", () => {
  let terminal: Terminal;
  let again: ServiceProcess;
  let settings: Record<string, string>;
  let key: string;

  beforeAll(async () => {
    settings = await standaloneSettings({ DATA_DIR: dataDir, DATABASE_URL: database.url });
    terminal = runInTerminal(STANDALONE, settings);
    await until(() => terminal.text.includes("another key"));
    key = findKey(terminal.text) ?? "";
  });
  afterAll(async () => {
    await again?.end("SIGKILL");
    await terminal.end("SIGKILL");
  });

  test("writes lines for a person, in colours, with host and reason of a failure and nothing of its URL", async () => {
    const id = await sendToNobody(settings.PORT ?? "", key);
    const line = await until(() => lineOf(terminal.text, id));
    expect(line).toContain(ESCAPE);
    const plain = line.replaceAll(COLOURS, "");
    expect(plain).toMatch(/^\d\d:\d\d:\d\d\.\d{3}Z INFO {2}attempt\.settled jobId=job_/);
    expect(plain).toContain(`host=127.0.0.1 reason="${REASON}" job=failed`);
    expect(terminal.text).not.toContain(CANARY);
    expect(terminal.text.replaceAll(COLOURS, "")).not.toContain(ESCAPE);
    expect(terminal.text).not.toMatch(/^\{/m);
  });

  test("names what a person needs at every start", async () => {
    const projectId = findProject(terminal.text);
    const banner = (text: string) =>
      text.slice(text.indexOf("Jobwheel answers")).split("\n").slice(0, 7).join("\n");
    const bannerWith = (port: unknown, opsPort: unknown) =>
      `Jobwheel answers at http://127.0.0.1:${port}. Ctrl-C stops it.
  console         http://127.0.0.1:${port}/
  documentation   http://127.0.0.1:${port}/docs
  health          http://127.0.0.1:${opsPort}/healthz, with /readyz and /metrics
  data            the database of DATABASE_URL
  signing secret  npm run --silent admin -- secret show --project ${projectId} --environment development
  another key     npm run --silent admin -- key create --project ${projectId} --environment development`;
    expect(banner(terminal.text)).toBe(bannerWith(settings.PORT, settings.OPS_PORT));
    expect(await terminal.end("SIGTERM")).toBe(0);
    again = await startService("standalone", {
      DATA_DIR: dataDir,
      DATABASE_URL: database.url,
      DEVELOPMENT_KEY: key,
      PRODUCTION_KEY: strange,
    });
    await until(() => again.output.includes("another key"));
    expect(banner(again.output)).toBe(bannerWith(again.port, again.opsPort));
  });

  test("says that a key which was given is none of the data that is there, and nothing of one that is", async () => {
    await until(() => again.output.includes("PRODUCTION_KEY"));
    expect(again.output).toContain(
      "\n  not used        PRODUCTION_KEY: it is no valid key of the data that is there, and only a first project takes it\n",
    );
    expect(again.output).not.toContain("DEVELOPMENT_KEY");
    expect(again.output).not.toContain(strange);
  });

  test("writes JSON where there is no terminal", async () => {
    const id = await sendToNobody(again.port, key);
    const line = await until(() => lineOf(again.output, id));
    expect(JSON.parse(line)).toMatchObject({
      level: 30,
      name: "standalone",
      msg: "attempt.settled",
      jobId: id,
      outcome: "failed",
      host: "127.0.0.1",
      reason: REASON,
    });
    expect(again.output).not.toContain(CANARY);
    expect(again.output).not.toContain(ESCAPE);
    const said = again.output.slice(again.output.indexOf("Jobwheel answers")).split("\n").slice(0, 8);
    const lines = again.output.split("\n").filter((each) => each !== "" && !said.includes(each));
    expect(lines.map((each) => Object.keys(JSON.parse(each))[0])).toEqual(lines.map(() => "level"));
  });

  test("does what the banner says: shows the secret, and makes a key that works", async () => {
    const commands = again.output.matchAll(/npm run --silent admin -- (.*)$/gm);
    const answers = [...commands].map(([, words = ""]) => {
      const child = Bun.spawnSync([process.execPath, "services/admin/main.ts", ...words.split(" ")], {
        env: { PATH: process.env.PATH ?? "", DATABASE_URL: database.url, DATA_DIR: dataDir },
      });
      return `${child.stdout}${child.stderr}`;
    });
    expect(answers).toEqual([
      expect.stringMatching(/signing secret +whsec_[A-Za-z0-9+/=]{44}\n/),
      expect.stringMatching(/svc_dev_/),
    ]);
    const response = await fetchServed(`http://127.0.0.1:${again.port}/v2/project`, {
      headers: { authorization: `Bearer ${findKey(answers[1] ?? "")}` },
    });
    expect(response.status).toBe(200);
  });
});

test("a standalone whose Postgres is not there says so in one line, and starts once it is", async () => {
  const late = await createTestDatabase("late");
  const { hostname: host, port } = new URL(late.url);
  const url = new URL(late.url);
  url.hostname = "127.0.0.1";
  url.port = String(await claimPort());
  const settings = { DATA_DIR: join(dataDir, "late"), DATABASE_URL: url.href };
  const terminal = runInTerminal(STANDALONE, await standaloneSettings(settings));
  const told = /WARN {2}waiting for Postgres why="connect ECONNREFUSED 127\.0\.0\.1:\d+"\n/g;
  const text = () => terminal.text.replaceAll(COLOURS, "");
  await until(() => told.test(text()));
  const server = net.createServer((client) => {
    const postgres = net.connect(Number(port), host);
    client.pipe(postgres).pipe(client);
    for (const socket of [client, postgres]) socket.on("error", () => socket.destroy());
  });
  server.listen(Number(url.port), "127.0.0.1");
  await until(() => text().includes("another key"));
  expect(text().match(told)).toHaveLength(1);
  expect(await terminal.end("SIGTERM")).toBe(0);
  server.close();
  await late.drop();
});

describe("a standalone that may not have a port says one sentence, ends with 1 and makes nothing", () => {
  const taken = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: () => new Response("another service") });
  afterAll(() => taken.stop(true));

  test.each(["PORT", "OPS_PORT"])("%s", async (setting) => {
    const unused = join(dataDir, "unused");
    const settings = await standaloneSettings({ DATA_DIR: unused, [setting]: String(taken.port) });
    const child = Bun.spawnSync(STANDALONE, { env: settings });
    expect([child.exitCode, child.stderr.toString(), child.stdout.toString()]).toEqual([
      1,
      `Port ${taken.port} of 127.0.0.1 is in use by another process: stop that one, or set ${setting} to another port.\n`,
      "",
    ]);
    expect(existsSync(unused)).toBe(false);
  });
});
