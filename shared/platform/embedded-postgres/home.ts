import { Database } from "bun:sqlite";
import { existsSync, lstatSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";

/** The folder of the embedded Postgres within the data directory, and the one process that has it. */

export const CLUSTER = "data";
export const PARTIAL_PREFIX = "partial-";
export const PASSWORD = "password";
const OWNER = "owner.pid";
const LOCK = "lock";

/** Another process has the data directory. */
export class DataDirInUse extends Error {
  constructor(dataDir: string, pid: string) {
    super(`The data folder ${dataDir} is in use by the process with pid ${pid}.`);
    this.name = "DataDirInUse";
  }
}

export function homeOf(dataDir: string): string {
  return resolve(dataDir, "postgres");
}

/** The path was made by something else: another program's folder may have the same name. */
export class ForeignData extends Error {
  constructor(path: string) {
    super(`${path} was not made by this service.`);
    this.name = "ForeignData";
  }
}

/** Throws ForeignData unless an embedded Postgres has made all of the folder, which is no link. */
export function checkOwn(home: string): void {
  checkMarked(home);
  if (!lstatSync(home).isDirectory()) throw new ForeignData(home);
  const own = [LOCK, `${LOCK}-journal`, OWNER, PASSWORD, `${PASSWORD}.new`, CLUSTER];
  const foreign = readdirSync(home).find((name) => !own.includes(name) && !name.startsWith(PARTIAL_PREFIX));
  if (foreign !== undefined) throw new ForeignData(join(home, foreign));
}

/** The lock is the first file in a folder of ours. A folder that has entries but no lock is foreign, and gets none. */
function checkMarked(home: string): void {
  const names = readdirSync(home);
  if (names.length > 0 && !names.includes(LOCK)) throw new ForeignData(home);
}

/**
 * Claims the folder for this process and returns the function that releases it. Throws DataDirInUse and ForeignData.
 *
 * The lock is an SQLite file lock, which the kernel releases when its holder dies. A pid file would not do: it cannot be
 * taken atomically, and its pid may belong to another process by now.
 */
export function claimHome(home: string): () => void {
  checkMarked(home);
  const pidFile = join(home, OWNER);
  const lock = new Database(join(home, LOCK));
  try {
    lock.run("BEGIN EXCLUSIVE");
  } catch {
    lock.close();
    const owner = existsSync(pidFile) ? readFileSync(pidFile, "utf8") : "unknown";
    throw new DataDirInUse(dirname(home), owner);
  }
  writeFileSync(pidFile, String(process.pid));
  heldLocks.add(lock);
  return () => {
    heldLocks.delete(lock);
    lock.close();
  };
}

/** Throws the DataDirInUse or ForeignData that a start would throw now. */
export function checkStartable(dataDir: string): void {
  const home = homeOf(dataDir);
  if (existsSync(home)) claimHome(home)();
}

/** Keeps the locks from the garbage collector, which would close an unreferenced handle and so release its lock. */
const heldLocks = new Set<Database>();
