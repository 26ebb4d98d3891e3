import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from "node:crypto";
import { SECRETS_KEY_BYTES } from "./secrets-key.ts";

/** Keeps secrets unreadable at rest. One key seals and opens; former keys only open. */
export interface Seal {
  /** nonce (12 bytes) | ciphertext | tag (16 bytes); the same text never seals to the same bytes twice. */
  seal(text: string): Buffer;
  /** Throws if the bytes were altered or none of the keys has sealed them. */
  open(sealed: Buffer): string;
  /** The fingerprint of the key that sealed the bytes; null if it is none of the keys. */
  findKey(sealed: Buffer): string | null;
  /**
   * Derives 32 bytes for the use `label` from each key, the sealing one first. They reveal neither a key nor the bytes of
   * another label.
   */
  deriveKeys(label: string): [Uint8Array, ...Uint8Array[]];
  /** Fingerprints identify the keys and may be shown. The first is that of the sealing key. */
  fingerprints: readonly [string, ...string[]];
}

const CIPHER = "aes-256-gcm";
/** Random nonces of this size are safe for 2^32 seals under one key (NIST SP 800-38D, 8.3). */
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const DERIVED_KEY_BYTES = 32;
const FINGERPRINT_BYTES = 8;

/**
 * AES-256-GCM, with keys derived by HKDF with SHA-256 (RFC 5869). Sealed bytes do not name their key, so each key is tried, the
 * sealing one first; the tag tells whether it fits. A failed try costs as much as opening, but only while a key is changed.
 */
export function createSeal(key: Uint8Array, fallbacks: readonly Uint8Array[] = []): Seal {
  for (const { length } of [key, ...fallbacks])
    if (length !== SECRETS_KEY_BYTES) throw new Error(`a key of ${SECRETS_KEY_BYTES} bytes is needed`);

  const ofEach = <Made>(make: (key: Uint8Array) => Made): [Made, ...Made[]] => [
    make(key),
    ...fallbacks.map(make),
  ];
  const keys = ofEach((one) => ({ key: one, fingerprint: fingerprintOf(one) }));

  function findOpened(sealed: Buffer): { fingerprint: string; text: Buffer } | null {
    for (const { key: one, fingerprint } of keys) {
      const text = open(sealed, one);
      if (text !== null) return { fingerprint, text };
    }
    return null;
  }

  return {
    seal(text) {
      const nonce = randomBytes(NONCE_BYTES);
      const cipher = createCipheriv(CIPHER, key, nonce, { authTagLength: TAG_BYTES });
      return Buffer.concat([nonce, cipher.update(text, "utf8"), cipher.final(), cipher.getAuthTag()]);
    },
    open(sealed) {
      const opened = findOpened(sealed);
      if (opened === null) throw new Error("sealed with a key that is not given, or altered");
      return opened.text.toString("utf8");
    },
    findKey: (sealed) => findOpened(sealed)?.fingerprint ?? null,
    deriveKeys: (label) => ofEach((one) => deriveKey(one, label)),
    fingerprints: ofEach(fingerprintOf),
  };
}

/** Null if the bytes were altered or sealed with another key. */
function open(sealed: Buffer, key: Uint8Array): Buffer | null {
  if (sealed.length < NONCE_BYTES + TAG_BYTES) return null;
  const tagStart = sealed.length - TAG_BYTES;
  const nonce = sealed.subarray(0, NONCE_BYTES);
  const decipher = createDecipheriv(CIPHER, key, nonce, { authTagLength: TAG_BYTES });
  decipher.setAuthTag(sealed.subarray(tagStart));
  const text = decipher.update(sealed.subarray(NONCE_BYTES, tagStart));
  try {
    return Buffer.concat([text, decipher.final()]);
  } catch {
    return null;
  }
}

function deriveKey(key: Uint8Array, label: string): Uint8Array {
  return new Uint8Array(hkdfSync("sha256", key, "", `jobwheel ${label}`, DERIVED_KEY_BYTES));
}

function fingerprintOf(key: Uint8Array): string {
  return Buffer.from(deriveKey(key, "fingerprint")).toString("hex", 0, FINGERPRINT_BYTES);
}
