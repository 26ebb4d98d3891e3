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

/** What a walk over all that is sealed in the cell has met. */
export interface Walk {
  /** How much it found under each key at hand, by its fingerprint. */
  found: Map<string, number>;
  /** What none of the keys at hand opens. */
  unreadable: number;
  /** What is sealed with the sealing key since. */
  replaced: number;
}

/** What becomes of one that was found, null if it stays. `key` is null where no key at hand opens it. */
export type Change = (place: SealedPlace, sealed: Buffer, key: string | null) => Buffer | null;

/** In pages, and without a mark of how far it came: whoever is killed on the way begins again, and meets less. */
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

/** With the sealing key. */
export function resealing(seal: Seal): Change {
  const [sealing] = seal.fingerprints;
  return (_place, sealed, key) => (key === null || key === sealing ? null : seal.seal(seal.open(sealed)));
}

/** A new secret that nobody knows for each that cannot be read. An answer that cannot be is of no use to anybody. */
export function replacingUnreadable(seal: Seal): Change {
  return (place, _sealed, key) =>
    key === null && place !== "kept_answers" ? seal.seal(makeSecret(randomBytes)) : null;
}

/** Answers without a secret are kept as the JSON that they are, which sealed bytes never happen to be. */
function isPlain(place: SealedPlace, bytes: Buffer): boolean {
  if (place !== "kept_answers") return false;
  try {
    JSON.parse(bytes.toString("utf8"));
    return true;
  } catch {
    return false;
  }
}
