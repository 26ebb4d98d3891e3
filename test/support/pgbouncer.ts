import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import {
  chmodSync,
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { Glob } from "bun";
import { type Account, launch } from "../../shared/platform/embedded-postgres/binaries.ts";
import { openDebianPackages } from "./debian-packages.ts";
import { claimPort } from "./port.ts";

const CACHE = join(dirname(dirname(import.meta.dir)), ".cache", "pgbouncer-debian-13");
const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";
/** The program with its libraries, the C library included: the PgBouncer of Debian 12 knows no prepared statements. */
const PACKAGES = [
  ...["pgbouncer", "libc6", "libevent-2.1-7t64", "libssl3t64", "libcares2", "libpam0g", "libsystemd0"],
  ...["libaudit1", "libcap-ng0", "libcap2", "libzstd1", "zlib1g"],
];
const READY_TIMEOUT_MS = 120_000;
const LOOK_EVERY_MS = 20;

/** A PgBouncer between services and their Postgres, set as in deploy/postgres/pooler.yaml. */
export interface PgBouncer {
  /** The URL of the database behind it. */
  url: string;
  pid: number;
  /** Sends SIGKILL. Resolves once it is gone. */
  kill(): Promise<void>;
  startAgain(): Promise<void>;
}

/**
 * Starts a PgBouncer before the database of `databaseUrl`. It runs as `account`, since it refuses to be root. Its log
 * and its settings lie in `folder`. It dies with the test process (on Linux).
 */
export async function startPgBouncer(
  databaseUrl: string,
  { folder, account }: { folder: string; account: Account | undefined },
): Promise<PgBouncer> {
  const command = findPgBouncer();
  const port = await claimPort();
  const behind = new URL(databaseUrl);
  const database = behind.pathname.slice(1);
  const settings = join(folder, "pgbouncer.ini");
  const way = `host=${behind.hostname} port=${behind.port} dbname=${database} user=${behind.username} password=${behind.password}`;
  writeFileSync(
    settings,
    [
      "[databases]",
      `${database} = ${way}`,
      "[pgbouncer]",
      "listen_addr = 127.0.0.1",
      `listen_port = ${port}`,
      "unix_socket_dir =",
      "auth_type = any",
      "pool_mode = transaction",
      "max_prepared_statements = 400",
      "max_client_conn = 1500",
      "default_pool_size = 40",
      "server_lifetime = 600",
      "query_wait_timeout = 10",
      // A server that could not be reached is tried again after one second, since a standby may have been promoted.
      "server_login_retry = 1",
    ].join("\n"),
  );
  chmodSync(folder, 0o755);
  let child: ChildProcess;
  async function start(): Promise<void> {
    const log = openSync(join(folder, "pgbouncer.log"), "a");
    const [file, args] = launch([...command, settings], account, "KILL");
    const started = spawn(file, args, { cwd: CACHE, stdio: ["ignore", log, log] });
    closeSync(log);
    child = started;
    const giveUpAt = performance.now() + READY_TIMEOUT_MS;
    while (!(await isListening(port))) {
      if (started.exitCode !== null) throw new Error(`PgBouncer ended at its start: see ${folder}`);
      if (performance.now() > giveUpAt) throw new Error(`PgBouncer did not start: see ${folder}`);
      await Bun.sleep(LOOK_EVERY_MS);
    }
  }
  await start();
  return {
    url: `postgres://${behind.username}@127.0.0.1:${port}/${database}`,
    get pid() {
      return child.pid ?? 0;
    },
    async kill() {
      const ended = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGKILL");
      await ended;
    },
    startAgain: start,
  };
}

/** The command of PgBouncer within the cache folder: other accounts may be unable to use a path from the root. */
function findPgBouncer(): string[] {
  if (!existsSync(CACHE)) unpack();
  const command = commandIn(CACHE);
  const asked = spawnSync(command[0] ?? "", [...command.slice(1), "--version"], {
    cwd: CACHE,
    encoding: "utf8",
  });
  if (asked.status !== 0) throw new Error(`the PgBouncer in ${CACHE} does not run: ${asked.stderr}`);
  return command;
}

function commandIn(folder: string): string[] {
  const [loader = ""] = new Glob("usr/lib/*/ld-linux-*.so.*").scanSync({ cwd: folder });
  return [`./${loader}`, "--library-path", `./${dirname(loader)}`, "./usr/sbin/pgbouncer"];
}

function unpack(): void {
  mkdirSync(dirname(CACHE), { recursive: true });
  const folder = mkdtempSync(`${CACHE}-unpack-`);
  try {
    const sources = join(folder, "trixie.list");
    writeFileSync(sources, `deb [signed-by=${KEYRING}] http://deb.debian.org/debian trixie main\n`);
    const settings = { "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "/dev/null" };
    openDebianPackages(folder, settings).unpack(PACKAGES.map((name) => `${name}/trixie`));
    for (const name of new Glob("{*.deb,lists,archives,*.bin}").scanSync({ cwd: folder, onlyFiles: false }))
      rmSync(join(folder, name), { recursive: true });
    chmodSync(folder, 0o755);
    renameSync(folder, CACHE);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function isListening(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    Bun.connect({
      hostname: "127.0.0.1",
      port,
      socket: {
        open(socket) {
          socket.end();
          resolve(true);
        },
        data() {},
        connectError: () => resolve(false),
      },
    }).catch(() => resolve(false));
  });
}
