import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Config } from "../../shared/platform/config.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createSeal, type Seal } from "../../shared/platform/seal.ts";
import { findSecretsKey } from "../../shared/platform/secrets-key.ts";
import { checkPrepared, type Database, openDatabase } from "../../shared/store/database.ts";
import { findSealedSecret } from "../../shared/store/secrets.ts";
import { type Cell, Refusal } from "./command.ts";

const CONNECTIONS = 4;

/** Opens the cell that the settings name. Throws Refusal if its Postgres cannot be used. */
export async function openCell(config: Config<"admin">): Promise<Cell> {
  const db = openDatabase(findDatabaseUrl(config), {
    connections: CONNECTIONS,
    log: createLog({ level: "silent", name: "admin" }),
  });
  try {
    await checkPrepared(db);
  } catch (error) {
    await db.close();
    throw new Refusal(`the database cannot be used: ${faultText(error)}`);
  }
  return { db, openSeal: () => openSeal(db, config) };
}

/** DATABASE_URL, or the Postgres of the standalone that runs on the data directory. Throws Refusal. */
export function findDatabaseUrl({ databaseUrl, dataDir }: Config<"admin">): string {
  const url = databaseUrl ?? findEmbeddedUrl(dataDir);
  if (url === null) throw new Refusal(`DATABASE_URL is not set, and no standalone runs on ${dataDir}`);
  return url;
}

/** What Postgres, or the way to it, says is wrong; nothing of a statement or its values. */
export function faultText(error: unknown): string {
  let root = error;
  while (root instanceof Error && root.cause !== undefined) root = root.cause;
  if (!(root instanceof Error)) return String(root);
  // A refused connection to a name with several addresses has a code, but no message.
  return root.message || String((root as { code?: unknown }).code ?? root.name);
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

async function openSeal(db: Database, config: Config<"admin">): Promise<Seal> {
  const key = config.secretsKey ?? findSecretsKey(config.dataDir);
  if (key === null) throw new Refusal("SECRETS_KEY is not set");
  const seal = createSeal(key);
  const sealed = await findSealedSecret(db);
  if (sealed === null) {
    // Without a secret to try it on, a key found in a folder says nothing about somebody else's database.
    if (config.secretsKey === null && config.databaseUrl !== null)
      throw new Refusal("SECRETS_KEY is not set");
    return seal;
  }
  try {
    seal.open(sealed);
    return seal;
  } catch {
    const origin = config.secretsKey === null ? `the key in ${config.dataDir}` : "SECRETS_KEY";
    throw new Refusal(`${origin} is not the one that this database's secrets are sealed with`);
  }
}
