import { createHash, randomBytes } from "node:crypto";
import {
  createIdSource,
  KEY_PREFIX,
  PROJECT_PREFIX,
  SIGNING_SECRET_PREFIX,
} from "../../shared/domain/ids.ts";
import { makeKey } from "../../shared/domain/key.ts";
import type { Plan } from "../../shared/domain/plan.ts";
import { ENVIRONMENTS, type Environment, type Region } from "../../shared/domain/scope.ts";
import { makeSecret } from "../../shared/domain/signing.ts";
import { NEWEST_API_VERSION } from "../../shared/domain/version.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import { askTime, type Database } from "../../shared/store/database/database.ts";
import { createProject, type ProjectRow } from "../../shared/store/resources/projects.ts";
import { findAccount, makeCause } from "./cause.ts";

/** A new project, with the keys and secrets that are shown only once. */
export interface CreatedProject {
  project: ProjectRow;
  keys: Record<Environment, string>;
  signingSecrets: Record<Environment, string>;
}

/** Creates a project with a key of full scope and a signing secret for each environment, all or nothing. */
export async function createProjectWithKeys(
  db: Database,
  seal: Seal,
  {
    name,
    plan,
    defaultRegion,
    givenKeys,
  }: {
    name: string;
    plan: Plan;
    defaultRegion: Region;
    /** Well-formed keys in place of new ones. */
    givenKeys?: Readonly<Record<Environment, string | null>>;
  },
  operator: string = findAccount(process.env),
): Promise<CreatedProject> {
  // created_at is the time in the id, so it has to be the database's.
  const now = await askTime(db);
  const ids = createIdSource(randomBytes);
  const keys = {
    development: givenKeys?.development ?? makeKey("development", randomBytes),
    production: givenKeys?.production ?? makeKey("production", randomBytes),
  };
  const signingSecrets = { development: makeSecret(randomBytes), production: makeSecret(randomBytes) };
  const project = await createProject(
    db,
    {
      id: ids.next(PROJECT_PREFIX, now),
      name,
      plan,
      defaultRegion,
      apiVersion: NEWEST_API_VERSION,
      keys: ENVIRONMENTS.map((environment) => ({
        id: ids.next(KEY_PREFIX, now),
        environment,
        scope: "full",
        name: null,
        hash: hashKey(keys[environment]),
        expiresAt: null,
      })),
      secrets: ENVIRONMENTS.map((environment) => ({
        id: ids.next(SIGNING_SECRET_PREFIX, now),
        environment,
        sealed: seal.seal(signingSecrets[environment]),
      })),
    },
    await makeCause({ db, operator }),
  );
  return { project, keys, signingSecrets };
}

/** Only this hash of a key is kept. A key has 190 random bits, so the hash needs neither salt nor slowness. */
export function hashKey(key: string): Buffer {
  return createHash("sha256").update(key).digest();
}
