import { createHmac } from "node:crypto";
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
  const timestamp = Math.floor(sentAt / 1_000);
  const signatures = secrets.map((secret) => {
    const hmac = createHmac("sha256", secretKeyBytes(secret)).update(`${id}.${timestamp}.`).update(body);
    return `v1,${hmac.digest("base64")}`;
  });
  return {
    "service-signature": createHmac("sha256", secrets[0] ?? "")
      .update(body)
      .digest("hex"),
    "webhook-id": id,
    "webhook-timestamp": String(timestamp),
    "webhook-signature": signatures.join(" "),
  };
}
