import { base64Of, base64urlOf, bytesOfBase64 } from "./base64.ts";

/** 32 random bytes, or their base64 (`makeSealKey`, `openssl rand -base64 32`). */
export type SealKey = string | Uint8Array;

/** One key, opened for its purposes. WebCrypto keeps the bytes. */
export interface OpenedKey {
  /** Names the key in the payloads that it has sealed, and tells nothing about its bytes. */
  id: string;
  cipher: CryptoKey;
  /** Makes nonces that must come out the same again. */
  nonces: CryptoKey;
}

const KEY_BYTES = 32;
const ID_BYTES = 6;
const HMAC = { name: "HMAC", hash: "SHA-256" };

/** A new key as text. A holder of the key can read and make sealed payloads, so the service must not have it. */
export function makeSealKey(): string {
  return base64Of(crypto.getRandomValues(new Uint8Array(KEY_BYTES)));
}

/**
 * Throws TypeError at once for a value that is no key: otherwise payloads would leave unsealed if a variable is not
 * set. `option` is the option's name in the error.
 */
export function readSealKeys(option: string, given: readonly (SealKey | undefined)[]): Promise<OpenedKey>[] {
  const keys = given.map((key) => {
    const bytes = typeof key === "string" ? bytesOfBase64(key) : ArrayBuffer.isView(key) ? key : null;
    return bytes?.length === KEY_BYTES ? new Uint8Array(bytes) : null;
  });
  if (keys.length === 0 || keys.includes(null)) {
    throw new TypeError(
      `${option} needs ${KEY_BYTES} bytes or their base64, as makeSealKey() makes them. If it comes from an environment variable, set that variable first.`,
    );
  }
  return keys
    .filter((key) => key !== null)
    .map((key) => {
      const opened = openKey(key);
      // The first use of the key tells of a failure. Its promise may stay unawaited until then.
      opened.catch(() => undefined);
      return opened;
    });
}

/** Each purpose has a key of its own, derived by HMAC (RFC 5869, expand), so that none tells of another. */
async function openKey(key: Uint8Array<ArrayBuffer>): Promise<OpenedKey> {
  const parent = await crypto.subtle.importKey("raw", key, HMAC, false, ["sign"]);
  const derive = (purpose: string) =>
    crypto.subtle.sign("HMAC", parent, new TextEncoder().encode(`jobwheel sealed v1 ${purpose}\x01`));
  const [id, cipher, nonces] = await Promise.all([derive("id"), derive("cipher"), derive("nonces")]);
  return {
    id: base64urlOf(new Uint8Array(id).subarray(0, ID_BYTES)),
    cipher: await crypto.subtle.importKey("raw", cipher, "AES-GCM", false, ["encrypt", "decrypt"]),
    nonces: await crypto.subtle.importKey("raw", nonces, HMAC, false, ["sign"]),
  };
}
