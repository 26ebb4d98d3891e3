import { randomBytes } from "node:crypto";
import { existsSync, linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { syncFolder } from "../sync-folder.ts";

/** The key that seals secrets: SECRETS_KEY, or a file that the standalone makes for itself. */

export const SECRETS_KEY_BYTES = 32;

const HEX = /^[0-9a-f]{64}$/i;
const BASE64 = /^[A-Za-z0-9+/_-]{43}=?$/;

/** The 32 bytes that a text spells in hex, base64 or base64url; null for any other text. */
export function parseSecretsKey(text: string): Uint8Array | null {
  if (HEX.test(text)) return Uint8Array.from(Buffer.from(text, "hex"));
  // Buffer reads both alphabets of base64, with and without padding.
  return BASE64.test(text) ? Uint8Array.from(Buffer.from(text, "base64")) : null;
}

/** The keys that a comma list spells; null for any other text. */
export function parseSecretsKeys(text: string): Uint8Array[] | null {
  const keys = text.split(",").map((key) => parseSecretsKey(key.trim()));
  return keys.every((key) => key !== null) ? keys : null;
}

/** The key in the data directory, made if there is none. Processes that make one at the same time all get the same. */
export function makeSecretsKey(dataDir: string): Uint8Array {
  const path = join(dataDir, FILE);
  if (!existsSync(path)) {
    mkdirSync(dataDir, { recursive: true });
    const own = `${path}.${randomBytes(6).toString("hex")}`;
    writeFileSync(own, `${randomBytes(SECRETS_KEY_BYTES).toString("base64")}\n`, {
      mode: 0o600,
      flush: true,
    });
    try {
      linkSync(own, path);
    } catch (error) {
      // Unlike a rename, a link never replaces a key that another process has put there meanwhile.
      if (!existsSync(path)) throw error;
    } finally {
      rmSync(own);
    }
    // Secrets sealed with this key will soon be on disk, so a power cut must not lose its file name.
    syncFolder(dataDir);
  }
  return readFile(path);
}

/** The key in the data directory, null if there is none. */
export function findSecretsKey(dataDir: string): Uint8Array | null {
  const path = join(dataDir, FILE);
  return existsSync(path) ? readFile(path) : null;
}

const FILE = "secrets-key";

function readFile(path: string): Uint8Array {
  const key = parseSecretsKey(readFileSync(path, "utf8").trim());
  if (key === null) throw new Error(`${path} does not hold ${SECRETS_KEY_BYTES} bytes in base64 or hex`);
  return key;
}
