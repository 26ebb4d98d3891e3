import { KEY_LIFE_HOURS } from "../../domain/idempotency.ts";
import { JOB_PREFIX, RUN_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { Environment, ProjectNo } from "../../domain/scope.ts";
import { environmentCode } from "../database/codes.ts";
import type { Database } from "../database/database.ts";

/** An Idempotency-Key to take within the statement that does what the request asks for. */
export interface KeyToTake {
  /** SHA-256 of the scope, the operation and the key, as keyDigest (domain/idempotency.ts) makes it. */
  digest: Buffer;
  /** SHA-256 of the request's body as a JSON value. */
  requestHash: Buffer;
}

/** The jobs or the run that were made under a key, and the facts that are needed to repeat the answer. */
export interface FirstAnswer {
  requestHash: Buffer;
  /** In the order of the request. */
  jobIds: string[];
  /** The run of a manual retry. */
  run: { id: string; attempt: number } | null;
  /** The parts of the answer that may have changed since. */
  answer: Buffer | null;
  /** When the jobs or the run were made, in milliseconds since 1970, by the clock of the statement that made them. */
  at: number;
}

const KEY_LIFE = `interval '${KEY_LIFE_HOURS} h'`;

const SET_KEY = `
     SET created_at = excluded.created_at, attempt = excluded.attempt, request_hash = excluded.request_hash,
         job_ids = excluded.job_ids, run_id = excluded.run_id, answer = excluded.answer`;

/**
 * The end of an INSERT that takes keys. It waits for a key that another transaction is taking. It returns no row for a
 * key that is taken, except to the request that took it.
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

/** Takes the key if `found` has a row. `made` then equals `found`, or is empty if another request has the key. */
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

/** The first answer under this key within its life, or null. */
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
 * Keeps an answer under a key if nothing is made, or before anything is made in the transaction. False if another
 * request took the key, even for the same answer: the row does not tell which request took it.
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
 * Removes up to `limit` keys that expired a while before `now` (milliseconds since 1970), the oldest first. Answers how
 * many. Concurrent calls are safe.
 */
export async function purgeKeys(db: Database, limit: number, now: number): Promise<number> {
  return (await db.run("purge_keys", PURGE, [limit, new Date(now).toISOString()])).length;
}

/** A leap of the clock that goes unseen (clock-watch.ts) is shorter than this, so no key is removed before its time. */
export const KEYS_PURGED_LATER_MS = 900_000;

const PURGE = `
DELETE FROM idempotency_keys
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM idempotency_keys WHERE created_at <= $2::timestamptz - ${KEY_LIFE} - interval '${KEYS_PURGED_LATER_MS} ms'
                           ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING 1`;
