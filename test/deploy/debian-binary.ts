import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { openDebianPackages } from "../support/debian-packages.ts";

const CACHE = join(dirname(dirname(import.meta.dir)), ".cache", "debian-13");
const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";

/** A kubectl whose kustomize knows components: the one on PATH, else Debian's. */
export const findKubectl = () =>
  findBinary("kubectl", (kubectl) => /Kustomize Version: v[5-9]/.test(kubectl("version", "--client")));

export const findPromtool = () =>
  findBinary("promtool", (promtool) => promtool("--version").includes("promtool"));

export const findPrometheus = () =>
  findBinary("prometheus", (prometheus) => prometheus("--version").includes("prometheus, version"));

type Ask = (...args: string[]) => string;

/**
 * The binary on PATH if `willDo` accepts it, else one unpacked earlier, else one unpacked now. Unpacking takes Debian
 * 13's package of that name, unless `unpack` puts the binary into the folder by other means. All are Go binaries, which
 * need only a libc and run on older releases too. Unpacking installs nothing; apt checks the signatures.
 */
export function findBinary(
  name: string,
  willDo: (ask: Ask) => boolean,
  unpack: (folder: string) => string = (folder) => unpackDebian(name, folder),
): string {
  const works = (path: string) =>
    willDo((...args) => spawnSync(path, args, { encoding: "utf8" }).stdout ?? "");
  const onPath = Bun.which(name);
  if (onPath !== null && works(onPath)) return onPath;
  const cached = join(CACHE, name);
  if (works(cached)) return cached;

  mkdirSync(CACHE, { recursive: true });
  const folder = mkdtempSync(join(CACHE, "unpack-"));
  try {
    const binary = unpack(folder);
    if (!existsSync(binary) || !works(binary)) throw new Error(`the package holds no ${name} that runs`);
    // The binary gets its name in the cache once it is complete and has run.
    renameSync(binary, cached);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return cached;
}

function unpackDebian(name: string, folder: string): string {
  const sources = join(folder, "trixie.list");
  writeFileSync(sources, `deb [signed-by=${KEYRING}] http://deb.debian.org/debian trixie main\n`);
  const settings = { "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "/dev/null" };
  // The command names the release, since apt would otherwise prefer a newer version that is installed here.
  openDebianPackages(folder, settings).unpack([`${name}/trixie`]);
  return join(folder, "usr", "bin", name);
}
