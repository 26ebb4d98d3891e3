import { randomBytes } from "node:crypto";
import { makeSecret } from "../../shared/domain/signing.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import {
  listSealed,
  type RowKey,
  replaceSealed,
  SEALED_PLACES,
  type SealedPlace,
} from "../../shared/store/cell/sealed.ts";
import type { Database } from "../../shared/store/database/database.ts";

/** The findings of a walk over all sealed values of the cell. */
export interface Walk {
  /** The number of sealed values under each key at hand, by its fingerprint. */
  found: Map<string, number>;
  /** The number of values that none of the keys at hand opens. */
  unreadable: number;
  /** The number of values that the walk has sealed anew. */
  replaced: number;
}

/** Answers the new bytes of a sealed value; null if it stays. `key` opens the value; null if none at hand does. */
export type Change = (place: SealedPlace, sealed: Buffer, key: string | null) => Buffer | null;

/** Walks in pages. It notes no progress: after a crash it begins again, and finds less to do. */
export async function walkSealed(db: Database, seal: Seal, change: Change = () => null): Promise<Walk> {
  const walk: Walk = { found: new Map(seal.fingerprints.map((key) => [key, 0])), unreadable: 0, replaced: 0 };
  for (const place of SEALED_PLACES) {
    let after: RowKey | null = null;
    do {
      const { rows, next } = await listSealed(db, place, after);
      const changes = rows.flatMap(({ key: row, sealed }) => {
        const key = seal.findKey(sealed);
        if (key !== null) walk.found.set(key, (walk.found.get(key) ?? 0) + 1);
        else if (isPlain(place, sealed)) return [];
        else walk.unreadable++;
        const becomes = change(place, sealed, key);
        return becomes === null ? [] : [{ key: row, was: sealed, becomes }];
      });
      if (changes.length > 0) walk.replaced += await replaceSealed(db, place, changes);
      after = next;
    } while (after !== null);
  }
  return walk;
}

/** Seals values of other keys anew with the sealing key. */
export function resealing(seal: Seal): Change {
  const [sealing] = seal.fingerprints;
  return (_place, sealed, key) => (key === null || key === sealing ? null : seal.seal(seal.open(sealed)));
}

/** Replaces each secret that cannot be read with a new one that nobody knows. Kept answers that cannot be read stay. */
export function replacingUnreadable(seal: Seal): Change {
  return (place, _sealed, key) =>
    key === null && place !== "kept_answers" ? seal.seal(makeSecret(randomBytes)) : null;
}

/** Answers without a secret are kept as plain JSON. Sealed bytes are never valid JSON. */
function isPlain(place: SealedPlace, bytes: Buffer): boolean {
  if (place !== "kept_answers") return false;
  try {
    JSON.parse(bytes.toString("utf8"));
    return true;
  } catch {
    return false;
  }
}
