import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { SQL } from "bun";
import { type EmbeddedPostgres, isComplaint, startEmbeddedPostgres } from "./embedded-postgres.ts";

/** A folder like a closed home folder: only this account may enter it, and the server may run as another account. */
const closed = mkdtempSync(join(tmpdir(), "embedded-postgres-"));
const template = join(closed, "template");

/** Long, because other tests may use the same disk. */
setDefaultTimeout(300_000);

beforeAll(async () => {
  await (await startEmbeddedPostgres({ dataDir: template })).stop();
});

afterAll(() => rmSync(closed, { recursive: true, force: true }));

describe("an embedded Postgres", () => {
  test("keeps what was committed over a stop and a start, below a closed folder", async () => {
    const dataDir = join(closed, "kept");
    await withServer(dataDir, (sql) => sql`CREATE TABLE kept AS SELECT 1 AS answer`);
    await withServer(dataDir, async (sql) => expect((await sql`SELECT answer FROM kept`)[0].answer).toBe(1));
  });

  test("is durable, in UTF-8, in UTC, and open to 200 connections on the loopback address alone", async () => {
    await withServer(freshCopy("settings"), async (sql) => {
      const [settings] = await sql`
        SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS commits,
          current_setting('full_page_writes') AS pages, current_setting('timezone') AS zone,
          current_setting('max_connections') AS connections, current_setting('listen_addresses') AS addresses,
          current_setting('unix_socket_directories') AS sockets, current_setting('server_encoding') AS encoding,
          datlocale AS locale
        FROM pg_database WHERE datname = current_database()`;
      expect(settings).toEqual({
        fsync: "on",
        commits: "on",
        pages: "on",
        zone: "UTC",
        connections: "200",
        addresses: "127.0.0.1",
        sockets: "",
        encoding: "UTF8",
        locale: "C.UTF-8",
      });
    });
  });

  test("logs statements that fail, without lines that quote what a customer has sent", async () => {
    const lines: string[] = [];
    const server = await startEmbeddedPostgres({
      dataDir: freshCopy("complaints"),
      log: (line) => lines.push(line),
    });
    const sql = new SQL(server.url, { max: 1 });
    for (const statement of [
      "SELECT 'canary'::int",
      "SELECT E'canary\n2026-11-22 10:00:00.000 UTC [1] XX000 ERROR:  canary'::int",
      "CREATE TABLE refusing (url text CHECK (false))",
      "INSERT INTO refusing VALUES ('canary')",
      "SELECT missing",
    ]) {
      await sql.unsafe(statement).catch(() => undefined);
    }
    await sql.end();
    await server.stop();
    const complaints = lines.filter(isComplaint);
    expect(lines.filter((line) => line.includes("canary")).length).toBeGreaterThan(3);
    expect(complaints.filter((line) => line.includes("canary"))).toEqual([]);
    const seen = complaints.join();
    for (const message of ["violates check constraint", 'column "missing" does not exist'])
      expect(seen).toContain(message);
  });

  test("keeps its data directory locked although nothing refers to the started server", async () => {
    const dataDir = freshCopy("unreferenced");
    const own = `const { startEmbeddedPostgres } = await import(${JSON.stringify(join(import.meta.dir, "embedded-postgres.ts"))});
      await startEmbeddedPostgres({ dataDir: ${JSON.stringify(dataDir)} });
      Bun.gc(true);
      await Bun.sleep(0);
      Bun.gc(true);
      console.log("collected");
      await new Promise(() => setInterval(() => {}, 1000));`;
    const holder = Bun.spawn([process.execPath, "-e", own], { stdout: "pipe", stderr: "inherit" });
    const reader = holder.stdout.getReader();
    try {
      await reader.read();
      await expect(startEmbeddedPostgres({ dataDir })).rejects.toThrow("is in use");
    } finally {
      holder.kill("SIGKILL");
      await holder.exited;
    }
  });

  test("that dies is started again at the same address with all committed data, until it is stopped", async () => {
    const dataDir = freshCopy("revived");
    const server = await startEmbeddedPostgres({ dataDir });
    const pidFile = join(dataDir, "postgres", "data", "postmaster.pid");
    const pidNow = () => (existsSync(pidFile) ? Number.parseInt(readFileSync(pidFile, "utf8"), 10) : null);
    await query(server.url, (sql) => sql`CREATE TABLE deaths (n int)`);
    for (let death = 1; death <= 2; death++) {
      const pid = pidNow();
      if (pid === null) throw new Error("there is no server");
      await query(server.url, (sql) => sql`INSERT INTO deaths VALUES (${death})`);
      process.kill(pid, "SIGKILL");
      let rows: unknown[] = [];
      while (rows.length !== death || pidNow() === pid) {
        rows = await query(server.url, (sql) => sql`SELECT n FROM deaths`).catch(() => []);
      }
    }
    await server.stop();
    expect(existsSync(pidFile)).toBe(false);
    await expect(query(server.url, (sql) => sql`SELECT 1`)).rejects.toThrow();
  });

  test("asks for the password, which only its own account can read", async () => {
    const dataDir = freshCopy("password");
    const server = await startEmbeddedPostgres({ dataDir });
    try {
      const wrong = new URL(server.url);
      wrong.password = "guessed";
      await expect(query(wrong.href, (sql) => sql`SELECT 1`)).rejects.toThrow(
        "password authentication failed",
      );
      expect(statSync(join(dataDir, "postgres", "password")).mode & 0o777).toBe(0o600);
    } finally {
      await server.stop();
    }
  });

  test("refuses a second process and tells it the pid of the first", async () => {
    const dataDir = freshCopy("refused");
    const first = await startElsewhere(dataDir);
    try {
      await expect(startEmbeddedPostgres({ dataDir })).rejects.toThrow(
        `The data folder ${dataDir} is in use by the process with pid ${first.pid}.`,
      );
      expect(await query(first.url, (sql) => sql`SELECT 1 AS answer`)).toHaveLength(1);
    } finally {
      await first.killOwner();
    }
  });

  test("refuses a second start within one process, and starts again after the stop", async () => {
    const dataDir = freshCopy("twice");
    const first = await startEmbeddedPostgres({ dataDir });
    await expect(startEmbeddedPostgres({ dataDir })).rejects.toThrow(`pid ${process.pid}`);
    await first.stop();
    await first.stop();
    await withServer(dataDir, (sql) => sql`SELECT 1`);
  });

  test("ends with its owner, even by SIGKILL, and loses no committed row", async () => {
    const dataDir = freshCopy("killed");
    const first = await startElsewhere(dataDir);
    await query(first.url, (sql) => sql`CREATE TABLE kept AS SELECT 1 AS answer`);
    const postmaster = postmasterPid(dataDir);
    await first.killOwner();
    await until(() => !isRunning(postmaster));
    await withServer(dataDir, async (sql) => expect((await sql`SELECT answer FROM kept`)[0].answer).toBe(1));
  });

  test("waits for an earlier server that is still shutting down", async () => {
    const dataDir = freshCopy("overlap");
    const first = await startElsewhere(dataDir);
    const postmaster = postmasterPid(dataDir);
    process.kill(postmaster, "SIGSTOP");
    await first.killOwner();
    // When the call returns, the start waits for the earlier server.
    const second = startEmbeddedPostgres({ dataDir });
    expect(isRunning(postmaster)).toBe(true);
    process.kill(postmaster, "SIGCONT");
    await (await second).stop();
  });

  test("leaves a stranger alone that has the pid of its earlier server", async () => {
    const dataDir = freshCopy("stale");
    const pidFile = join(dataDir, "postgres", "data", "postmaster.pid");
    const server = await startEmbeddedPostgres({ dataDir });
    const lines = readFileSync(pidFile, "utf8").split("\n");
    await server.stop();

    const { uid, gid } = statSync(join(dataDir, "postgres"));
    const identity =
      process.getuid?.() === 0 ? ["setpriv", `--reuid=${uid}`, `--regid=${gid}`, "--clear-groups"] : [];
    const stranger = Bun.spawn([...identity, "sleep", "600"]);
    try {
      // Postgres checks a pid by kill(pid, 0), which works only for processes of its own account.
      await until(() => statSync(`/proc/${stranger.pid}`).uid === uid);
      writeFileSync(pidFile, [String(stranger.pid), ...lines.slice(1)].join("\n"));
      await withServer(dataDir, (sql) => sql`SELECT 1`);
      expect(stranger.exitCode).toBeNull();
    } finally {
      stranger.kill();
    }
  });

  test("starts over if making its cluster was killed midway", async () => {
    let dataDir = "";
    let home = "";
    // A cluster that was complete before the kill does not count, and another one is begun.
    for (let n = 0; dataDir === "" || existsSync(join(home, "data")); n++) {
      dataDir = join(closed, `half-${n}`);
      home = join(dataDir, "postgres");
      const first = spawnOwner(dataDir);
      await until(
        () =>
          existsSync(join(home, "data")) ||
          partials(home).some((name) => existsSync(join(home, name, "base"))),
      );
      first.kill("SIGKILL");
      await first.exited;
    }
    await withServer(dataDir, (sql) => sql`SELECT 1`);
    expect(partials(home)).toEqual([]);
  });
});

const POLL_MS = 5;
const WAIT_MS = 120_000;

async function until(holds: () => boolean): Promise<void> {
  const giveUpAt = performance.now() + WAIT_MS;
  while (!holds()) {
    if (performance.now() > giveUpAt) throw new Error(`it did not come true within ${WAIT_MS} ms: ${holds}`);
    await Bun.sleep(POLL_MS);
  }
}

/** A copy of one new data directory, because initdb takes most of a second. */
function freshCopy(name: string): string {
  const dataDir = join(closed, name);
  mkdirSync(dataDir);
  // Only cp keeps the owner, who decides the account of the server.
  Bun.spawnSync(["cp", "-a", join(template, "postgres"), dataDir]);
  return dataDir;
}

async function withServer(dataDir: string, act: (sql: SQL) => Promise<unknown>): Promise<void> {
  const server: EmbeddedPostgres = await startEmbeddedPostgres({ dataDir });
  try {
    await query(server.url, act);
  } finally {
    await server.stop();
  }
}

async function query<Rows>(url: string, act: (sql: SQL) => Promise<Rows>): Promise<Rows> {
  const sql = new SQL(url, { max: 1 });
  try {
    return await act(sql);
  } finally {
    await sql.close();
  }
}

function spawnOwner(dataDir: string) {
  const code = `
    import { startEmbeddedPostgres } from ${JSON.stringify(join(import.meta.dir, "embedded-postgres.ts"))};
    console.log((await startEmbeddedPostgres({ dataDir: ${JSON.stringify(dataDir)} })).url);`;
  return Bun.spawn([process.execPath, "-e", code], { stdout: "pipe", stderr: "inherit" });
}

/** Starts the server in another process, which holds it until it is killed. */
async function startElsewhere(dataDir: string) {
  const owner = spawnOwner(dataDir);
  const { value } = await owner.stdout.getReader().read();
  const url = new TextDecoder().decode(value).trim();
  return {
    url,
    pid: owner.pid,
    killOwner: async () => {
      owner.kill("SIGKILL");
      await owner.exited;
    },
  };
}

function postmasterPid(dataDir: string): number {
  return Number(readFileSync(join(dataDir, "postgres", "data", "postmaster.pid"), "utf8").split("\n")[0]);
}

/** An ended process is listed without arguments until its new parent has asked for its exit code. */
function isRunning(pid: number): boolean {
  const path = `/proc/${pid}/cmdline`;
  return existsSync(path) && readFileSync(path, "utf8") !== "";
}

function partials(home: string): string[] {
  return existsSync(home) ? readdirSync(home).filter((name) => name.startsWith("partial-")) : [];
}
