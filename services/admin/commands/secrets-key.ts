import { timestampOf } from "../../../shared/contract/timestamp.ts";
import type { Seal } from "../../../shared/platform/seal/seal.ts";
import {
  type CellKeys,
  lookAtKeys,
  loseKey,
  recordReseal,
  retireKeys,
} from "../../../shared/store/cell/secrets-keys.ts";
import { makeCause } from "../cause.ts";
import { type CellAccess, type Command, Refusal, table } from "../command.ts";
import { replacingUnreadable, resealing, type Walk, walkSealed } from "../sealed.ts";

/** Each walk visits all sealed values. The next walk finds those that were sealed with the old key behind it. */
const WALKS_MAX = 10;

export const secretsKeyList: Command = {
  usage: "",
  async run(_input, { db, findSeal }) {
    const { known } = await lookAtKeys(db);
    const seal = findSeal();
    const walk = seal && (await walkSealed(db, seal));
    const unused = seal?.fingerprints.filter((given) =>
      known.every(({ fingerprint }) => fingerprint !== given),
    );
    const keys = [
      ...known.map(({ fingerprint, seals, firstUsedAt, retiredAt }) => ({
        fingerprint,
        state: seals ? "seals" : retiredAt === null ? "opens" : "retired",
        first_used_at: timestampOf(firstUsedAt),
        retired_at: retiredAt === null ? null : timestampOf(retiredAt),
      })),
      ...(unused ?? []).map((fingerprint) => ({
        fingerprint,
        state: "unused",
        first_used_at: null,
        retired_at: null,
      })),
    ].map((key) => ({
      ...key,
      given_as: givenAs(key.fingerprint, seal),
      sealed_count: walk?.found.get(key.fingerprint) ?? null,
    }));
    return {
      json: { data: keys, unreadable_count: walk?.unreadable ?? null },
      text: [
        table([
          ["FINGERPRINT", "STATE", "FIRST USED", "RETIRED", "SEALED", "GIVEN HERE AS"],
          ...keys.map((key) => [
            key.fingerprint,
            key.state,
            key.first_used_at ?? "-",
            key.retired_at ?? "-",
            String(key.sealed_count ?? "unknown"),
            key.given_as ?? "-",
          ]),
        ]),
        ...(walk === null || walk.unreadable === 0 ? [] : [`no key given here opens ${walk.unreadable}`]),
      ].join("\n"),
    };
  },
};

/** Seals values under other keys at hand anew with the cell's sealing key. Then the others can be taken away. */
export const secretsKeyReseal: Command = {
  usage: "",
  async run(_input, { db, operator, findSeal }) {
    const { known } = await lookAtKeys(db);
    const seal = requireSeal({ findSeal });
    const [sealing] = seal.fingerprints;
    if (!known.some(({ seals, fingerprint }) => seals && fingerprint === sealing))
      throw new Refusal(`SECRETS_KEY (${sealing}) is not the key that this cell seals with`);
    let walk = await walkSealed(db, seal);
    let resealed = 0;
    if (countOthers(walk, sealing) > 0) await recordReseal(db, sealing, await makeCause({ db, operator }));
    for (let walks = 0; countOthers(walk, sealing) > 0 && walks < WALKS_MAX; walks++) {
      walk = await walkSealed(db, seal, resealing(seal));
      resealed += walk.replaced;
    }
    const left = countOthers(walk, sealing) + walk.unreadable;
    const retired = left === 0 ? await retireKeys(db, sealing, await makeCause({ db, operator })) : [];
    const lines = [
      `${resealed} resealed with ${sealing}`,
      `${left} left under another key`,
      ...retired.map((key) => `${key} is not needed any more`),
    ];
    return { json: { sealing, resealed, left, retired }, text: lines.join("\n"), isRefusal: left > 0 };
  },
};

/** Gives up a lost key: the cell takes SECRETS_KEY instead, and new secrets replace those that cannot be read. */
export const secretsKeyLost: Command = {
  usage: "FINGERPRINT[,...]   nobody has these keys: every secret under them is replaced by a new one",
  operand: "FINGERPRINT",
  async run({ operand }, { db, operator, findSeal }) {
    const { known } = await lookAtKeys(db);
    const seal = requireSeal({ findSeal });
    const [sealing] = seal.fingerprints;
    // If the key is lost while it is being changed, two keys are lost. One command has to give up both of them.
    const lost = operand.split(",");
    for (const name of lost) {
      if (!known.some(({ fingerprint }) => fingerprint === name))
        throw new Refusal(`this cell knows no key ${name}`);
      if (seal.fingerprints.includes(name)) throw new Refusal(`${name} is given here, so it is not lost`);
    }
    const missing = findMissing(known, seal).filter((fingerprint) => !lost.includes(fingerprint));
    if (missing.length > 0) throw new Refusal(`give ${missing.join(", ")} too, or it would count as lost`);
    for (const name of lost) await loseKey(db, name, sealing, await makeCause({ db, operator }));
    const { replaced } = await walkSealed(db, seal, replacingUnreadable(seal));
    return {
      json: { lost, sealing, replaced },
      text: `${replaced} secrets are new, and known to nobody until they are rotated`,
    };
  },
};

function requireSeal({ findSeal }: Pick<CellAccess, "findSeal">): Seal {
  const seal = findSeal();
  if (seal === null) throw new Refusal("SECRETS_KEY is not set");
  return seal;
}

function givenAs(fingerprint: string, seal: Seal | null): string | null {
  const place = seal?.fingerprints.indexOf(fingerprint) ?? -1;
  if (place < 0) return null;
  return place === 0 ? "SECRETS_KEY" : "SECRETS_KEY_FALLBACKS";
}

function findMissing(known: CellKeys["known"], { fingerprints }: Seal): string[] {
  return known.flatMap(({ fingerprint, isRetired }) =>
    isRetired || fingerprints.includes(fingerprint) ? [] : [fingerprint],
  );
}

function countOthers({ found }: Walk, sealing: string): number {
  return [...found].reduce((sum, [key, count]) => sum + (key === sealing ? 0 : count), 0);
}
