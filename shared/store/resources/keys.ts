import { and, eq, isNull, sql } from "drizzle-orm";
import { idToUuid, KEY_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { KeyScope } from "../../domain/key.ts";
import type { Environment, ProjectNo } from "../../domain/scope.ts";
import { environmentCode, environmentOf } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { apiKeys } from "../database/schema/resources.ts";
import { type OperatorCause, recordChange } from "./audit.ts";

export interface NewKey {
  id: string;
  projectNo: ProjectNo;
  environment: Environment;
  scope: KeyScope;
  name: string | null;
  /** SHA-256 of the key. */
  hash: Buffer;
  expiresAt: Date | null;
}

export interface KeyRow extends Omit<NewKey, "hash"> {
  revokedAt: Date | null;
  lastUsedAt: Date | null;
}

export async function addKey(db: Pick<Database["drizzle"], "insert">, key: NewKey): Promise<void> {
  await db.insert(apiKeys).values({
    id: idToUuid(key.id),
    projectNo: key.projectNo,
    environment: environmentCode(key.environment),
    scope: key.scope,
    name: key.name,
    hash: key.hash,
    expiresAt: key.expiresAt,
  });
}

export async function findKey(db: Database, id: string): Promise<KeyRow | null> {
  const [row] = await db.drizzle
    .select()
    .from(apiKeys)
    .where(eq(apiKeys.id, idToUuid(id)));
  return row === undefined ? null : readKey(row);
}

export async function listKeys(db: Database, projectNo: ProjectNo): Promise<KeyRow[]> {
  return (
    await db.drizzle.select().from(apiKeys).where(eq(apiKeys.projectNo, projectNo)).orderBy(apiKeys.id)
  ).map(readKey);
}

export async function createKey(db: Database, key: NewKey, cause: OperatorCause): Promise<void> {
  await db.transact(async ({ drizzle: tx }) => {
    await addKey(tx, key);
    const { id: subject, projectNo, environment, scope, name } = key;
    const detail = { scope, name, expires_at: key.expiresAt };
    await recordChange(tx, cause, { action: "key.create", projectNo, environment, subject, detail });
  });
}

/** False if there is no such key, or it was revoked before. */
export async function revokeKey(db: Database, id: string, cause: OperatorCause): Promise<boolean> {
  return db.transact(async ({ drizzle: tx }) => {
    const [row] = await tx
      .update(apiKeys)
      .set({ revokedAt: sql`now()` })
      .where(and(eq(apiKeys.id, idToUuid(id)), isNull(apiKeys.revokedAt)))
      .returning();
    if (row === undefined) return false;
    const { projectNo, environment } = readKey(row);
    await recordChange(tx, cause, { action: "key.revoke", projectNo, environment, subject: id });
    return true;
  });
}

/** Adds the successor of a key and lets the key itself expire after the overlap, in one transaction. */
export async function replaceKey(
  db: Database,
  id: string,
  successor: NewKey,
  overlapHours: number,
  cause: OperatorCause,
): Promise<void> {
  await db.transact(async ({ drizzle: tx }) => {
    await addKey(tx, successor);
    const end = sql`now() + ${overlapHours}::int * interval '1 h'`;
    await tx
      .update(apiKeys)
      .set({ expiresAt: sql`least(${apiKeys.expiresAt}, ${end})` })
      .where(eq(apiKeys.id, idToUuid(id)));
    const { projectNo, environment } = successor;
    const detail = { successor: successor.id, overlap_hours: overlapHours };
    await recordChange(tx, cause, { action: "key.rotate", projectNo, environment, subject: id, detail });
  });
}

function readKey(row: typeof apiKeys.$inferSelect): KeyRow {
  return {
    id: uuidToId(KEY_PREFIX, row.id),
    projectNo: row.projectNo,
    environment: environmentOf(row.environment),
    scope: row.scope as KeyScope,
    name: row.name,
    expiresAt: row.expiresAt,
    revokedAt: row.revokedAt,
    lastUsedAt: row.lastUsedAt,
  };
}
