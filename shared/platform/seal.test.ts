import { describe, expect, test } from "bun:test";
import { createSeal } from "./seal.ts";

const KEY = new Uint8Array(32).fill(7);
const OTHER_KEY = new Uint8Array(32).fill(8);
const seal = createSeal(KEY);

describe("a seal", () => {
  test.each(["whsec_AAAA", "", "Größe 🎡", "x".repeat(100_000)])("gives back what it sealed", (text) => {
    expect(seal.open(seal.seal(text))).toBe(text);
    expect(createSeal(KEY).open(seal.seal(text))).toBe(text);
  });

  test("holds a nonce, the ciphertext and a tag, and nothing of the text", () => {
    const text = "whsec_a-secret-that-must-not-show";
    const sealed = seal.seal(text);
    expect(sealed.length).toBe(12 + text.length + 16);
    expect(sealed.includes("secret")).toBe(false);
  });

  test("never seals the same text to the same bytes", () => {
    const sealed = Array.from({ length: 1_000 }, () => seal.seal("same").toString("hex"));
    expect(new Set(sealed).size).toBe(1_000);
  });

  test("is not opened by another key", () => {
    expect(() => createSeal(OTHER_KEY).open(seal.seal("secret"))).toThrow();
  });

  test("is not opened when any one byte was altered, cut off or added", () => {
    const sealed = seal.seal("secret");
    for (let index = 0; index < sealed.length; index++) {
      const altered = Buffer.from(sealed);
      altered[index] = (altered[index] ?? 0) ^ 1;
      expect(() => seal.open(altered)).toThrow();
      expect(() => seal.open(sealed.subarray(0, index))).toThrow();
    }
    expect(() => seal.open(Buffer.concat([sealed, Buffer.alloc(1)]))).toThrow();
  });

  test("refuses a key that is not 32 bytes", () => {
    expect(() => createSeal(new Uint8Array(16))).toThrow("32 bytes");
  });

  test("derives one key for each label, the same in every process with the same key", () => {
    const cursors = seal.deriveKey("cursors");
    expect(cursors.length).toBe(32);
    expect(createSeal(KEY).deriveKey("cursors")).toEqual(cursors);
    expect(seal.deriveKey("others")).not.toEqual(cursors);
    expect(createSeal(OTHER_KEY).deriveKey("cursors")).not.toEqual(cursors);
  });
});
