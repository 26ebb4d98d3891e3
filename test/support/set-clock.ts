import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { Glob } from "bun";
import { openDebianPackages } from "./debian-packages.ts";

const CACHE = join(dirname(dirname(import.meta.dir)), ".cache", "libfaketime.so.1");

/** The wall clock of processes that are started with `environment`. Clocks that measure how much time has passed stay right. */
export interface SettableClock {
  environment: Record<string, string>;
  /** Sets by how many minutes the clock is off. The processes see it within a second. */
  set(minutes: number): void;
  /** Removes what a process that has ended left in shared memory. */
  forget(pid: number): void;
}

/** `file` holds the offset of the clock. Null where Debian's library cannot be had. */
export function openSettableClock(file: string): SettableClock | null {
  const library = findLibrary();
  if (library === null) return null;
  const set = (minutes: number) => {
    // The file is renamed into its place, since the library may read it at any time.
    writeFileSync(`${file}.new`, `${minutes < 0 ? "-" : "+"}${Math.abs(minutes)}m\n`);
    renameSync(`${file}.new`, file);
  };
  set(0);
  return {
    set,
    environment: {
      LD_PRELOAD: library,
      FAKETIME_TIMESTAMP_FILE: file,
      FAKETIME_CACHE_DURATION: "1",
      FAKETIME_DONT_FAKE_MONOTONIC: "1",
    },
    forget(pid) {
      for (const name of [`faketime_shm_${pid}`, `sem.faketime_sem_${pid}`])
        rmSync(join("/dev/shm", name), { force: true });
    },
  };
}

let found: string | null | undefined;

/**
 * Debian's libfaketime, of the machine's own release. Not the variant for threads: it holds a lock while it reads the
 * clock, and the garbage collector of JavaScript stops threads wherever they are.
 */
function findLibrary(): string | null {
  if (found === undefined) {
    if (process.platform === "linux" && !existsSync(CACHE)) unpack();
    found = existsSync(CACHE) ? CACHE : null;
  }
  return found;
}

function unpack(): void {
  mkdirSync(dirname(CACHE), { recursive: true });
  const folder = mkdtempSync(`${CACHE}-unpack-`);
  try {
    openDebianPackages(folder).unpack(["libfaketime"]);
    const [library] = new Glob("usr/lib/*/faketime/libfaketime.so.1").scanSync({ cwd: folder });
    if (library !== undefined) renameSync(join(folder, library), CACHE);
  } catch (error) {
    console.log(`no libfaketime: ${error instanceof Error ? error.message : error}`);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
