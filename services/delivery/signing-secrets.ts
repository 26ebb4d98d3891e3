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
 * would read them by many small statements while it delivers its first jobs.
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

const keyOf = ({ projectNo, environment }: Scope) => `${projectNo} ${environment}`;

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

  /** Remembers the secrets of a scope that a statement reads. It was asked for at `readAt`. */
  function remember(scope: Scope, readAt: number, reading: Promise<Buffer[]>): Remembered {
    if (remembered.size >= REMEMBERED_MAX) remembered.clear();
    const key = keyOf(scope);
    const known: Remembered = {
      ...{ scope, readAt, usedAt: readAt, sealed: [] },
      secrets: reading.then((sealed) => {
        known.sealed = sealed;
        return sealed.map((bytes) => seal.open(bytes));
      }),
    };
    remembered.set(key, known);
    known.secrets.catch(() => {
      if (remembered.get(key) === known) remembered.delete(key);
    });
    return known;
  }

  /** An entry that has been loaded anew meanwhile is left as it is. */
  function renew(known: Remembered, sealed: Buffer[], readAt: number): void {
    const key = keyOf(known.scope);
    if (remembered.get(key) !== known) return;
    const isSame =
      sealed.length === known.sealed.length && sealed.every((bytes, at) => known.sealed[at]?.equals(bytes));
    // A secret that changed is read, and opened, when it is asked for.
    if (isSame) known.readAt = readAt;
    else remembered.delete(key);
  }

  /** Reads the secrets of many scopes, and tells of each when its statement was asked for. */
  async function readMany(
    scopes: readonly Scope[],
    tell: (index: number, sealed: Buffer[], askedAt: number) => void,
  ): Promise<void> {
    for (let from = 0; from < scopes.length; from += PER_STATEMENT_MAX) {
      const askedAt = steadyNow();
      const answers = await list(scopes.slice(from, from + PER_STATEMENT_MAX));
      for (const [index, sealed] of answers.entries()) tell(from + index, sealed, askedAt);
    }
  }

  async function readAhead(): Promise<void> {
    const scopes = await listEnvironmentsInUse(db, regions, READ_AHEAD_MAX);
    readsAhead = false;
    await readMany(scopes, (index, sealed, askedAt) => {
      const scope = scopes[index];
      if (scope !== undefined) remember(scope, askedAt, Promise.resolve(sealed));
    });
  }

  return {
    of(scope) {
      const now = steadyNow();
      const known = remembered.get(keyOf(scope));
      if (known === undefined || now >= known.readAt + cachedMs)
        return remember(scope, now, loading.submit(scope)).secrets;
      known.usedAt = now;
      return known.secrets;
    },
    async refresh() {
      if (readsAhead) return readAhead();
      const now = steadyNow();
      for (const [key, known] of remembered) if (now >= known.usedAt + REMEMBERED_MS) remembered.delete(key);
      const entries = [...remembered.values()];
      await readMany(
        entries.map(({ scope }) => scope),
        (index, sealed, askedAt) => {
          const known = entries[index];
          if (known !== undefined) renew(known, sealed, askedAt);
        },
      );
    },
    everyMs: REFRESHED_EVERY_MS,
  };
}
