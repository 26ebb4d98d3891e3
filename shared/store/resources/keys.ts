import { and, eq, isNull, sql } from "drizzle-orm";
import { idToUuid, KEY_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { KeyScope } from "../../domain/key.ts";
import type { Environment, ProjectNo } from "../../domain/scope.ts";
import { environmentCode, environmentOf } from "../database/codes.ts";
import { column, type Database, instant } from "../database/database.ts";
import { apiKeys } from "../database/schema.ts";
import { type OperatorCause, recordChange } from "./audit.ts";
import { type ProjectRow, readProject } from "./projects.ts";

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

/** Who a request comes from. */
export interface Caller {
  keyId: string;
  /** What rows name the key by. */
  keyNo: number;
  scope: KeyScope;
  environment: Environment;
  /** How long the key was still valid when it was looked at; null for one that does not expire. */
  validMs: number | null;
  project: ProjectRow;
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

/** The callers whose keys have these hashes; null for each key that is unknown, revoked or expired. */
export async function findCallers(db: Database, hashes: readonly Buffer[]): Promise<(Caller | null)[]> {
  const callers = hashes.map((): Caller | null => null);
  for (const row of await db.run<CallerRow>("find_callers", FIND_CALLERS, [hashes])) {
    callers[row.n - 1] = {
      keyId: uuidToId(KEY_PREFIX, row.key_id),
      keyNo: row.key_no,
      scope: row.scope,
      environment: environmentOf(row.environment),
      validMs: row.valid_ms,
      project: readProject(row),
    };
  }
  return callers;
}

const FIND_CALLERS = `
SELECT a.n::int, k.id AS key_id, k.no AS key_no, k.scope, k.environment,
       extract(epoch FROM k.expires_at - now())::float8 * 1000 AS valid_ms, p.no, p.id, p.name, p.plan,
       p.default_region AS "defaultRegion", p.api_version AS "apiVersion", p.requests_per_minute AS "requestsPerMinute",
       p.concurrency, p.schedules
  FROM unnest($1::bytea[]) WITH ORDINALITY AS a (hash, n)
  JOIN api_keys k ON k.hash = a.hash AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
  JOIN projects p ON p.no = k.project_no`;

/** Writes when keys were last used, as pairs of the key and milliseconds since 1970; an earlier use changes nothing. */
export async function noteKeyUses(db: Database, uses: readonly (readonly [number, number])[]): Promise<void> {
  await db.run("note_key_uses", NOTE_KEY_USES, [
    column(uses.map(([keyNo]) => keyNo)),
    column(uses.map(([, at]) => instant(at))),
  ]);
}

// In one order, because other gateways write the same keys.
const NOTE_KEY_USES = `
WITH used AS MATERIALIZED (
  SELECT k.no, u.at
    FROM unnest($1::int[], $2::timestamptz[]) AS u (no, at) JOIN api_keys k USING (no)
   WHERE k.last_used_at IS NULL OR k.last_used_at < u.at
   ORDER BY k.no
     FOR NO KEY UPDATE OF k
)
UPDATE api_keys k SET last_used_at = used.at FROM used WHERE k.no = used.no`;

type CallerRow = Parameters<typeof readProject>[0] & {
  n: number;
  key_id: string;
  key_no: number;
  scope: KeyScope;
  environment: number;
  valid_ms: number | null;
};

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
