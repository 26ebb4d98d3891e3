import { judgeKeys } from "../domain/secrets-key.ts";
import type { Log } from "../platform/log.ts";
import { createSeal, type Seal } from "../platform/seal/seal.ts";
import { type CellKeys, type KeyEntry, lookAtKeys, noteKeys } from "../store/cell/secrets-keys.ts";
import type { Database } from "../store/database/database.ts";
import { untilAnswered } from "./until-answered.ts";

/** The keys of a process. */
export interface GivenSecretsKeys {
  secretsKey: Uint8Array;
  secretsKeyFallbacks: readonly Uint8Array[];
}

/** The keys of this process do not open everything that the cell has sealed. */
export class WrongSecretsKey extends Error {}

/**
 * Whether a process makes secrets or only reads them. One that only reads may have been left behind when the key was
 * changed. It must not bring the old key back by starting again, or processes that have the new key alone could not
 * start.
 */
export type Use = "seals" | "opens";

/** Each start warns of a key that is older than this. */
const OLD_SECONDS = 365 * 86_400;

/**
 * The seal of this process, once the cell knows its key. The first process of a cell brings the key, and a later one
 * may bring another beside it. Throws WrongSecretsKey without having changed anything. One look is enough for the
 * cell's own key.
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

/** Calls openCellSeal. If the key is wrong, the process ends as for wrong settings. */
export async function openCellSealOrExit(
  parts: { db: Database; log: Log },
  given: GivenSecretsKeys,
  use: Use = "seals",
): Promise<Seal> {
  try {
    return await untilAnswered(parts.log, () => openCellSeal(parts, given, use));
  } catch (error) {
    if (!(error instanceof WrongSecretsKey)) throw error;
    process.stderr.write(`${error.message}\n`);
    process.exit(2);
  }
}

/** The entries that the cell must note for a process with these keys; none if it knows them. Throws WrongSecretsKey. */
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
  // This cell is older than the noting of keys: everything in it is sealed under its one key.
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
