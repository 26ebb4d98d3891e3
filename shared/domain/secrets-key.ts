/**
 * The keys that a process must have to work in a cell. Fingerprints identify the keys and reveal nothing of them.
 */

/** A key that has sealed secrets of the cell. At most one key seals now; none does if the sealing key was declared lost. */
export interface KnownKey {
  fingerprint: string;
  seals: boolean;
  /** No secret is sealed with the key any more. */
  isRetired: boolean;
}

/** The fingerprints of the keys that a process was given. It seals with the first. */
export type GivenKeys = readonly [string, ...string[]];

export type KeyVerdict =
  | { kind: "present" }
  /** The process seals with a new key, which becomes the sealing key of the cell. */
  | { kind: "change" }
  /** Secrets of the cell are sealed with the missing keys. */
  | { kind: "refused"; missing: string[] };

/**
 * A process must have every key that may have sealed a secret, because it could not use a secret that it cannot open. So a
 * mistyped key is refused, and a new key is accepted only beside the old one, which must be given until no secret is sealed
 * with it any more.
 */
export function judgeKeys(known: readonly KnownKey[], given: GivenKeys): KeyVerdict {
  const missing = known.filter(({ fingerprint, isRetired }) => !isRetired && !given.includes(fingerprint));
  if (missing.length > 0) return { kind: "refused", missing: missing.map(({ fingerprint }) => fingerprint) };
  const isPresent = known.some(({ fingerprint, seals }) => seals && fingerprint === given[0]);
  return { kind: isPresent ? "present" : "change" };
}
