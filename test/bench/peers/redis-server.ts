import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { Glob } from "bun";
import { openDebianPackages } from "../../support/debian-packages.ts";
import { claimPort } from "../../support/port.ts";
import { ROOT, spawnBound, until } from "../harness/processes.ts";

interface Redis {
  path: string;
  env: Record<string, string>;
}

const CACHE = join(ROOT, ".cache", "redis");
const PACKAGE = "redis-server";

/**
 * A redis-server to measure with: REDIS_SERVER_BIN, else the one on PATH, else one unpacked earlier, else one unpacked
 * now from Debian's packages. Unpacking installs nothing and needs no privilege. apt checks the signatures.
 */
export function findRedis(): Redis {
  const named = process.env.REDIS_SERVER_BIN ?? Bun.which("redis-server");
  if (named !== null) return { path: named, env: {} };
  if (existsSync(CACHE) && versionOf(unpackedIn(CACHE)) !== undefined) return unpackedIn(CACHE);
  mkdirSync(dirname(CACHE), { recursive: true });
  const folder = mkdtempSync(`${CACHE}-unpack-`);
  try {
    const packages = openDebianPackages(folder);
    packages.unpack([...new Set([...packages.listMissing(PACKAGE), PACKAGE])]);
    if (versionOf(unpackedIn(folder)) === undefined) throw new Error("Debian's redis-server does not run");
    rmSync(CACHE, { recursive: true, force: true });
    renameSync(folder, CACHE);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return unpackedIn(CACHE);
}

/** The environment names the libraries that a package installation would put into the system. */
function unpackedIn(folder: string): Redis {
  const found = [...new Glob("usr/lib/**/*.so*").scanSync({ cwd: folder })];
  const paths = new Set(found.map((file) => join(folder, dirname(file))));
  return { path: join(folder, "usr/bin/redis-server"), env: { LD_LIBRARY_PATH: [...paths].join(":") } };
}

function versionOf({ path, env }: Redis): string | undefined {
  const { status, stdout } = spawnSync(path, ["--version"], {
    env: { ...process.env, ...env },
    encoding: "utf8",
  });
  return status === 0 ? /v=(\S+)/.exec(stdout)?.[1] : undefined;
}

export const redisVersion = () => versionOf(findRedis());

/**
 * BullMQ's page "Going to production" asks for `noeviction` and for an append-only file, for which it calls a sync each
 * second usual and enough. So a crash may lose a second of accepted jobs, unlike with the other products.
 */
export async function startRedis(
  folder: string,
  stops: (() => unknown)[],
): Promise<{ pid: number; port: number }> {
  const { path, env } = findRedis();
  const port = await claimPort();
  const settings = {
    ...{ bind: "127.0.0.1", port: String(port), dir: folder, save: "" },
    ...{ appendonly: "yes", appendfsync: "everysec", "maxmemory-policy": "noeviction" },
  };
  const args = Object.entries(settings).flatMap(([name, value]) => [`--${name}`, value]);
  const pid = spawnBound([path, ...args], env, stops);
  await until("redis-server is ready", async () => {
    try {
      const socket = await Bun.connect({ hostname: "127.0.0.1", port, socket: { data() {} } });
      socket.end();
      return true;
    } catch {
      return false;
    }
  });
  return { pid, port };
}
