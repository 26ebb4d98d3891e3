import { and, eq, isNull, sql } from "drizzle-orm";
import { idToUuid } from "../../domain/ids.ts";
import type { Environment, ProjectNo } from "../../domain/scope.ts";
import { environmentCode } from "../database/codes.ts";
import { column, type Database } from "../database/database.ts";
import { signingSecrets } from "../database/schema/resources.ts";
import { type OperatorCause, recordChange } from "./audit.ts";

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
 ORDER BY i.n, s.id DESC`;

/** Adds a new secret. The secrets before it go on signing for `overlapHours`. */
export async function rotateSigningSecret(
  db: Database,
  secret: { id: string; projectNo: ProjectNo; environment: Environment; sealed: Buffer },
  overlapHours: number,
  cause: OperatorCause,
): Promise<void> {
  await db.transact(async ({ drizzle: tx }) => {
    const environment = environmentCode(secret.environment);
    await tx
      .update(signingSecrets)
      .set({ expiresAt: sql`now() + ${overlapHours}::int * interval '1 h'` })
      .where(
        and(
          eq(signingSecrets.projectNo, secret.projectNo),
          eq(signingSecrets.environment, environment),
          isNull(signingSecrets.expiresAt),
        ),
      );
    await tx
      .insert(signingSecrets)
      .values({ id: idToUuid(secret.id), projectNo: secret.projectNo, environment, sealed: secret.sealed });
    const { id: subject, projectNo } = secret;
    await recordChange(tx, cause, {
      action: "secret.rotate",
      projectNo,
      environment: secret.environment,
      subject,
      detail: { overlap_hours: overlapHours },
    });
  });
}
