import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { openDebianPackages } from "./debian-packages.ts";

const CACHE = join(dirname(dirname(import.meta.dir)), ".cache", "nats");

/**
 * A nats-server to test with: NATS_SERVER_BIN, else the one on PATH, else one unpacked earlier, else one unpacked now
 * from Debian's packages. No package is installed, and no privilege is needed. apt checks the signatures.
 */
export async function findNatsServer(): Promise<string> {
  const named = process.env.NATS_SERVER_BIN;
  if (named !== undefined) {
    if (natsVersion(named) === undefined) throw new Error(`NATS_SERVER_BIN=${named} does not run`);
    return named;
  }
  const onPath = Bun.which("nats-server");
  if (onPath !== null && natsVersion(onPath) !== undefined) return onPath;

  const cached = join(CACHE, "nats-server");
  if (natsVersion(cached) !== undefined) return cached;
  const failures: string[] = [];
  for (const unpack of [unpackFromTrixie, unpackFromOwnRelease]) {
    const failure = unpackInto(cached, unpack);
    if (failure === undefined) return cached;
    failures.push(failure);
  }
  throw new Error(
    `No nats-server was found. Install version 2.9 or later (Debian: apt-get install nats-server; macOS: brew ` +
      `install nats-server; others: https://github.com/nats-io/nats-server/releases) or name its binary in ` +
      `NATS_SERVER_BIN. What was tried:\n${failures.join("\n")}`,
  );
}

/** The version such as "2.10.27" that the binary reports, or undefined if it does not run. */
export function natsVersion(binary: string): string | undefined {
  const { status, stdout } = spawnSync(binary, ["--version"], { encoding: "utf8" });
  return status === 0 ? /v(\d+\.\d+\.\d+)/.exec(stdout)?.[1] : undefined;
}

/** Answers the reason of a failure. The binary gets its name in the cache once it is complete and has run. */
function unpackInto(target: string, unpack: (folder: string) => void): string | undefined {
  mkdirSync(dirname(target), { recursive: true });
  const folder = mkdtempSync(join(dirname(target), "unpack-"));
  try {
    unpack(folder);
    const binary = ["usr/sbin/nats-server", "usr/bin/nats-server"]
      .map((path) => join(folder, path))
      .find(existsSync);
    if (binary === undefined || natsVersion(binary) === undefined)
      throw new Error("the package holds none that runs");
    renameSync(binary, target);
    return undefined;
  } catch (error) {
    return `${unpack.name}: ${error instanceof Error ? error.message : error}`;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Debian 13 has 2.10, whose static binary runs on Debian 12 as well. */
function unpackFromTrixie(folder: string): void {
  const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
  const sources = join(folder, "trixie.list");
  writeFileSync(sources, `deb [signed-by=${keyring}] http://deb.debian.org/debian trixie main\n`);
  const settings = { "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "/dev/null" };
  openDebianPackages(folder, settings).unpack(["nats-server"]);
}

function unpackFromOwnRelease(folder: string): void {
  openDebianPackages(folder).unpack(["nats-server"]);
}
