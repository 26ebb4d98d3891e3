import { idToUuid } from "../../domain/ids.ts";
import type { Environment, ProjectNo, Region, Scope } from "../../domain/scope.ts";
import { OLD_SECRET_HOURS } from "../../domain/webhook.ts";
import { environmentCode, environmentOf, regionCode } from "../database/codes.ts";
import { column, type Database, epochMs } from "../database/database.ts";
import { type KeyCause, type OperatorCause, recordChange } from "./audit.ts";
import { type KeyToTake, keepAnswer } from "./idempotency.ts";
import { lockProject } from "./lock-project.ts";

/**
 * The sealed signing secrets in force of many environments, in the order of the scopes. The newest of a scope comes first: it
 * signs `Service-Signature`.
 */
export async function listSigningSecrets(
  db: Database,
  scopes: readonly { projectNo: ProjectNo; environment: Environment }[],
): Promise<Buffer[][]> {
  const rows = await db.run<{ n: number; sealed: Buffer }>("list_signing_secrets", LIST, [
    column(scopes.map((scope) => scope.projectNo)),
    column(scopes.map((scope) => environmentCode(scope.environment))),
  ]);
  const secrets: Buffer[][] = scopes.map(() => []);
  for (const row of rows) secrets[row.n - 1]?.push(row.sealed);
  return secrets;
}

const LIST = `
SELECT i.n::int AS n, s.sealed
  FROM unnest($1::int[], $2::smallint[]) WITH ORDINALITY AS i (project_no, environment, n)
  JOIN signing_secrets s ON s.project_no = i.project_no AND s.environment = i.environment
 WHERE s.expires_at IS NULL OR s.expires_at > now()
 ORDER BY i.n, s.expires_at DESC NULLS FIRST`;

/** Environments that have had jobs in these regions, at most `max` of all. Which ones is left open. */
export async function listEnvironmentsInUse(
  db: Database,
  regions: readonly Region[],
  max: number,
): Promise<{ projectNo: ProjectNo; environment: Environment }[]> {
  const rows = await db.run<{ no: number; environment: number }>("list_environments_in_use", IN_USE, [
    column(regions.map(regionCode)),
    max,
  ]);
  return rows.map(({ no, environment }) => ({ projectNo: no, environment: environmentOf(environment) }));
}

const IN_USE = `
SELECT DISTINCT l.project_no AS no, l.environment
  FROM (SELECT project_no, environment FROM lanes WHERE region = ANY ($1::smallint[]) LIMIT $2) l`;

/** The secret that signs, and when the secret before it ends: milliseconds since 1970, null if no other one signs. */
export interface SigningSecret {
  sealed: Buffer;
  previousExpiresAt: number | null;
}

/** The signing secret of an environment; null if it has none. */
export async function findSigningSecret(
  db: Database,
  { projectNo, environment }: Scope,
): Promise<SigningSecret | null> {
  const [row] = await db.run<{ sealed: Buffer; until: number | null }>("find_signing_secret", FIND, [
    projectNo,
    environmentCode(environment),
  ]);
  return row === undefined ? null : { sealed: row.sealed, previousExpiresAt: row.until };
}

const FIND = `
SELECT s.sealed,
       (SELECT ${epochMs("max(o.expires_at)")} FROM signing_secrets o
         WHERE o.project_no = $1 AND o.environment = $2 AND o.expires_at > now()) AS until
  FROM signing_secrets s
 WHERE s.project_no = $1 AND s.environment = $2 AND s.expires_at IS NULL`;

/** A key together with the answer that is kept under it, which shows the new secret. */
export type KeyToAnswer = KeyToTake & { answerOf: (previousExpiresAt: number) => Buffer };

/**
 * Adds a new secret. The secret before it goes on signing for OLD_SECRET_HOURS, and the one before that ends now. Rotations
 * of a project wait for each other. Answers when the secret before the new one ends, in milliseconds since 1970.
 */
export async function rotateSigningSecret(
  db: Database,
  { id, projectNo, environment, sealed }: Scope & { id: string; sealed: Buffer },
  cause: KeyCause | OperatorCause,
  key: KeyToAnswer | null,
): Promise<number | "key_taken"> {
  return db.transact(async (tx) => {
    await lockProject(tx, projectNo);
    const [row] = await tx.run<{ until: number }>("old_secret_until", OLD_SECRET_UNTIL, []);
    const until = Math.ceil(row?.until ?? 0);
    if (key !== null && !(await keepAnswer(tx, { projectNo, environment }, key, key.answerOf(until)))) {
      return "key_taken";
    }
    const ofEnvironment = [projectNo, environmentCode(environment)];
    await tx.run("end_signing_secrets", END, [...ofEnvironment, new Date(until).toISOString()]);
    await tx.run("add_signing_secret", ADD, [...ofEnvironment, idToUuid(id), sealed]);
    const detail = { overlap_hours: OLD_SECRET_HOURS };
    await recordChange(tx.drizzle, cause, {
      action: "secret.rotate",
      projectNo,
      environment,
      subject: id,
      detail,
    });
    return until;
  });
}

const OLD_SECRET_UNTIL = `SELECT ${epochMs(`statement_timestamp() + interval '${OLD_SECRET_HOURS} h'`)} AS until`;

const END = `
UPDATE signing_secrets
   SET expires_at = CASE WHEN expires_at IS NULL THEN $3::timestamptz ELSE now() END
 WHERE project_no = $1 AND environment = $2 AND (expires_at IS NULL OR expires_at > now())`;

const ADD = "INSERT INTO signing_secrets (project_no, environment, id, sealed) VALUES ($1, $2, $3, $4)";
