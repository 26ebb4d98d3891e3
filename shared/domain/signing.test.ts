import { expect, test } from "bun:test";
import { makeSecret, maskSecret, secretKeyBytes } from "./signing.ts";

const counting = (count: number) => Uint8Array.from({ length: count }, (_, index) => index);

test("a secret is whsec_ and the base64 of 32 bytes", () => {
  const secret = makeSecret(counting);
  expect(secret).toBe("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
  expect(secretKeyBytes(secret)).toEqual(counting(32));
});

test("a masked secret shows its last four characters only", () => {
  expect(maskSecret("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")).toBe("whsec_****Hh8=");
});
