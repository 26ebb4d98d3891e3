import { KEY_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { KeyScope } from "../../domain/key.ts";
import type { Environment } from "../../domain/scope.ts";
import { environmentOf } from "../database/codes.ts";
import { column, type Database, instant } from "../database/database.ts";
import { type ProjectRow, readProject } from "./projects.ts";

/** The key that a request comes with, and its project. */
export interface Caller {
  keyId: string;
  /** The number by which rows name the key. */
  keyNo: number;
  scope: KeyScope;
  environment: Environment;
  /** How long the key was still valid when Postgres was asked; null if the key does not expire. */
  validMs: number | null;
  project: ProjectRow;
}

/** Finds the callers whose keys have these hashes; null for a key that is unknown, revoked or expired. */
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
       p.concurrency, p.schedules, p.park_failing_hosts AS "parkFailingHosts"
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

// The rows are locked in one order, because other gateways write the same keys.
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
