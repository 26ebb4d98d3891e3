import { Database } from "bun:sqlite";
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { basename, dirname, join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { QUOTES_VALUES } from "../error-text.ts";
import { type Account, chooseAccount, ENVIRONMENT, launch, own, prepareBinaries } from "./binaries.ts";

export interface EmbeddedPostgres {
  /** A superuser's connection string, on 127.0.0.1 and a port that changes from start to start. */
  url: string;
  /** Ends every session and shuts down with a checkpoint. May be called again. */
  stop(): Promise<void>;
}

const MAX_CONNECTIONS = 200;
const SHARED_BUFFERS = "256MB";

const INITDB_TIMEOUT_MS = 120_000;
/** Recovery after a crash replays what was written since the last checkpoint. */
const START_TIMEOUT_MS = 300_000;
const STOP_TIMEOUT_MS = 30_000;
const RESTART_PAUSE_MS = 1_000;
const POLL_MS = 20;
const PORT_TRIES = 5;
const LOG_LINES_KEPT = 20;

/**
 * Starts a durable Postgres whose data is under `dataDir`, and creates it there on the first start. One process
 * at a time may have a data directory: a second is refused with an error that names the first. Whatever an earlier
 * process left behind when it was killed (half a cluster, a stale pid file, a server still shutting down) is
 * cleared away first. The server shuts down cleanly when this process dies, even by SIGKILL (on Linux); one that dies
 * itself is started again, on the same port and with all that was committed.
 *
 * Postgres refuses to run as root. Started by root it runs as the account that owns the data, which on the first
 * start becomes `postgres` or `nobody`.
 */
export async function startEmbeddedPostgres({
  dataDir,
  log = () => {},
}: {
  dataDir: string;
  log?: (line: string) => void;
}): Promise<EmbeddedPostgres> {
  const home = resolve(dataDir, "postgres");
  mkdirSync(home, { recursive: true });
  const release = claimHome(home);
  try {
    const account = chooseAccount(home);
    const cluster = join(home, "data");
    const binaries = prepareBinaries(account);
    const password = readPassword(home, account);
    const clusterName = nameCluster(home);
    await endPredecessor(clusterName, cluster);
    if (!existsSync(cluster)) {
      await removePartials(home);
      initialise(home, cluster, binaries, account);
    }

    const start = { cluster, clusterName, binaries, account, log };
    const { port, process: first } = await startServer(start);
    let server = first;
    let revival = Promise.resolve();
    let stopped: Promise<void> | undefined;
    const reviveWhenItDies = () => {
      server.once("exit", () => {
        revival = revive();
      });
    };
    const revive = async () => {
      if (stopped === undefined) log("jobwheel WARNING: Postgres has ended, and is started again");
      while (stopped === undefined) {
        try {
          await endPredecessor(clusterName, cluster);
          if (stopped !== undefined) return;
          server = spawnServer(start, port);
          const failure = await waitUntilReady(server, log);
          if (failure === undefined) return reviveWhenItDies();
        } catch (error) {
          log(`jobwheel ERROR: ${error instanceof Error ? error.message : error}`);
        }
        await Bun.sleep(RESTART_PAUSE_MS);
      }
    };
    reviveWhenItDies();
    return {
      url: `postgres://postgres:${password}@127.0.0.1:${port}/postgres`,
      stop: () => {
        stopped ??= stopServer(server)
          .then(() => revival)
          .finally(release);
        return stopped;
      },
    };
  } catch (error) {
    release();
    throw error;
  }
}

/**
 * The lock is an SQLite file lock, which the kernel gives back when its holder dies: a pid file alone can neither
 * be taken atomically nor told from one whose number another process has got since.
 */
function claimHome(home: string): () => void {
  const pidFile = join(home, "owner.pid");
  const lock = new Database(join(home, "lock"));
  try {
    lock.run("BEGIN EXCLUSIVE");
  } catch {
    lock.close();
    const owner = existsSync(pidFile) ? readFileSync(pidFile, "utf8") : "unknown";
    throw new Error(`the database in ${dirname(home)} is in use by the process with pid ${owner}`);
  }
  writeFileSync(pidFile, String(process.pid));
  heldLocks.add(lock);
  return () => {
    heldLocks.delete(lock);
    lock.close();
  };
}

/** Keeps the locks from the garbage collector, which would close a handle that nobody refers to and so give it back. */
const heldLocks = new Set<Database>();

function readPassword(home: string, account: Account | undefined): string {
  const path = join(home, "password");
  if (!existsSync(path)) {
    // A cluster is made with the password that is on disk by then, so the name must never show half of one.
    writeFileSync(`${path}.new`, randomBytes(24).toString("hex"), { mode: 0o600, flush: true });
    own(`${path}.new`, account);
    renameSync(`${path}.new`, path);
  }
  return readFileSync(path, "utf8");
}

/**
 * The data directory as the server names it. Below a closed home folder the account cannot walk the path from the
 * root, but it can use the directory it was started in; Linux has a path for that one.
 */
function seenFromWithin(folder: string): string {
  return process.platform === "linux" ? "/proc/self/cwd" : folder;
}

const PARTIAL_PREFIX = "partial-";

/** A killed initdb leaves children that write for some milliseconds more, so a folder may have to be removed again. */
async function removePartials(home: string): Promise<void> {
  const giveUpAt = Date.now() + STOP_TIMEOUT_MS;
  for (let left = findPartials(home); left.length > 0; left = findPartials(home)) {
    if (Date.now() > giveUpAt) throw new Error(`cannot remove ${left.join(", ")}`);
    for (const path of left) {
      try {
        rmSync(path, { recursive: true, force: true });
      } catch {
        // Something was written into it meanwhile.
      }
    }
    await Bun.sleep(POLL_MS);
  }
}

function findPartials(home: string): string[] {
  return readdirSync(home)
    .filter((name) => name.startsWith(PARTIAL_PREFIX))
    .map((name) => join(home, name));
}

/** The cluster is made under another name and gets its own when it is whole and on disk. */
function initialise(home: string, cluster: string, binaries: string, account: Account | undefined): void {
  const partial = mkdtempSync(join(home, PARTIAL_PREFIX));
  own(partial, account);
  const within = seenFromWithin(partial);
  const [file, args] = launch(
    [
      join(binaries, "bin", "initdb"),
      ...["--pgdata", within, "--username", "postgres"],
      ...["--auth", "scram-sha-256", "--pwfile", `${within}/../password`],
      ...[
        "--encoding",
        "UTF8",
        "--locale",
        "C",
        "--locale-provider",
        "builtin",
        "--builtin-locale",
        "C.UTF-8",
      ],
    ],
    account,
    "KILL",
  );
  const done = spawnSync(file, args, {
    cwd: partial,
    env: ENVIRONMENT,
    encoding: "utf8",
    timeout: INITDB_TIMEOUT_MS,
  });
  if (done.status !== 0) throw new Error(`initdb failed: ${done.error?.message ?? done.stderr.trim()}`);
  renameSync(partial, cluster);
  // A power cut must not take the name back from a cluster that holds accepted jobs by then.
  for (const folder of [home, dirname(home), dirname(dirname(home))]) syncFolder(folder);
}

function syncFolder(folder: string): void {
  const descriptor = openSync(folder, "r");
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}

/** A name for the cluster in the process table that no other data directory of the machine has. */
function nameCluster(home: string): string {
  const { dev, ino } = statSync(home);
  return `jobwheel-${dev.toString(36)}-${ino.toString(36)}`;
}

/**
 * Waits until no process of an earlier server is left, then removes its pid file. Postgres would take a stale one
 * for alive when its number has been given to another process, which in containers is the rule.
 */
async function endPredecessor(clusterName: string, cluster: string): Promise<void> {
  if (process.platform !== "linux") return;
  const killAt = Date.now() + STOP_TIMEOUT_MS;
  const giveUpAt = killAt + STOP_TIMEOUT_MS;
  for (let left = findServer(clusterName); left.length > 0; left = findServer(clusterName)) {
    if (Date.now() > giveUpAt)
      throw new Error(`an earlier Postgres does not end: pid ${left.map(({ pid }) => pid)}`);
    for (const { pid, postmaster } of left) {
      // A backend ends with its postmaster. The signal is repeated: one sent while the server starts is lost.
      if (postmaster) signal(pid, Date.now() > killAt ? "SIGKILL" : "SIGINT");
    }
    await Bun.sleep(POLL_MS);
  }
  rmSync(join(cluster, "postmaster.pid"), { force: true });
}

function findServer(clusterName: string): { pid: number; postmaster: boolean }[] {
  const found: { pid: number; postmaster: boolean }[] = [];
  for (const entry of readdirSync("/proc")) {
    if (!/^\d+$/.test(entry)) continue;
    const words = readCommandLine(entry).split("\0");
    // The postmaster keeps its arguments; a backend's title reads "postgres: <cluster name>: what it does".
    const postmaster =
      basename(words[0] ?? "") === "postgres" && words.includes(`cluster_name=${clusterName}`);
    if (postmaster || words[0]?.startsWith(`postgres: ${clusterName}: `)) {
      found.push({ pid: Number(entry), postmaster });
    }
  }
  return found;
}

function readCommandLine(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8");
  } catch {
    return ""; // It ended while we looked.
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // It has ended by itself.
  }
}

interface ServerStart {
  cluster: string;
  clusterName: string;
  binaries: string;
  account: Account | undefined;
  log: (line: string) => void;
}

/** A port found free can be taken before Postgres listens on it, so another is tried then. */
async function startServer(start: ServerStart): Promise<{ port: number; process: ChildProcess }> {
  for (let attempt = 1; ; attempt++) {
    const port = await findFreePort();
    const server = spawnServer(start, port);
    const failure = await waitUntilReady(server, start.log);
    if (failure === undefined) return { port, process: server };
    if (attempt === PORT_TRIES || !failure.includes("could not bind")) {
      throw new Error(`Postgres did not start:\n${failure}`);
    }
  }
}

function spawnServer({ cluster, clusterName, binaries, account }: ServerStart, port: number): ChildProcess {
  const settings = {
    listen_addresses: "127.0.0.1",
    port,
    unix_socket_directories: "",
    max_connections: MAX_CONNECTIONS,
    shared_buffers: SHARED_BUFFERS,
    timezone: "UTC",
    log_timezone: "UTC",
    // The moment, the process, and which error it is.
    log_line_prefix: "%m [%p] %e ",
    cluster_name: clusterName,
  };
  const options = Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`]);
  const command = [join(binaries, "bin", "postgres"), "-D", seenFromWithin(cluster), ...options];
  const [file, args] = launch(command, account, "INT");
  // In a session of its own: an interrupt typed at the terminal must not stop the database under services that
  // are still settling their last attempts.
  return spawn(file, args, {
    cwd: cluster,
    env: ENVIRONMENT,
    detached: true,
    stdio: ["ignore", "ignore", "pipe"],
  });
}

/**
 * Whether a line of its log is one that somebody should see: of Postgres' own troubles, and of statements that it refused, but
 * for those whose message quotes a value. The lines that follow with the row, or the rest of a value, begin otherwise.
 */
export function isComplaint(line: string): boolean {
  const [, code = ""] = /^\S+ \S+ UTC \[\d+\] (\w{5}) (?:WARNING|ERROR|FATAL|PANIC): /.exec(line) ?? [];
  return /^jobwheel (WARNING|ERROR): /.test(line) || (code !== "" && !QUOTES_VALUES.test(code));
}

/** Answers undefined once the server accepts connections, or its last words if it ended instead. */
function waitUntilReady(server: ChildProcess, log: (line: string) => void): Promise<string | undefined> {
  const { promise, resolve: settle } = Promise.withResolvers<string | undefined>();
  const lastLines: string[] = [];
  const timer = setTimeout(() => {
    server.kill("SIGKILL");
    lastLines.push(`it was not ready after ${START_TIMEOUT_MS} ms`);
  }, START_TIMEOUT_MS);
  const end = (failure: string | undefined) => {
    clearTimeout(timer);
    settle(failure);
  };
  if (server.stderr) {
    createInterface({ input: server.stderr }).on("line", (line) => {
      lastLines.push(line);
      if (lastLines.length > LOG_LINES_KEPT) lastLines.shift();
      log(line);
      if (line.includes("database system is ready to accept connections")) end(undefined);
    });
  }
  server.on("error", (error) => end(error.message));
  server.on("close", () => end(lastLines.join("\n")));
  return promise;
}

async function findFreePort(): Promise<number> {
  const { promise, resolve: settle, reject } = Promise.withResolvers<number>();
  const probe = createServer();
  probe.on("error", reject);
  probe.listen(0, "127.0.0.1", () => {
    const address = probe.address();
    const port = typeof address === "object" && address !== null ? address.port : 0;
    probe.close(() => settle(port));
  });
  return promise;
}

async function stopServer(server: ChildProcess): Promise<void> {
  if (server.exitCode !== null || server.signalCode !== null) return;
  const ended = Promise.withResolvers<void>();
  server.once("exit", () => ended.resolve());
  server.kill("SIGINT");
  // An immediate shutdown loses nothing that was committed: the next start replays the log.
  const timer = setTimeout(() => server.kill("SIGQUIT"), STOP_TIMEOUT_MS);
  await ended.promise;
  clearTimeout(timer);
}
