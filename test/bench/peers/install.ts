import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../harness/processes.ts";

const FILES = ["package.json", "bun.lock"];
const HOME = join(ROOT, ".cache", "peers");
const INSTALL_TIMEOUT_MS = 300_000;

/** Installs the peers' packages by this folder's lock file into the cache, unless they are there. */
export function installPeers(): void {
  const sources = FILES.map((file) => join(import.meta.dir, file));
  const hash = createHash("sha256");
  for (const source of sources) hash.update(readFileSync(source));
  const wanted = hash.digest("hex");
  const stamp = join(HOME, "stamp");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted) return;
  rmSync(HOME, { recursive: true, force: true });
  mkdirSync(HOME, { recursive: true });
  for (const [index, source] of sources.entries()) cpSync(source, join(HOME, FILES[index] ?? ""));
  const command = ["install", "--frozen-lockfile", "--ignore-scripts", "--no-progress"];
  const done = spawnSync(process.execPath, command, {
    ...{ cwd: HOME, encoding: "utf8", timeout: INSTALL_TIMEOUT_MS },
  });
  if (done.status !== 0) throw new Error(`the peers were not installed:\n${done.stdout}${done.stderr}`);
  writeFileSync(stamp, wanted);
}

/** Imports an installed package. `Package` describes the part in use, since the checks have no types of the package. */
export async function importPeer<Package>(name: string): Promise<Package> {
  return (await import(Bun.resolveSync(name, HOME))) as Package;
}

export function versionsOfPeers(): Record<string, string> {
  const text = readFileSync(join(import.meta.dir, "package.json"), "utf8");
  return (JSON.parse(text) as { dependencies: Record<string, string> }).dependencies;
}
