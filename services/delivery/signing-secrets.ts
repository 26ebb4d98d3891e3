import type { Environment, ProjectNo, Region } from "../../shared/domain/scope.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import { createBatcher } from "../../shared/store/database/batch.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { listEnvironmentsInUse, listSigningSecrets } from "../../shared/store/resources/secrets.ts";

/** A secret signs for so long after it was read. So a rotation, like every change of an operator, is in force on every node within 5 s. */
export const CACHED_MS = 4_000;
/** Two refreshes fall within CACHED_MS, so that one of them may fail. */
const REFRESHED_EVERY_MS = 1_500;
/** Secrets that were asked for within this time are refreshed, so that projects with few jobs need no statement for each. */
export const REMEMBERED_MS = 30_000;
const REMEMBERED_MAX = 20_000;
/** The node does nothing else while it reads an answer. So one answer is about no more scopes than this. */
const PER_STATEMENT_MAX = 200;
/**
 * The first refresh reads the secrets of so many environments before anybody asks for them. Otherwise a node that has just started
 * would read them one by one while it delivers its first jobs.
 */
const READ_AHEAD_MAX = 4_000;

interface Scope {
  projectNo: ProjectNo;
  environment: Environment;
}

/** The secrets of a scope. Instants are those of `steadyNow`. */
interface Remembered {
  scope: Scope;
  /** When the statement that read them was asked for. */
  readAt: number;
  usedAt: number;
  sealed: Buffer[];
  secrets: Promise<string[]>;
}

export interface SigningSecrets {
  /** The signing secrets of an environment, the newest first. Scopes asked for together share a statement. */
  of(scope: Scope): Promise<string[]>;
  /** Reads the remembered secrets again, and forgets those that nobody has asked for of late. The first one reads secrets ahead. */
  refresh(): Promise<void>;
  everyMs: number;
}

export function createSigningSecrets(
  db: Database,
  seal: Seal,
  {
    regions = [],
    cachedMs = CACHED_MS,
    steadyNow = () => performance.now(),
  }: { regions?: readonly Region[]; cachedMs?: number; steadyNow?: () => number } = {},
): SigningSecrets {
  const list = (scopes: Scope[]) => listSigningSecrets(db, scopes);
  const loading = createBatcher({ run: list, itemsMax: PER_STATEMENT_MAX });
  const remembered = new Map<string, Remembered>();
  let readsAhead = regions.length > 0 && cachedMs > 0;

  function load(key: string, scope: Scope, now: number): Remembered {
    if (remembered.size >= REMEMBERED_MAX) remembered.clear();
    const loaded: Remembered = {
      ...{ scope, readAt: now, usedAt: now, sealed: [] },
      secrets: loading.submit(scope).then((sealed) => {
        loaded.sealed = sealed;
        return sealed.map((bytes) => seal.open(bytes));
      }),
    };
    remembered.set(key, loaded);
    loaded.secrets.catch(() => forget(key, loaded));
    return loaded;
  }

  function forget(key: string, known: Remembered): void {
    if (remembered.get(key) === known) remembered.delete(key);
  }

  /** An entry that has been loaded anew meanwhile is left as it is. */
  function renew(key: string, known: Remembered, sealed: Buffer[], readAt: number): void {
    if (remembered.get(key) !== known) return;
    const isSame =
      sealed.length === known.sealed.length && sealed.every((bytes, at) => known.sealed[at]?.equals(bytes));
    // A secret that changed is read, and opened, when it is asked for.
    if (isSame) known.readAt = readAt;
    else remembered.delete(key);
  }

  function of(scope: Scope): Promise<string[]> {
    const key = `${scope.projectNo} ${scope.environment}`;
    const now = steadyNow();
    const known = remembered.get(key);
    if (known === undefined || now >= known.readAt + cachedMs) return load(key, scope, now).secrets;
    known.usedAt = now;
    return known.secrets;
  }

  async function readAhead(): Promise<void> {
    const scopes = await listEnvironmentsInUse(db, regions, READ_AHEAD_MAX);
    readsAhead = false;
    // Those who ask for a secret hear why it cannot be read.
    await Promise.allSettled(scopes.map(of));
  }

  return {
    of,
    async refresh() {
      if (readsAhead) return readAhead();
      const now = steadyNow();
      for (const [key, known] of remembered) if (now >= known.usedAt + REMEMBERED_MS) remembered.delete(key);
      const entries = [...remembered];
      for (let at = 0; at < entries.length; at += PER_STATEMENT_MAX) {
        const some = entries.slice(at, at + PER_STATEMENT_MAX);
        const askedAt = steadyNow();
        const answers = await list(some.map(([, { scope }]) => scope));
        for (const [index, [key, known]] of some.entries()) renew(key, known, answers[index] ?? [], askedAt);
      }
    },
    everyMs: REFRESHED_EVERY_MS,
  };
}
