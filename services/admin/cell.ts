import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Config } from "../../shared/platform/config.ts";
import { faultText } from "../../shared/platform/error-text.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createSeal, type Seal } from "../../shared/platform/seal/seal.ts";
import { findSecretsKey } from "../../shared/platform/seal/secrets-key.ts";
import { openCellSeal, WrongSecretsKey } from "../../shared/process/cell-seal.ts";
import { lookAtKeys } from "../../shared/store/cell/secrets-keys.ts";
import { checkPrepared, type Database, openDatabase } from "../../shared/store/database/database.ts";
import { type CellAccess, Refusal } from "./command.ts";

const CONNECTIONS = 4;
/** Only the operator waits for a command, so it gives a busy machine more time than a service would. */
const CONNECT_TIMEOUT_MS = 10_000;
const log = createLog({ level: "silent", name: "admin" });

/** Opens the cell that the settings name. Throws Refusal if its Postgres cannot be used. */
export async function openCell(config: Config<"admin">, operator: string): Promise<CellAccess> {
  const db = openDatabase(findDatabaseUrl(config), {
    connections: CONNECTIONS,
    connectTimeoutMs: CONNECT_TIMEOUT_MS,
    log,
  });
  try {
    await checkPrepared(db);
  } catch (error) {
    await db.close();
    throw new Refusal(`the database cannot be used: ${faultText(error)}`);
  }
  return {
    db,
    operator,
    openSeal: () => openSeal(db, config),
    findSeal() {
      const given = findKeys(config);
      return given && createSeal(given.secretsKey, given.secretsKeyFallbacks);
    },
  };
}

/** DATABASE_URL, or the Postgres of the standalone that runs on the data directory. Throws Refusal. */
export function findDatabaseUrl({ databaseUrl, dataDir }: Config<"admin">): string {
  const url = databaseUrl ?? findEmbeddedUrl(dataDir);
  if (url === null) throw new Refusal(`DATABASE_URL is not set, and no standalone runs on ${dataDir}`);
  return url;
}

/** Line 4 of the file that a running Postgres keeps in its data directory is its port. */
const PORT_LINE = 3;

function findEmbeddedUrl(dataDir: string): string | null {
  const home = join(dataDir, "postgres");
  try {
    const password = readFileSync(join(home, "password"), "utf8");
    const port = readFileSync(join(home, "data", "postmaster.pid"), "utf8").split("\n")[PORT_LINE] ?? "";
    return /^[0-9]+$/.test(port) ? `postgres://postgres:${password}@127.0.0.1:${port}/postgres` : null;
  } catch {
    return null;
  }
}

/** SECRETS_KEY, or the key of the standalone's data directory, and SECRETS_KEY_FALLBACKS. */
function findKeys({ secretsKey, secretsKeyFallbacks, dataDir }: Config<"admin">) {
  const key = secretsKey ?? findSecretsKey(dataDir);
  return key && { secretsKey: key, secretsKeyFallbacks };
}

/** Only services bring a new key to a cell. Before that, no service could open what a command sealed with it. */
async function openSeal(db: Database, config: Config<"admin">): Promise<Seal> {
  const given = findKeys(config);
  if (given === null) throw new Refusal("SECRETS_KEY is not set");
  const { known, sample } = await lookAtKeys(db);
  const isFound = config.secretsKey === null;
  // A key found in a folder may belong to another database, and this one has nothing to try it on.
  if (isFound && config.databaseUrl !== null && known.length === 0 && sample === null)
    throw new Refusal("SECRETS_KEY is not set");
  try {
    const present = known.find(({ seals }) => seals)?.fingerprint;
    const [fingerprint] = createSeal(given.secretsKey).fingerprints;
    if (present !== undefined && present !== fingerprint)
      throw new WrongSecretsKey(
        `SECRETS_KEY is not the key that this cell seals with: it is ${fingerprint}, and not ${present}`,
      );
    return await openCellSeal({ db, log }, given);
  } catch (error) {
    if (!(error instanceof WrongSecretsKey)) throw error;
    throw new Refusal(isFound ? `${error.message} (the key in ${config.dataDir})` : error.message);
  }
}
