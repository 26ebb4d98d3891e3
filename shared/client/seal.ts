import { base64urlOf, bytesOfBase64url } from "./base64.ts";
import type { OpenedKey } from "./seal-key.ts";

/**
 * A sealed payload: `{"$sealed": "v1.<key id>.<nonce>.<text and tag>"}`, the last two as base64url. AES-256-GCM (NIST SP
 * 800-38D) with a nonce of 96 bits and a tag of 128. `v1.<key id>.<path of the target>` is authenticated with it, so that
 * it opens nowhere else.
 */
export interface SealedPayload {
  $sealed: string;
}

/** The place where a payload is to be opened, and the requests that must seal it to the same bytes. */
export interface SealPlace {
  /** The path of the target's URL, without its query. */
  path: string;
  /** The same text, path and name give the same bytes. Without a name the nonce is random. */
  repeatable?: string | undefined;
}

export type UnsealReason = "not_sealed" | "unreadable_seal" | "unknown_key" | "wrong_path_or_altered";

/** A payload that cannot be opened. */
export class UnsealError extends Error {
  override name = "UnsealError";
  readonly reason: UnsealReason;

  constructor(reason: UnsealReason, message: string) {
    super(message);
    this.reason = reason;
  }
}

const VERSION = "v1";
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const encoder = new TextEncoder();

/** Seals the JSON text of a payload. */
export async function seal(text: string, place: SealPlace, key: OpenedKey): Promise<SealedPayload> {
  const data = encoder.encode(text);
  const iv = await nonceOf(data, place, key);
  const algorithm = { name: "AES-GCM", iv, additionalData: boundTo(key.id, place.path) };
  const sealed = new Uint8Array(await crypto.subtle.encrypt(algorithm, key.cipher, data));
  return { $sealed: [VERSION, key.id, base64urlOf(iv), base64urlOf(sealed)].join(".") };
}

/** Answers the JSON text of the payload. Throws UnsealError. */
export async function unseal(payload: unknown, path: string, keys: readonly OpenedKey[]): Promise<string> {
  if (!isSealed(payload)) {
    throw new UnsealError(
      "not_sealed",
      "The payload is not sealed, and this receiver takes sealed ones only.",
    );
  }
  const [version, keyId, nonce = "", sealed = "", ...rest] = payload.$sealed.split(".");
  const [iv, data] = [bytesOfBase64url(nonce), bytesOfBase64url(sealed)];
  const isWhole = iv?.length === NONCE_BYTES && data !== null && data.length >= TAG_BYTES;
  if (version !== VERSION || !isWhole || rest.length > 0) {
    throw new UnsealError("unreadable_seal", `The seal is none of version ${VERSION}.`);
  }
  const key = keys.find(({ id }) => id === keyId);
  if (key === undefined) {
    throw new UnsealError(
      "unknown_key",
      "The payload was sealed with a key that this receiver does not have.",
    );
  }
  try {
    const algorithm = { name: "AES-GCM", iv, additionalData: boundTo(key.id, path) };
    return new TextDecoder().decode(await crypto.subtle.decrypt(algorithm, key.cipher, data));
  } catch {
    throw new UnsealError(
      "wrong_path_or_altered",
      `The payload was sealed for another path than ${path}, or it was altered.`,
    );
  }
}

export function isSealed(payload: unknown): payload is SealedPayload {
  if (typeof payload !== "object" || payload === null) return false;
  return Object.keys(payload).join() === "$sealed" && typeof (payload as SealedPayload).$sealed === "string";
}

/**
 * A random nonce, or one made of everything that is sealed (synthetic, as in SIV: Rogaway and Shrimpton 2006): under one
 * key two different texts or paths never share it, other than by the chance that random ones have.
 */
async function nonceOf(
  data: Uint8Array<ArrayBuffer>,
  { path, repeatable }: SealPlace,
  key: OpenedKey,
): Promise<Uint8Array<ArrayBuffer>> {
  if (repeatable === undefined) return crypto.getRandomValues(new Uint8Array(NONCE_BYTES));
  const head = encoder.encode(JSON.stringify([repeatable, path]));
  const all = new Uint8Array(head.length + data.length);
  all.set(head);
  all.set(data, head.length);
  const made = await crypto.subtle.sign("HMAC", key.nonces, all);
  return new Uint8Array(made).slice(0, NONCE_BYTES);
}

function boundTo(keyId: string, path: string): Uint8Array<ArrayBuffer> {
  return encoder.encode(`${VERSION}.${keyId}.${path}`);
}
