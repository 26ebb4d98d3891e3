/**
 * Which keys a process must have to work in a cell. Keys are known by their fingerprints; whoever has them knows nothing of
 * the keys.
 */

/** A key that has sealed secrets of the cell. One of them seals at present, unless that one was declared lost. */
export interface KnownKey {
  fingerprint: string;
  seals: boolean;
  /** Nothing is left under it. */
  isRetired: boolean;
}

/** What a process was given: it seals with the first of them. */
export type GivenKeys = readonly [string, ...string[]];

export type KeyVerdict =
  | { kind: "present" }
  /** The sealing key is another than the cell's: from now on it is the cell's. */
  | { kind: "change" }
  /** Without these what the cell has sealed cannot be opened. */
  | { kind: "refused"; missing: string[] };

/**
 * A process works only with every key under which something may be sealed: what it could not open it would serve as
 * broken. So a key that was mistyped is refused, a change of the key is one only beside the key before, and that one is
 * given until nothing is left under it.
 */
export function judgeKeys(known: readonly KnownKey[], given: GivenKeys): KeyVerdict {
  const missing = known.filter(({ fingerprint, isRetired }) => !isRetired && !given.includes(fingerprint));
  if (missing.length > 0) return { kind: "refused", missing: missing.map(({ fingerprint }) => fingerprint) };
  const isPresent = known.some(({ fingerprint, seals }) => seals && fingerprint === given[0]);
  return { kind: isPresent ? "present" : "change" };
}
