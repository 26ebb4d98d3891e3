import { judgeKeys } from "../domain/secrets-key.ts";
import type { Log } from "../platform/log.ts";
import { createSeal, type Seal } from "../platform/seal/seal.ts";
import { type CellKeys, type KeyEntry, lookAtKeys, noteKeys } from "../store/cell/secrets-keys.ts";
import type { Database } from "../store/database/database.ts";

/** The keys of a process. */
export interface GivenSecretsKeys {
  secretsKey: Uint8Array;
  secretsKeyFallbacks: readonly Uint8Array[];
}

/** The keys of this process do not open what the cell has sealed. */
export class WrongSecretsKey extends Error {}

/**
 * Whether a process makes secrets or only reads them. One that only reads, and was left behind when the key was changed,
 * must not bring the key of before back by starting again: those who seal with the new one alone could start no more.
 */
export type Use = "seals" | "opens";

/** From then on it is said at each start. */
const OLD_SECONDS = 365 * 86_400;

/**
 * What this process seals and opens with, once the cell knows its key: the first process of a cell brings it, and later
 * another one beside it. Throws WrongSecretsKey, and nothing has changed. Where the key is the cell's that is one look.
 */
export async function openCellSeal(
  { db, log }: { db: Database; log: Log },
  { secretsKey, secretsKeyFallbacks }: GivenSecretsKeys,
  use: Use = "seals",
): Promise<Seal> {
  const seal = createSeal(secretsKey, secretsKeyFallbacks);
  const [fingerprint] = seal.fingerprints;
  const keys = await lookAtKeys(db);
  if (decideEntries(keys, seal, use).length > 0) {
    await noteKeys(db, (known) => decideEntries(known, seal, use));
    log.info({ fingerprint }, "secrets_key.noted");
  }
  const ageSeconds = keys.known.find((key) => key.fingerprint === fingerprint)?.ageSeconds ?? 0;
  if (ageSeconds > OLD_SECONDS) {
    log.warn({ fingerprint, days: Math.floor(ageSeconds / 86_400) }, "secrets_key.old");
  }
  return seal;
}

/** The same, or the end of the process as for wrong settings. */
export async function openCellSealOrExit(
  parts: { db: Database; log: Log },
  given: GivenSecretsKeys,
  use: Use = "seals",
): Promise<Seal> {
  try {
    return await openCellSeal(parts, given, use);
  } catch (error) {
    if (!(error instanceof WrongSecretsKey)) throw error;
    process.stderr.write(`${error.message}\n`);
    process.exit(2);
  }
}

/** What the cell has to note for a process with these keys, nothing if it knows. Throws WrongSecretsKey. */
export function decideEntries({ known, sample }: CellKeys, seal: Seal, use: Use): KeyEntry[] {
  const [sealing, ...fallbacks] = seal.fingerprints;
  const now: KeyEntry = { fingerprint: sealing, firstUsedAt: null };
  if (known.length > 0) {
    const verdict = judgeKeys(known, seal.fingerprints);
    switch (verdict.kind) {
      case "present":
        return [];
      case "change":
        return use === "opens" && known.some(({ fingerprint }) => fingerprint === sealing) ? [] : [now];
      case "refused":
        throw new WrongSecretsKey(refusal(sealing, known, verdict.missing));
    }
  }
  if (sample === null) return [now];
  // A cell from before keys were noted: whatever it has is under its one key.
  const found = seal.findKey(sample.sealed);
  if (found === null) {
    const tried = [sealing, ...fallbacks].join(", ");
    throw new WrongSecretsKey(
      `SECRETS_KEY is not the key of this cell: it does not open what is sealed there (tried ${tried})`,
    );
  }
  const first = { fingerprint: found, firstUsedAt: sample.oldestAt };
  return found === sealing ? [first] : [first, now];
}

function refusal(sealing: string, known: CellKeys["known"], missing: readonly string[]): string {
  const names = missing.join(", ");
  return known.some(({ fingerprint, seals }) => seals && fingerprint === sealing)
    ? `SECRETS_KEY_FALLBACKS must still hold ${names}: secrets may be sealed under it until \`admin secrets-key reseal\` has ended`
    : `SECRETS_KEY is not the key of this cell: it is ${sealing}, and secrets there are sealed under ${names}. To change the key, give that one in SECRETS_KEY_FALLBACKS`;
}
