import { hash as hashOnce } from "node:crypto";
import { unauthorized } from "../../../shared/domain/errors.ts";
import { keyEnvironment } from "../../../shared/domain/key.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { type ApiVersion, isApiVersion } from "../../../shared/domain/version.ts";
import { createBatcher } from "../../../shared/store/database/batch.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { type Caller, findCallers } from "../../../shared/store/resources/callers.ts";
import type { LastUse } from "./last-use.ts";

export interface AuthenticatedCaller extends Caller {
  /** The version that the project is pinned to. */
  version: ApiVersion;
}

export interface Authenticator {
  /** The caller whose key the Authorization header holds. Throws unauthorized, or the errors of the store. */
  authenticate(header: string | null): AuthenticatedCaller | Promise<AuthenticatedCaller>;
  /** Forgets what is remembered of the project, so that a change made by this gateway works here at once. */
  forget(projectNo: ProjectNo): void;
}

/**
 * A caller is remembered for this long after the look-up, so that a revocation or an operator's change works within the 5 s
 * that the API promises. It is never remembered beyond the expiry of its key.
 */
const MEMORY_MS = 4_000;
const CALLERS_MAX = 10_000;
const KEYS_PER_LOOK_UP_MAX = 500;

/** `memoryMs` is 0 under a test clock, since a key may expire with the clock's next leap. */
export function createAuthenticator(
  db: Database,
  lastUse: Pick<LastUse, "note">,
  memoryMs = MEMORY_MS,
): Authenticator {
  const callers = createMemory<AuthenticatedCaller>(CALLERS_MAX);
  /** The look-ups under way, without those that a change may have overtaken. */
  let asked = new Map<string, Promise<AuthenticatedCaller>>();
  const lookUps = createBatcher<Buffer, Caller | null>({
    run: (hashes) => findCallers(db, hashes),
    itemsMax: KEYS_PER_LOOK_UP_MAX,
  });

  async function ask(hash: Buffer, name: string): Promise<AuthenticatedCaller> {
    const askedAt = performance.now();
    const askedAmong = asked;
    try {
      const found = await lookUps.submit(hash);
      // Unknown keys are not remembered, so that a new key works although somebody tried it before.
      if (found === null) throw unauthorized();
      const caller = { ...found, version: pinnedVersion(found) };
      if (askedAmong === asked) {
        callers.keep(name, caller, askedAt, Math.min(memoryMs, caller.validMs ?? memoryMs));
      }
      lastUse.note(caller.keyNo);
      return caller;
    } finally {
      askedAmong.delete(name);
    }
  }

  return {
    authenticate(header) {
      const key = BEARER_PATTERN.exec(header ?? "")?.[1];
      if (key === undefined || keyEnvironment(key) === null) throw unauthorized();
      const hash = hashOnce("sha256", key, "buffer");
      // Callers are remembered by the hash of the key, so that no key stays in memory longer than its request.
      const name = hash.toString("latin1");
      const known = callers.find(name, performance.now());
      if (known !== undefined) {
        lastUse.note(known.keyNo);
        return known;
      }
      const pending = asked.get(name) ?? ask(hash, name);
      asked.set(name, pending);
      return pending;
    },
    forget(projectNo) {
      callers.drop(({ project }) => project.no === projectNo);
      // A look-up under way may have read what was there before the change. Its project is not known yet.
      asked = new Map();
    },
  };
}

const BEARER_PATTERN = /^Bearer +([^ ]+)$/i;

function pinnedVersion({ project }: Caller): ApiVersion {
  if (!isApiVersion(project.apiVersion)) throw new Error(`unknown version ${project.apiVersion} in a row`);
  return project.apiVersion;
}

interface Memory<Value> {
  find(name: string, now: number): Value | undefined;
  /** `learnedAt` is when the look-up was sent, because the value may have changed since then. */
  keep(name: string, value: Value, learnedAt: number, keptMs: number): void;
  drop(isStale: (value: Value) => boolean): void;
}

/** Remembers the latest value of each name for a time. When it is full, the oldest names make room. */
function createMemory<Value>(entriesMax: number): Memory<Value> {
  const entries = new Map<string, { value: Value; until: number }>();
  return {
    find(name, now) {
      const entry = entries.get(name);
      return entry !== undefined && entry.until > now ? entry.value : undefined;
    },
    keep(name, value, learnedAt, keptMs) {
      entries.delete(name);
      entries.set(name, { value, until: learnedAt + keptMs });
      for (const [oldest, { until }] of entries) {
        if (until > learnedAt && entries.size <= entriesMax) break;
        entries.delete(oldest);
      }
    },
    drop(isStale) {
      for (const [name, { value }] of entries) if (isStale(value)) entries.delete(name);
    },
  };
}
