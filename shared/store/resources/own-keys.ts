import { eq } from "drizzle-orm";
import { idToUuid, KEY_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { KeyScope } from "../../domain/key.ts";
import type { KeyStanding } from "../../domain/key-life.ts";
import type { Scope } from "../../domain/scope.ts";
import { environmentCode } from "../database/codes.ts";
import { type Database, epochMs, type Transaction } from "../database/database.ts";
import { apiKeys } from "../database/schema/resources.ts";
import { type KeyCause, recordChange } from "./audit.ts";
import { type KeyToTake, keepAnswer } from "./idempotency.ts";
import { addKey } from "./keys.ts";
import { lockProject } from "./lock-project.ts";

/**
 * API keys as other keys make and change them, in their own environment. The changes of a project's keys wait for each
 * other at the project's row, so each is decided on all living keys: if two keys delete each other, one stays, and no
 * environment has more keys than it may have. Operators' changes (keys.ts) do not wait.
 */

/** A key that is neither revoked nor expired. Instants are milliseconds since 1970. */
export interface LivingKeyRow {
  id: string;
  scope: KeyScope;
  name: string | null;
  expiresAt: number | null;
  lastUsedAt: number | null;
}

/** The key that asks for a change, and the request that it comes with. */
export interface Asking extends KeyCause {
  keyId: string;
}

/** A key together with the answer that is kept under it, which shows the new API key. */
export type KeyToAnswer = KeyToTake & { answerOf: (made: LivingKeyRow) => Buffer };

/** Makes a key. `decide` answers when it expires, or throws the refusal. */
export function createOwnKey(
  db: Database,
  scope: Scope,
  { hash, ...made }: Pick<LivingKeyRow, "id" | "scope" | "name"> & { hash: Buffer },
  decide: (standing: KeyStanding<LivingKeyRow>) => number | null,
  asking: Asking,
  key: KeyToAnswer | null,
): Promise<LivingKeyRow | "key_taken"> {
  return db.transact(async (tx) => {
    const standing = await standingOf(tx, scope, asking);
    const row = { ...made, expiresAt: decide(standing), lastUsedAt: null };
    if (!(await keep(tx, scope, key, row))) return "key_taken";
    await add(tx, scope, row, hash);
    await recordChange(tx.drizzle, asking, {
      action: "key.create",
      ...scope,
      subject: row.id,
      detail: { scope: row.scope, name: row.name, expires_at: dateOf(row.expiresAt) },
    });
    return row;
  });
}

/** Makes the successor of a key. `decide` answers the key to replace and when that key ends, or throws the refusal. */
export function rotateOwnKey(
  db: Database,
  scope: Scope,
  { id, hash }: { id: string; hash: Buffer },
  decide: (standing: KeyStanding<LivingKeyRow>) => {
    key: LivingKeyRow;
    overlapHours: number;
    endsAt: number;
  },
  asking: Asking,
  key: KeyToAnswer | null,
): Promise<LivingKeyRow | "key_taken"> {
  return db.transact(async (tx) => {
    const { key: old, overlapHours, endsAt } = decide(await standingOf(tx, scope, asking));
    const row = { ...old, id, lastUsedAt: null };
    if (!(await keep(tx, scope, key, row))) return "key_taken";
    await add(tx, scope, row, hash);
    await tx.drizzle
      .update(apiKeys)
      .set({ expiresAt: dateOf(endsAt) })
      .where(eq(apiKeys.id, idToUuid(old.id)));
    await recordChange(tx.drizzle, asking, {
      action: "key.rotate",
      ...scope,
      subject: old.id,
      detail: { successor: id, overlap_hours: overlapHours },
    });
    return row;
  });
}

/** Revokes a key, unless `decide` throws a refusal. */
export function deleteOwnKey(
  db: Database,
  scope: Scope,
  id: string,
  decide: (standing: KeyStanding<LivingKeyRow>) => void,
  asking: Asking,
): Promise<void> {
  return db.transact(async (tx) => {
    const standing = await standingOf(tx, scope, asking);
    decide(standing);
    await tx.drizzle
      .update(apiKeys)
      .set({ revokedAt: new Date(standing.now) })
      .where(eq(apiKeys.id, idToUuid(id)));
    await recordChange(tx.drizzle, asking, { action: "key.revoke", ...scope, subject: id });
  });
}

/** A page of an environment's living keys, newest first. */
export async function listOwnKeys(
  db: Database,
  { projectNo, environment }: Scope,
  { beforeId, limit }: { beforeId: string | null; limit: number },
): Promise<LivingKeyRow[]> {
  const values = [
    projectNo,
    environmentCode(environment),
    beforeId === null ? null : idToUuid(beforeId),
    limit,
  ];
  return (await db.run<Row>("list_own_keys", LIST, values)).map(readRow);
}

// Two looks into the index of keys that are not revoked. Expired keys are not read, however many there are.
const LIVING = ["expires_at IS NULL", "expires_at > statement_timestamp()"]
  .map(
    (lives) => `
SELECT id, scope, name, ${epochMs("expires_at")} AS expires_at, ${epochMs("last_used_at")} AS last_used_at
  FROM api_keys WHERE project_no = $1 AND environment = $2 AND revoked_at IS NULL AND ${lives}`,
  )
  .join("\n UNION ALL");

const LIST = `
SELECT * FROM (${LIVING}) living
 WHERE $3::uuid IS NULL OR id < $3
 ORDER BY id DESC LIMIT $4`;

const STANDING = `SELECT ${epochMs("statement_timestamp()")} AS now, living.* FROM (${LIVING}) living`;

interface Row {
  id: string;
  scope: KeyScope;
  name: string | null;
  expires_at: number | null;
  last_used_at: number | null;
}

const readRow = (row: Row): LivingKeyRow => ({
  id: uuidToId(KEY_PREFIX, row.id),
  scope: row.scope,
  name: row.name,
  expiresAt: row.expires_at,
  lastUsedAt: row.last_used_at,
});

async function standingOf(
  tx: Transaction,
  { projectNo, environment }: Scope,
  { keyId }: Asking,
): Promise<KeyStanding<LivingKeyRow>> {
  await lockProject(tx, projectNo);
  const values = [projectNo, environmentCode(environment)];
  const rows = await tx.run<Row & { now: number }>("standing_of_keys", STANDING, values);
  // Without a living key every change is refused, whatever the clock says.
  return { keys: rows.map(readRow), callerId: keyId, now: Math.ceil(rows[0]?.now ?? 0) };
}

async function keep(
  tx: Transaction,
  scope: Scope,
  key: KeyToAnswer | null,
  made: LivingKeyRow,
): Promise<boolean> {
  return key === null || keepAnswer(tx, scope, key, key.answerOf(made));
}

function add(
  tx: Transaction,
  { projectNo, environment }: Scope,
  { id, scope, name, expiresAt }: LivingKeyRow,
  hash: Buffer,
): Promise<void> {
  return addKey(tx.drizzle, { id, projectNo, environment, scope, name, hash, expiresAt: dateOf(expiresAt) });
}

const dateOf = (at: number | null): Date | null => (at === null ? null : new Date(at));
