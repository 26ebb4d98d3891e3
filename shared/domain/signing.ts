/**
 * The secrets with which requests to customers are signed: `whsec_` and the base64 of 32 random bytes, the
 * format of Standard Webhooks. The HMAC itself is made where requests are sent.
 */

const SECRET_PREFIX = "whsec_";
const SECRET_BYTES = 32;
const VISIBLE_LENGTH = 4;

/** A new secret. `randomBytes` gives that many cryptographically random bytes. */
export function makeSecret(randomBytes: (count: number) => Uint8Array): string {
  return SECRET_PREFIX + randomBytes(SECRET_BYTES).toBase64();
}

/** The key of `webhook-signature`. `Service-Signature` is keyed with the whole text of the secret instead. */
export function secretKeyBytes(secret: string): Uint8Array {
  return Uint8Array.fromBase64(secret.slice(SECRET_PREFIX.length));
}

/** The masked secret, as all answers show it except those that reveal a new one. */
export function maskSecret(secret: string): string {
  return `${SECRET_PREFIX}****${secret.slice(-VISIBLE_LENGTH)}`;
}
