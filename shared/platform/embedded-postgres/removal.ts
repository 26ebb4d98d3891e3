import { randomBytes } from "node:crypto";
import { existsSync, readdirSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { CLUSTER, checkOwn, claimHome, homeOf } from "./home.ts";
import { endPredecessor, nameCluster } from "./predecessor.ts";

/** The data of an embedded Postgres. No process can start on it until it is removed or released. */
export interface ClaimedData {
  folder: string;
  remove(): Promise<void>;
  release(): void;
}

/**
 * Claims the data of the embedded Postgres of a data directory, in order to remove it. Null if there is none. Throws
 * DataDirInUse and ForeignData. Everything else in the data directory stays, the secrets key too: another database may have
 * secrets under that key.
 */
export function claimData(dataDir: string): ClaimedData | null {
  const home = homeOf(dataDir);
  if (!existsSync(home)) {
    removeRemains(home);
    return null;
  }
  checkOwn(home);
  const release = claimHome(home);
  return {
    folder: home,
    release,
    async remove() {
      try {
        await endPredecessor(nameCluster(home), join(home, CLUSTER));
        // The folder is renamed first: a process that starts now makes its own folder, and never finds half of this one.
        renameSync(home, `${home}${REMOVED}${randomBytes(6).toString("hex")}`);
      } finally {
        release();
      }
      removeRemains(home);
    },
  };
}

const REMOVED = ".removed-";
const REMAINS = /^postgres\.removed-[0-9a-f]{12}$/;

/** Removes renamed folders: that of this process, and those of processes that were killed before they removed them. */
function removeRemains(home: string): void {
  const folder = dirname(home);
  for (const name of existsSync(folder) ? readdirSync(folder) : []) {
    if (REMAINS.test(name)) rmSync(join(folder, name), { recursive: true, force: true });
  }
}
