import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { Glob } from "bun";
import { openDebianPackages } from "./debian-packages.ts";

const VERSION = 18;
const CACHE = join(dirname(dirname(import.meta.dir)), ".cache", `postgresql-client-${VERSION}`);
/** The programs with all their libraries, the C library included, since the machine's may be older. */
const PACKAGES = [
  `postgresql-client-${VERSION}`,
  ...["libpq5", "libc6", "libssl3t64", "libzstd1", "liblz4-1", "zlib1g", "libldap2", "libsasl2-2"],
];

/** Runs pg_dump or pg_restore. */
export type PostgresClient = (program: "pg_dump" | "pg_restore", ...args: string[]) => void;

/**
 * The programs on PATH if they have the server's version, else those unpacked earlier, else those unpacked now from
 * Debian's packages. Older Debian releases have older programs, so they come from unstable, with a loader of their own.
 */
export function findPostgresClient(): PostgresClient {
  const onPath = Bun.which("pg_dump");
  if (onPath !== null && isOfVersion([onPath]))
    return (program, ...args) => run([join(dirname(onPath), program), ...args]);
  if (!existsSync(CACHE)) unpack();
  if (!isOfVersion(commandIn(CACHE, "pg_dump"))) throw new Error(`the pg_dump in ${CACHE} does not run`);
  return (program, ...args) => run([...commandIn(CACHE, program), ...args]);
}

/** Whether the programs are here already, so that finding them downloads nothing. */
export function hasPostgresClient(): boolean {
  const onPath = Bun.which("pg_dump");
  return (onPath !== null && isOfVersion([onPath])) || existsSync(CACHE);
}

function unpack(): void {
  mkdirSync(dirname(CACHE), { recursive: true });
  const folder = mkdtempSync(`${CACHE}-unpack-`);
  try {
    const sources = join(folder, "sid.list");
    writeFileSync(sources, "deb http://deb.debian.org/debian sid main\n");
    const settings = { "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "/dev/null" };
    openDebianPackages(folder, settings).unpack(PACKAGES.map((name) => `${name}/sid`));
    for (const name of new Glob("{*.deb,lists,archives,*.bin}").scanSync({ cwd: folder, onlyFiles: false }))
      rmSync(join(folder, name), { recursive: true });
    renameSync(folder, CACHE);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function commandIn(folder: string, program: string): string[] {
  const [loader = ""] = new Glob("usr/lib/*/ld-linux-*.so.*").scanSync({ cwd: folder });
  const libraries = join(folder, dirname(loader));
  return [
    join(folder, loader),
    "--library-path",
    libraries,
    join(folder, `usr/lib/postgresql/${VERSION}/bin`, program),
  ];
}

const isOfVersion = ([file = "", ...args]: string[]) =>
  spawnSync(file, [...args, "--version"], { encoding: "utf8" }).stdout?.includes(` ${VERSION}.`) ?? false;

function run([file = "", ...args]: string[]): void {
  const done = spawnSync(file, args, { encoding: "utf8" });
  if (done.status !== 0) throw new Error(`${args.join(" ")}: ${done.error?.message ?? done.stderr.trim()}`);
}
