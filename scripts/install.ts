import { Database } from "bun:sqlite";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

/**
 * `bun scripts/install.ts <stamp file> <wanted stamp>`: installs the locked packages, one process at a time. The lock
 * is an SQLite file lock, which the kernel releases when its holder dies, so that a killed installation leaves nothing
 * to clear away. The stamp is removed first and written last, so half an installation has none.
 */
const LOCK_WAIT_MS = 300_000;
const INSTALL_TIMEOUT_MS = 600_000;

const [stamp, wanted] = process.argv.slice(2);
if (stamp === undefined || wanted === undefined) throw new Error("install.ts is started by run.mjs");

const root = dirname(import.meta.dir);
mkdirSync(join(root, ".cache"), { recursive: true });
const lock = new Database(join(root, ".cache", "install.lock"));
lock.run(`PRAGMA busy_timeout = ${LOCK_WAIT_MS}`);
lock.run("BEGIN EXCLUSIVE");

// The previous holder of the lock may have installed exactly this.
if (!existsSync(stamp) || readFileSync(stamp, "utf8") !== wanted) {
  rmSync(stamp, { force: true });
  const install = [process.execPath, "install", "--frozen-lockfile", "--no-progress"];
  const [file = "", ...args] = process.platform === "linux" ? tether(install) : install;
  const done = spawnSync(file, args, { cwd: root, stdio: "inherit", timeout: INSTALL_TIMEOUT_MS });
  if (done.status !== 0) process.exit(1);
  writeFileSync(`${stamp}.new`, wanted);
  renameSync(`${stamp}.new`, stamp);
}
lock.close();

/** An installer that outlives the holder of the lock would write beside the next one. */
function tether(command: string[]): string[] {
  const prefix = ["setpriv", "--pdeathsig", "KILL"];
  return spawnSync("setpriv", [...prefix.slice(1), "true"]).status === 0 ? [...prefix, ...command] : command;
}
