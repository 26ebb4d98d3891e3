import { heapStats } from "bun:jsc";
import { describe, expect, test } from "bun:test";
import { createHash, randomBytes } from "node:crypto";
import { makeSecret } from "../../shared/domain/signing.ts";
import { signHeaders } from "./sign.ts";

// The example of the Standard Webhooks specification's reference libraries.
const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const ID = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const BODY = '{"test": 2432232314}';
const SENT_AT = 1_614_265_330_000;

describe("the signature headers", () => {
  test("agree with the published vector of Standard Webhooks", () => {
    const headers = signHeaders(BODY, { id: ID, sentAt: SENT_AT, secrets: [SECRET] });
    expect(headers["webhook-id"]).toBe(ID);
    expect(headers["webhook-timestamp"]).toBe("1614265330");
    expect(headers["webhook-signature"]).toBe("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
  });

  test("agree with an HMAC that is made step by step (RFC 2104), however often a secret has signed", () => {
    const secret = makeSecret((count) => new Uint8Array(count).fill(7));
    for (const body of ['{"größe":"🎡","n":9007199254740993}', "", "x".repeat(262_144), "\ud83c", "{}"]) {
      const headers = signHeaders(body, { id: "run_1", sentAt: 1_700_000_000_999, secrets: [secret] });
      expect(headers["webhook-timestamp"]).toBe("1700000000");
      expect(headers["service-signature"]).toBe(hmac(Buffer.from(secret), body).toString("hex"));
      const signed = hmac(new Uint8Array(32).fill(7), `run_1.1700000000.${body}`).toString("base64");
      expect(headers["webhook-signature"]).toBe(`v1,${signed}`);
    }
  });

  test("hold during a rotation one signature for each secret, and Service-Signature of the newest alone", () => {
    const [newest, old] = [1, 2].map((byte) => makeSecret((count) => new Uint8Array(count).fill(byte)));
    const secrets = [newest ?? "", old ?? ""];
    const both = signHeaders(BODY, { id: ID, sentAt: SENT_AT, secrets });
    const each = secrets.map((secret) => signHeaders(BODY, { id: ID, sentAt: SENT_AT, secrets: [secret] }));
    expect(both["webhook-signature"]).toBe(each.map((headers) => headers["webhook-signature"]).join(" "));
    expect(both["service-signature"]).toBe(each[0]?.["service-signature"] ?? "");
  });

  test("keep nothing of a secret", () => {
    const secretCount = 500;
    for (let count = 0; count < secretCount; count++)
      signHeaders(BODY, { id: ID, sentAt: SENT_AT, secrets: [makeSecret(randomBytes)] });
    Bun.gc(true);
    // The collector takes objects that are still on the stack for used.
    expect(heapStats().objectTypeCounts.CryptoHasher ?? 0).toBeLessThan(secretCount / 10);
  });

  test("are 64 lower-case hexadecimal characters and name nothing of the secret", () => {
    const headers = signHeaders(BODY, { id: ID, sentAt: SENT_AT, secrets: [SECRET] });
    expect(headers["service-signature"]).toMatch(/^[0-9a-f]{64}$/);
    expect(JSON.stringify(headers)).not.toContain(SECRET.slice("whsec_".length));
    expect(Object.keys(headers).length).toBe(4);
  });
});

/** HMAC-SHA256 from the hash alone, for keys of any length. */
function hmac(key: Uint8Array, text: string): Buffer {
  const blockBytes = 64;
  const block = new Uint8Array(blockBytes);
  block.set(key.length > blockBytes ? createHash("sha256").update(key).digest() : key);
  const inner = createHash("sha256")
    .update(block.map((byte) => byte ^ 0x36))
    .update(text)
    .digest();
  return createHash("sha256")
    .update(block.map((byte) => byte ^ 0x5c))
    .update(inner)
    .digest();
}
