import { secretKeyBytes } from "../../shared/domain/signing.ts";

/**
 * The signature headers of one request. `secrets` are the secrets in force, the newest first.
 * `Service-Signature` is the hexadecimal HMAC-SHA256 of the body under the newest secret's whole text; the `webhook-*`
 * headers follow Standard Webhooks 1.0, `id.timestamp.body` under the secret's bytes, one signature for each secret.
 */
export function signHeaders(
  body: string,
  { id, sentAt, secrets }: { id: string; sentAt: number; secrets: readonly string[] },
): Record<string, string> {
  const [newest] = secrets;
  if (newest === undefined) throw new Error("A request is signed with at least one secret.");
  const timestamp = Math.floor(sentAt / 1_000);
  const signed = `${id}.${timestamp}.${body}`;
  const signatures = secrets.map((secret) => `v1,${hmac(secretKeyBytes(secret), signed).digest("base64")}`);
  return {
    "service-signature": hmac(newest, body).digest("hex"),
    "webhook-id": id,
    "webhook-timestamp": String(timestamp),
    "webhook-signature": signatures.join(" "),
  };
}

const hmac = (key: string | Uint8Array, text: string) => new Bun.CryptoHasher("sha256", key).update(text);
