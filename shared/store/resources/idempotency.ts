import { KEY_LIFE_HOURS } from "../../domain/idempotency.ts";
import { JOB_PREFIX, RUN_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { Environment, ProjectNo } from "../../domain/scope.ts";
import { environmentCode } from "../database/codes.ts";
import type { Database } from "../database/database.ts";

/** An Idempotency-Key that a request wants to have for itself, in the statement that does what it asks for. */
export interface KeyToTake {
  /** SHA-256 of the route and the key. */
  digest: Buffer;
  /** SHA-256 of the request's body as a JSON value. */
  requestHash: Buffer;
}

/** What was made under a key, and what is needed to answer that again. */
export interface FirstAnswer {
  requestHash: Buffer;
  /** In the order of the request. */
  jobIds: string[];
  /** Of a manual retry. */
  run: { id: string; attempt: number } | null;
  /** What was answered, of what changes after it was made. */
  answer: Buffer | null;
  /** Milliseconds since 1970, as of the statement that made it. */
  at: number;
}

const KEY_LIFE = `interval '${KEY_LIFE_HOURS} h'`;

const SET_KEY = `
     SET created_at = excluded.created_at, attempt = excluded.attempt, request_hash = excluded.request_hash,
         job_ids = excluded.job_ids, run_id = excluded.run_id, answer = excluded.answer`;

/**
 * Takes keys with whatever SELECT goes before it. One that another transaction is just taking is waited for, and one that
 * is taken is left alone: then no row comes back. Who asks once more for what it took has it still.
 */
export const ON_CONFLICT_TAKE_KEY = `
      ON CONFLICT (project_no, environment, digest) DO UPDATE ${SET_KEY}
   WHERE k.created_at <= now() - ${KEY_LIFE}
      OR k.job_ids = excluded.job_ids AND k.run_id IS NOT DISTINCT FROM excluded.run_id
         AND k.answer IS NOT DISTINCT FROM excluded.answer`;

/** Parameters $7 to $9 of a statement that takes a key, if one was given, behind those of changeOf (audit.ts). */
export const keyOf = (key: KeyToTake | null, answer: Buffer | undefined) => [
  key?.digest ?? null,
  key?.requestHash ?? null,
  answer ?? null,
];

/** Takes the key if `found` has a row. Then `made` is `found`; it is empty if another request has the key. */
export const takeKeyFrom = (found: string): string => `key AS (
  INSERT INTO idempotency_keys AS k (created_at, project_no, environment, digest, request_hash, job_ids, answer)
  SELECT now(), $1, $2, $7, $8, '{}', $9 FROM ${found} WHERE $7::bytea IS NOT NULL
      ON CONFLICT (project_no, environment, digest) DO UPDATE ${SET_KEY}
   WHERE k.created_at <= now() - ${KEY_LIFE}
  RETURNING 1
), made AS MATERIALIZED (
  SELECT * FROM ${found} WHERE $7 IS NULL OR EXISTS (SELECT FROM key)
)`;

/** The end of such a statement, and its answer: null if `found` was empty, because a row was not as it had been read. */
export const madeFrom = (found: string) => `SELECT EXISTS (SELECT FROM made) AS is_made FROM ${found}`;
export const readMade = ([row]: readonly { is_made: boolean }[]): "made" | "key_taken" | null =>
  row === undefined ? null : row.is_made ? "made" : "key_taken";

/** What was made under this key within its life, or null if nothing was. */
export async function findFirstAnswer(
  db: Database,
  scope: { projectNo: ProjectNo; environment: Environment },
  digest: Buffer,
): Promise<FirstAnswer | null> {
  const [row] = await db.run<Row>("find_first_answer", FIND, [
    scope.projectNo,
    environmentCode(scope.environment),
    digest,
  ]);
  if (row === undefined) return null;
  return {
    requestHash: row.request_hash,
    jobIds: row.job_ids.map((id) => uuidToId(JOB_PREFIX, id)),
    run: row.run_id === null ? null : { id: uuidToId(RUN_PREFIX, row.run_id), attempt: row.attempt },
    answer: row.answer,
    at: row.at,
  };
}

const FIND = `
SELECT request_hash, job_ids::text[] AS job_ids, run_id, attempt, answer, (extract(epoch FROM created_at) * 1000)::float8 AS at
  FROM idempotency_keys
 WHERE project_no = $1 AND environment = $2 AND digest = $3 AND created_at > now() - ${KEY_LIFE}`;

interface Row {
  request_hash: Buffer;
  job_ids: string[];
  run_id: string | null;
  attempt: number;
  answer: Buffer | null;
  at: number;
}

/**
 * Keeps an answer under a key although nothing was made, or before anything is made in the transaction. False if another
 * request has had the key, be its answer the same: that tells nothing of who had asked for it.
 */
export async function keepAnswer(
  db: Pick<Database, "run">,
  scope: { projectNo: ProjectNo; environment: Environment },
  key: KeyToTake,
  answer: Buffer,
): Promise<boolean> {
  const values = [scope.projectNo, environmentCode(scope.environment), key.digest, key.requestHash, answer];
  return (await db.run("keep_answer", KEEP, values)).length === 1;
}

const KEEP = `
INSERT INTO idempotency_keys AS k (created_at, project_no, environment, digest, request_hash, job_ids, answer)
VALUES (now(), $1, $2, $3, $4, '{}', $5)
    ON CONFLICT (project_no, environment, digest) DO UPDATE ${SET_KEY}
 WHERE k.created_at <= now() - ${KEY_LIFE}
RETURNING 1`;

/**
 * Removes up to `limit` keys whose life was over a while before `now` (milliseconds since 1970), the oldest first; answers how
 * many. Several may do so at once.
 */
export async function purgeKeys(db: Database, limit: number, now: number): Promise<number> {
  return (await db.run("purge_keys", PURGE, [limit, new Date(now).toISOString()])).length;
}

/** What the clock may have leapt unseen (clock-watch.ts) takes no key away before its time. */
const PURGE_LATER = "interval '15 min'";

const PURGE = `
DELETE FROM idempotency_keys
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM idempotency_keys WHERE created_at <= $2::timestamptz - ${KEY_LIFE} - ${PURGE_LATER}
                           ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING 1`;
