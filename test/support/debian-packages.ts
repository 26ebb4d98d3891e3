import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync } from "node:fs";
import { join } from "node:path";

const APT_TIMEOUT_MS = 300_000;

/**
 * Debian packages that are unpacked into one folder. No package is installed, and no privilege is needed. apt checks
 * the signatures.
 */
export interface DebianPackages {
  /** The package and those of its dependencies that this machine lacks. */
  listMissing(name: string): string[];
  /** Downloads them and unpacks their files into the folder. */
  unpack(names: readonly string[]): void;
}

/**
 * `settings` are apt's, such as other sources than the machine's own. The package lists are kept in the folder too: the
 * machine's may be missing or old, and must stay unchanged.
 */
export function openDebianPackages(folder: string, settings: Record<string, string> = {}): DebianPackages {
  for (const path of ["lists/partial", "archives/partial"])
    mkdirSync(join(folder, path), { recursive: true });
  const all = {
    ...settings,
    "Dir::State::lists": join(folder, "lists"),
    "Dir::Cache": folder,
    "Dir::Cache::archives": join(folder, "archives"),
    "Acquire::Languages": "none",
    // Started by root, apt would download with an account that may not enter this folder.
    "APT::Sandbox::User": "root",
    // A plan needs no lock, since nothing of the machine is changed.
    "Debug::NoLocking": "true",
  };
  const options = Object.entries(all).flatMap(([name, value]) => ["-o", `${name}=${value}`]);
  const apt = (...command: string[]) => run(["apt-get", ...options, ...command], folder);
  apt("update");
  return {
    listMissing(name) {
      const plan = apt("install", "--yes", "--no-install-recommends", "--simulate", name);
      return [...plan.matchAll(/^Inst (\S+)/gm)].map((match) => match[1] ?? "");
    },
    unpack(names) {
      apt("download", ...names);
      for (const file of readdirSync(folder).filter((file) => file.endsWith(".deb")))
        run(["dpkg-deb", "-x", file, "."], folder);
    },
  };
}

function run([file = "", ...args]: string[], cwd: string): string {
  const done = spawnSync(file, args, { cwd, encoding: "utf8", timeout: APT_TIMEOUT_MS });
  if (done.status === 0) return done.stdout;
  throw new Error(`${file} ${args.at(-1)}: ${done.error?.message ?? done.stderr.trim()}`);
}
