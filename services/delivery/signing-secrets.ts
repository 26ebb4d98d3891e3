import type { Environment, ProjectNo } from "../../shared/domain/scope.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import { createBatcher } from "../../shared/store/database/batch.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { listSigningSecrets } from "../../shared/store/resources/secrets.ts";

/** Like every change of an operator, a rotation is in force on every node within 5 s. No secret is kept for longer. */
const CACHED_MS = 4_000;
const CACHED_MAX = 20_000;

/** Finds the signing secrets of an environment, the newest first. Scopes asked for together share a statement. */
export function createSigningSecrets(
  db: Database,
  seal: Seal,
  cachedMs = CACHED_MS,
): (scope: { projectNo: ProjectNo; environment: Environment }) => Promise<string[]> {
  const loading = createBatcher({
    run: (scopes: { projectNo: ProjectNo; environment: Environment }[]) => listSigningSecrets(db, scopes),
    itemsMax: 1_000,
  });
  const cached = new Map<string, Promise<string[]>>();
  return (scope) => {
    const key = `${scope.projectNo} ${scope.environment}`;
    const known = cached.get(key);
    if (known !== undefined) return known;
    if (cached.size >= CACHED_MAX) cached.clear();
    const secrets = loading.submit(scope).then((sealed) => sealed.map((bytes) => seal.open(bytes)));
    cached.set(key, secrets);
    const forget = () => {
      if (cached.get(key) === secrets) cached.delete(key);
    };
    setTimeout(forget, cachedMs).unref();
    secrets.catch(forget);
    return secrets;
  };
}
