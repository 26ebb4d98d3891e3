import { and, desc, eq, gt, isNull, or, sql } from "drizzle-orm";
import { idToUuid } from "../domain/ids.ts";
import type { Environment, ProjectNo } from "../domain/scope.ts";
import { environmentCode } from "./codes.ts";
import type { Database } from "./database.ts";
import { signingSecrets } from "./schema.ts";

/** The environment's sealed signing secrets that are in force, the newest first: it signs `Service-Signature`. */
export async function listSigningSecrets(
  db: Database,
  projectNo: ProjectNo,
  environment: Environment,
): Promise<Buffer[]> {
  const rows = await db.drizzle
    .select({ sealed: signingSecrets.sealed })
    .from(signingSecrets)
    .where(
      and(
        eq(signingSecrets.projectNo, projectNo),
        eq(signingSecrets.environment, environmentCode(environment)),
        or(isNull(signingSecrets.expiresAt), gt(signingSecrets.expiresAt, sql`now()`)),
      ),
    )
    .orderBy(desc(signingSecrets.id));
  return rows.map((row) => row.sealed);
}

/** Adds a new secret; those before it go on signing for `overlapHours`. */
export async function rotateSigningSecret(
  db: Database,
  secret: { id: string; projectNo: ProjectNo; environment: Environment; sealed: Buffer },
  overlapHours: number,
): Promise<void> {
  await db.drizzle.transaction(async (tx) => {
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
  });
}
