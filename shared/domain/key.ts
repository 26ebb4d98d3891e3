import type { Environment } from "./scope.ts";

/**
 * API keys: `svc_dev_` or `svc_live_`, 32 random base62 characters, and 6 check characters, by which most mistyped keys are
 * refused without a look-up.
 */

const KEY_PREFIXES: Readonly<Record<Environment, string>> = {
  development: "svc_dev_",
  production: "svc_live_",
};
const ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const SECRET_LENGTH = 32;
const CHECK_LENGTH = 6;
const KEY_PATTERN = /^(?:svc_dev_|svc_live_)[0-9A-Za-z]{38}$/;

/** Larger bytes are drawn again, because they would make the first characters of the alphabet likelier. */
const UNBIASED_BELOW = 256 - (256 % ALPHABET.length);
const BYTES_PER_DRAW = 64;
/** One draw is too short about once in 10^32 times. */
const DRAWS_MAX = 4;

/** A new key. `randomBytes` gives that many cryptographically random bytes. */
export function makeKey(environment: Environment, randomBytes: (count: number) => Uint8Array): string {
  let body = KEY_PREFIXES[environment];
  let missing = SECRET_LENGTH;
  for (let draw = 0; draw < DRAWS_MAX; draw++) {
    for (const byte of randomBytes(BYTES_PER_DRAW)) {
      if (byte >= UNBIASED_BELOW) continue;
      body += ALPHABET[byte % ALPHABET.length];
      missing--;
      if (missing === 0) return body + checkCharacters(body);
    }
  }
  throw new Error("The source of random bytes does not give random bytes.");
}

/** The environment of a key; null unless it is well-formed and its check characters fit. */
export function keyEnvironment(text: string): Environment | null {
  if (!KEY_PATTERN.test(text)) return null;
  const body = text.slice(0, -CHECK_LENGTH);
  if (text.slice(-CHECK_LENGTH) !== checkCharacters(body)) return null;
  return text.startsWith(KEY_PREFIXES.development) ? "development" : "production";
}

export const KEY_SCOPES = ["full", "read", "jobs"] as const;
export type KeyScope = (typeof KEY_SCOPES)[number];
export type Resource =
  | "jobs"
  | "bulk"
  | "flows"
  | "runs"
  | "schedules"
  | "project"
  | "hosts"
  | "webhooks"
  | "keys";
/** `identify` is access to the project that owns the key. */
export type Access = "identify" | "read" | "write";

/**
 * The one place that decides what a key may do. `read` reads everything but keys; `jobs` does everything with jobs and runs,
 * bulk operations and flow keys included, and nothing else. Every key may identify its project.
 */
export function isPermitted(scope: KeyScope, resource: Resource, access: Access): boolean {
  if (access === "identify") return true;
  switch (scope) {
    case "full":
      return true;
    case "read":
      return access === "read" && resource !== "keys";
    case "jobs":
      return resource === "jobs" || resource === "bulk" || resource === "flows" || resource === "runs";
  }
}

/** CRC-32 in base62. It detects every single wrong character and every burst of up to four. */
function checkCharacters(body: string): string {
  let rest = crc32(body);
  let text = "";
  for (let i = 0; i < CHECK_LENGTH; i++) {
    text = ALPHABET[rest % ALPHABET.length] + text;
    rest = Math.floor(rest / ALPHABET.length);
  }
  return text;
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, index) => {
  let remainder = index;
  for (let bit = 0; bit < 8; bit++) remainder = (remainder >>> 1) ^ (remainder & 1 ? 0xedb88320 : 0);
  return remainder;
});

/** CRC-32 as in ISO 3309, of ASCII text. */
function crc32(text: string): number {
  let remainder = 0xffffffff;
  for (let i = 0; i < text.length; i++) {
    remainder = (remainder >>> 8) ^ (CRC_TABLE[(remainder ^ text.charCodeAt(i)) & 255] ?? 0);
  }
  return (remainder ^ 0xffffffff) >>> 0;
}
