import { sql } from "drizzle-orm";
import { idTimeMs, REQUEST_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { KnownKey } from "../../domain/secrets-key.ts";
import type { Database, Transaction } from "../database/database.ts";
import { type OperatorCause, recordChange } from "../resources/audit.ts";

/** What the cell knows of the keys that have sealed its secrets. Instants are milliseconds since 1970. */
export interface CellKeys {
  /** The one that was used first before the others. */
  known: (KnownKey & { firstUsedAt: number; ageSeconds: number; retiredAt: number | null })[];
  /** A sealed secret to try a key on where none is known, and when the oldest was made. */
  sample: { sealed: Buffer; oldestAt: number } | null;
}

export async function lookAtKeys(db: Pick<Database, "run">): Promise<CellKeys> {
  const [row] = await db.run<LookRow>("look_at_keys", LOOK, []);
  if (row === undefined) throw new Error("a statement of one row brought none");
  return {
    known: row.known.map(({ fingerprint, seals, first_used_at, age_seconds, retired_at }) => ({
      fingerprint,
      seals,
      isRetired: retired_at !== null,
      firstUsedAt: first_used_at,
      ageSeconds: age_seconds,
      retiredAt: retired_at,
    })),
    sample:
      row.sealed === null || row.oldest_id === null
        ? null
        : { sealed: row.sealed, oldestAt: idTimeMs(uuidToId(REQUEST_PREFIX, row.oldest_id)) },
  };
}

interface LookRow {
  known: {
    fingerprint: string;
    seals: boolean;
    first_used_at: number;
    age_seconds: number;
    retired_at: number | null;
  }[];
  sealed: Buffer | null;
  oldest_id: string | null;
}

const LOOK = `
SELECT (SELECT coalesce(json_agg(json_build_object(
                 'fingerprint', fingerprint, 'seals', seals,
                 'first_used_at', extract(epoch FROM first_used_at)::float8 * 1000,
                 'age_seconds', extract(epoch FROM now() - first_used_at)::float8,
                 'retired_at', extract(epoch FROM retired_at)::float8 * 1000) ORDER BY first_used_at, fingerprint), '[]')
          FROM secrets_keys) AS known,
       (SELECT sealed FROM signing_secrets ORDER BY id DESC LIMIT 1) AS sealed,
       (SELECT id FROM signing_secrets ORDER BY id LIMIT 1) AS oldest_id`;

/** A key that seals from now on. */
export interface KeyEntry {
  fingerprint: string;
  /** Null: now. Of a key that is known already it does not change. */
  firstUsedAt: number | null;
}

/**
 * Notes the keys that `decide` makes of what is known, in the order in which they have sealed: the last one does from now
 * on. What it throws changes nothing. Processes that start together with different keys decide one after the other.
 */
export async function noteKeys(db: Database, decide: (keys: CellKeys) => KeyEntry[]): Promise<void> {
  await db.transact(async (tx) => {
    await lockKeys(tx);
    for (const { fingerprint, firstUsedAt } of decide(await lookAtKeys(tx))) {
      await tx.run("end_sealing", "UPDATE secrets_keys SET seals = false WHERE seals", []);
      await tx.run("begin_sealing", BEGIN_SEALING, [
        fingerprint,
        firstUsedAt === null ? null : new Date(firstUsedAt),
      ]);
    }
  });
}

const BEGIN_SEALING = `
INSERT INTO secrets_keys (fingerprint, first_used_at, seals) VALUES ($1, coalesce($2, now()), true)
    ON CONFLICT (fingerprint) DO UPDATE SET seals = true, retired_at = NULL`;

/** Notes that an operator begins to seal with `fingerprint` what is under other keys. */
export async function recordReseal(db: Database, fingerprint: string, cause: OperatorCause): Promise<void> {
  await db.transact((tx) => recordKeyChange(tx, cause, "secrets_key.reseal", fingerprint));
}

/** Notes that nothing is left under any key but the sealing one; answers those of which that was not known. */
export async function retireKeys(db: Database, sealing: string, cause: OperatorCause): Promise<string[]> {
  return db.transact(async (tx) => {
    await lockKeys(tx);
    const rows = await tx.run<{ fingerprint: string }>("retire_keys", RETIRE, [sealing]);
    const retired = rows.map(({ fingerprint }) => fingerprint);
    if (retired.length > 0) await recordKeyChange(tx, cause, "secrets_key.retire", retired.join(","));
    return retired;
  });
}

// A process that has begun to seal with another key meanwhile may have sealed with it.
const RETIRE = `
UPDATE secrets_keys SET retired_at = now()
 WHERE NOT seals AND retired_at IS NULL AND EXISTS (SELECT FROM secrets_keys WHERE seals AND fingerprint = $1)
RETURNING fingerprint`;

/** Gives a key up: nobody has it any more. If it was the one that seals, `successor` does from now on. */
export async function loseKey(
  db: Database,
  lost: string,
  successor: string,
  cause: OperatorCause,
): Promise<void> {
  await db.transact(async (tx) => {
    await lockKeys(tx);
    const rows = await tx.run("lose_key", LOSE, [lost]);
    if (rows.length === 0) return;
    const { known } = await lookAtKeys(tx);
    if (!known.some(({ seals }) => seals)) await tx.run("begin_sealing", BEGIN_SEALING, [successor, null]);
    await recordKeyChange(tx, cause, "secrets_key.lose", lost);
  });
}

const LOSE = `
UPDATE secrets_keys SET retired_at = now(), seals = false WHERE fingerprint = $1 AND retired_at IS NULL RETURNING 1`;

/** Those who change the keys wait for each other, and nobody who only looks at them waits. */
const lockKeys = (tx: Transaction) =>
  tx.drizzle.execute(sql`LOCK TABLE secrets_keys IN SHARE ROW EXCLUSIVE MODE`);

function recordKeyChange(
  tx: Transaction,
  cause: OperatorCause,
  action: "secrets_key.reseal" | "secrets_key.retire" | "secrets_key.lose",
  subject: string,
): Promise<void> {
  return recordChange(tx.drizzle, cause, { action, projectNo: null, environment: null, subject });
}
