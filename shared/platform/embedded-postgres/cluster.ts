import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { syncFolder } from "../sync-folder.ts";
import { type Account, ENVIRONMENT, launch, own } from "./binaries.ts";
import { PARTIAL_PREFIX, PASSWORD } from "./home.ts";

const INITDB_TIMEOUT_MS = 120_000;
const REMOVAL_TIMEOUT_MS = 30_000;
const POLL_MS = 20;

/** Makes the cluster under a temporary name, and renames it once it is complete and on disk. */
export async function makeCluster(
  home: string,
  cluster: string,
  binaries: string,
  account: Account | undefined,
): Promise<void> {
  await removePartials(home);
  const partial = mkdtempSync(join(home, PARTIAL_PREFIX));
  own(partial, account);
  const within = seenFromWithin(partial);
  const [file, args] = launch(
    [
      join(binaries, "bin", "initdb"),
      ...["--pgdata", within, "--username", "postgres"],
      ...["--auth", "scram-sha-256", "--pwfile", `${within}/../password`],
      ...["--encoding", "UTF8", "--locale", "C"],
      ...["--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"],
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
  // A power cut must not undo the renaming of a cluster that holds accepted jobs by then.
  for (const folder of [home, dirname(home), dirname(dirname(home))]) syncFolder(folder);
}

/** A killed initdb leaves children that write for some milliseconds more, so a folder may have to be removed again. */
async function removePartials(home: string): Promise<void> {
  const giveUpAt = Date.now() + REMOVAL_TIMEOUT_MS;
  for (let left = findPartials(home); left.length > 0; left = findPartials(home)) {
    if (Date.now() > giveUpAt) throw new Error(`cannot remove ${left.join(", ")}`);
    for (const path of left) {
      try {
        rmSync(path, { recursive: true, force: true });
      } catch {
        // Something was written into the folder meanwhile.
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

export function readPassword(home: string, account: Account | undefined): string {
  const path = join(home, PASSWORD);
  if (!existsSync(path)) {
    // initdb reads the password from this file, so the file must never hold half of it.
    writeFileSync(`${path}.new`, randomBytes(24).toString("hex"), { mode: 0o600, flush: true });
    own(`${path}.new`, account);
    renameSync(`${path}.new`, path);
  }
  return readFileSync(path, "utf8");
}

/**
 * The path by which the server finds its data directory. Below a closed home folder its account cannot use the path from the
 * root, but it can use its working directory, for which Linux has a path.
 */
export function seenFromWithin(folder: string): string {
  return process.platform === "linux" ? "/proc/self/cwd" : folder;
}
