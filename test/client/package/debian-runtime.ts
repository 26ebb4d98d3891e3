import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { Glob } from "bun";
import { openDebianPackages } from "../../support/debian-packages.ts";
import { CHECKOUT } from "../../support/service-process.ts";

/** A language's runtime, unpacked from the packages of this machine's Debian without installing them. */
export interface DebianRuntime {
  /** Finds the path of a file of the packages by a pattern. */
  find(pattern: string): string;
  /** The environment variables that programs of the packages need. */
  environment: Record<string, string>;
}

/** Unpacks the package and its dependencies into `.cache`, unless they are there already. */
export function unpackRuntime(name: string, needless = /^$/): DebianRuntime {
  const cache = join(CHECKOUT, ".cache", `debian-${name}`);
  if (!existsSync(cache)) {
    mkdirSync(dirname(cache), { recursive: true });
    const folder = mkdtempSync(`${cache}-unpack-`);
    try {
      const packages = openDebianPackages(folder);
      packages.unpack(packages.listMissing(name).filter((one) => !needless.test(one)));
      for (const made of new Glob("{*.deb,lists,archives,*.bin}").scanSync({ cwd: folder, onlyFiles: false }))
        rmSync(join(folder, made), { recursive: true });
      // The folder gets its name once it is complete.
      renameSync(folder, cache);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }
  const libraries = [...new Glob("usr/lib/*-linux-*").scanSync({ cwd: cache, onlyFiles: false })];
  return {
    find(pattern) {
      const [path] = new Glob(pattern).scanSync({ cwd: cache, onlyFiles: false });
      if (path === undefined) throw new Error(`Debian's ${name} holds no ${pattern}`);
      return join(cache, path);
    },
    environment: { LD_LIBRARY_PATH: libraries.map((folder) => join(cache, folder)).join(":") },
  };
}
