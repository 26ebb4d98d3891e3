import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from "node:crypto";
import { SECRETS_KEY_BYTES } from "./secrets-key.ts";

/** What keeps secrets unreadable at rest. */
export interface Seal {
  /** nonce (12 bytes) | ciphertext | tag (16 bytes); the same text never seals to the same bytes twice. */
  seal(text: string): Buffer;
  /** Throws if the bytes were sealed with another key, or altered. */
  open(sealed: Buffer): string;
  /** 32 bytes for another use, a different one for each label, from which neither the key nor the others follow. */
  deriveKey(label: string): Uint8Array;
}

const CIPHER = "aes-256-gcm";
/** Random nonces of this size are safe for 2^32 seals under one key (NIST SP 800-38D, 8.3). */
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const DERIVED_KEY_BYTES = 32;

/** AES-256-GCM; derived keys by HKDF with SHA-256 (RFC 5869). */
export function createSeal(key: Uint8Array): Seal {
  if (key.length !== SECRETS_KEY_BYTES) throw new Error(`a key of ${SECRETS_KEY_BYTES} bytes is needed`);
  return {
    seal(text) {
      const nonce = randomBytes(NONCE_BYTES);
      const cipher = createCipheriv(CIPHER, key, nonce, { authTagLength: TAG_BYTES });
      return Buffer.concat([nonce, cipher.update(text, "utf8"), cipher.final(), cipher.getAuthTag()]);
    },
    open(sealed) {
      if (sealed.length < NONCE_BYTES + TAG_BYTES) throw new Error("too short to be a sealed secret");
      const tagStart = sealed.length - TAG_BYTES;
      const nonce = sealed.subarray(0, NONCE_BYTES);
      const decipher = createDecipheriv(CIPHER, key, nonce, { authTagLength: TAG_BYTES });
      decipher.setAuthTag(sealed.subarray(tagStart));
      const text = decipher.update(sealed.subarray(NONCE_BYTES, tagStart));
      return Buffer.concat([text, decipher.final()]).toString("utf8");
    },
    deriveKey(label) {
      return new Uint8Array(hkdfSync("sha256", key, "", `jobwheel ${label}`, DERIVED_KEY_BYTES));
    },
  };
}
