import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { Glob } from "bun";
import { openDebianPackages } from "./debian-packages.ts";

/** A headless browser, and the environment that it needs. */
export interface Chromium {
  path: string;
  env: Record<string, string>;
}

const CACHE = join(dirname(dirname(import.meta.dir)), ".cache", "chromium");
const NAMES = [
  "chromium",
  "chromium-headless-shell",
  "chromium-browser",
  "google-chrome",
  "google-chrome-stable",
];
const PACKAGE = "chromium-headless-shell";
const BINARY = "usr/lib/chromium/chromium-headless-shell";
/** Drivers for real screens and openers of other programs: a third of the download, and never used. */
const NEEDLESS = /^(?:libllvm|libz3-|libgl1-mesa-dri$|x11-utils$|xdg-utils$)/;

/**
 * A chromium to test with: CHROMIUM_BIN, else one on PATH, else one unpacked earlier, else one unpacked now from
 * Debian's packages into the cache. No package is installed, and no privilege is needed.
 */
export function findChromium(): Chromium {
  const named = process.env.CHROMIUM_BIN;
  if (named !== undefined) {
    const chromium = { path: named, env: {} };
    if (!runs(chromium)) throw new Error(`CHROMIUM_BIN=${named} does not run`);
    return chromium;
  }
  for (const name of NAMES) {
    const path = Bun.which(name);
    if (path !== null && runs({ path, env: {} })) return { path, env: {} };
  }
  if (existsSync(CACHE) && runs(unpackedIn(CACHE))) return unpackedIn(CACHE);
  try {
    return unpack();
  } catch (error) {
    throw new Error(
      `No chromium was found. Install it (Debian: apt-get install chromium) or name the binary of a Chrome or Chromium in ` +
        `CHROMIUM_BIN. Unpacking it from Debian's packages failed: ${error instanceof Error ? error.message : error}`,
    );
  }
}

function runs({ path, env }: Chromium): boolean {
  const { status, stdout } = spawnSync(path, ["--version"], {
    env: { ...process.env, ...env },
    encoding: "utf8",
  });
  return status === 0 && /\d+\.\d+\.\d+/.test(stdout);
}

/** The folder gets its name once it is complete and its browser has run. */
function unpack(): Chromium {
  mkdirSync(dirname(CACHE), { recursive: true });
  const folder = mkdtempSync(`${CACHE}-unpack-`);
  try {
    const packages = openDebianPackages(folder);
    packages.unpack(packages.listMissing(PACKAGE).filter((name) => !NEEDLESS.test(name)));
    for (const name of new Glob("{*.deb,lists,archives,*.bin}").scanSync({ cwd: folder, onlyFiles: false }))
      rmSync(join(folder, name), { recursive: true });
    if (!runs(unpackedIn(folder))) throw new Error("the packages hold none that runs");
    rmSync(CACHE, { recursive: true, force: true });
    renameSync(folder, CACHE);
    return unpackedIn(CACHE);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** The environment that makes the browser find its files in the folder, not where an installation puts them. */
function unpackedIn(folder: string): Chromium {
  const libraries = new Glob("**/*.so*").scanSync({ cwd: folder });
  const paths = new Set([...libraries].map((file) => join(folder, dirname(file))));
  const fonts = join(folder, "etc/fonts");
  return {
    path: join(folder, BINARY),
    env: {
      LD_LIBRARY_PATH: [...paths].join(":"),
      // A machine with fonts of its own did not need the package.
      ...(existsSync(fonts) ? { FONTCONFIG_PATH: fonts } : {}),
      XDG_DATA_HOME: join(folder, "usr/share"),
      XDG_CACHE_HOME: join(folder, "cache"),
    },
  };
}
