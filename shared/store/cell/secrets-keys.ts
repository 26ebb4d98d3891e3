import { sql } from "drizzle-orm";
import { idTimeMs, REQUEST_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { KnownKey } from "../../domain/secrets-key.ts";
import type { Database, Transaction } from "../database/database.ts";
import { type OperatorCause, recordChange } from "../resources/audit.ts";

/** The keys that have sealed the cell's secrets. Instants are milliseconds since 1970. */
export interface CellKeys {
  /** In the order of their first use. */
  known: (KnownKey & { firstUsedAt: number; ageSeconds: number; retiredAt: number | null })[];
  /** A sealed secret on which a key is tried while no key is known, and the time of the oldest secret. */
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
  /** Null means now. A key that is known already keeps its time. */
  firstUsedAt: number | null;
}

/**
 * Notes the keys that `decide` answers, in the order in which they have sealed; the last one seals from now on. If
 * `decide` throws, nothing changes. Processes that start together with different keys decide one after the other.
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

/** Records that an operator begins to reseal, with `fingerprint`, the values that other keys have sealed. */
export async function recordReseal(db: Database, fingerprint: string, cause: OperatorCause): Promise<void> {
  await db.transact((tx) => recordKeyChange(tx, cause, "secrets_key.reseal", fingerprint));
}

/**
 * Retires every key except the sealing one. The caller has checked that the others seal no value any more. Answers the
 * keys that were not retired before.
 */
export async function retireKeys(db: Database, sealing: string, cause: OperatorCause): Promise<string[]> {
  return db.transact(async (tx) => {
    await lockKeys(tx);
    const rows = await tx.run<{ fingerprint: string }>("retire_keys", RETIRE, [sealing]);
    const retired = rows.map(({ fingerprint }) => fingerprint);
    if (retired.length > 0) await recordKeyChange(tx, cause, "secrets_key.retire", retired.join(","));
    return retired;
  });
}

// No key is retired if a process has begun to seal with another key meanwhile: that key may have sealed values already.
const RETIRE = `
UPDATE secrets_keys SET retired_at = now()
 WHERE NOT seals AND retired_at IS NULL AND EXISTS (SELECT FROM secrets_keys WHERE seals AND fingerprint = $1)
RETURNING fingerprint`;

/** Retires a key that nobody has any more. If the key was the sealing one, `successor` seals from now on. */
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

/** Changes of the keys wait for each other; readers of the keys do not wait. */
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
