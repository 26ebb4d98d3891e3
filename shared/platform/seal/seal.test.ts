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
    const [cursors, ...others] = seal.deriveKeys("cursors");
    expect([cursors.length, others.length]).toEqual([32, 0]);
    expect(createSeal(KEY).deriveKeys("cursors")).toEqual([cursors]);
    expect(seal.deriveKeys("others")).not.toEqual([cursors]);
    expect(createSeal(OTHER_KEY).deriveKeys("cursors")).not.toEqual([cursors]);
  });
});

describe("a seal with fallbacks", () => {
  const THIRD_KEY = new Uint8Array(32).fill(9);
  const rotating = createSeal(OTHER_KEY, [KEY, THIRD_KEY]);

  test("seals with its first key only, and a process with that key as a fallback opens it", () => {
    const sealed = rotating.seal("secret");
    expect(createSeal(OTHER_KEY).open(sealed)).toBe("secret");
    expect(createSeal(KEY, [OTHER_KEY]).open(sealed)).toBe("secret");
    expect(() => createSeal(KEY).open(sealed)).toThrow();
  });

  test("opens secrets sealed with any of its keys, and tells which key it was", () => {
    for (const key of [OTHER_KEY, KEY, THIRD_KEY]) {
      const sealed = createSeal(key).seal("secret");
      expect(rotating.open(sealed)).toBe("secret");
      expect(rotating.findKey(sealed)).toBe(createSeal(key).fingerprints[0]);
    }
    const foreign = createSeal(new Uint8Array(32)).seal("secret");
    expect(rotating.findKey(foreign)).toBeNull();
    expect(() => rotating.open(foreign)).toThrow("sealed with a key that is not given");
  });

  test("derives a key from each of its keys, the sealing one first", () => {
    expect(rotating.deriveKeys("cursors")).toEqual([
      ...createSeal(OTHER_KEY).deriveKeys("cursors"),
      ...createSeal(KEY).deriveKeys("cursors"),
      ...createSeal(THIRD_KEY).deriveKeys("cursors"),
    ]);
  });

  test("shows fingerprints that are the same everywhere and are no part of a key or of a derived key", () => {
    expect(rotating.fingerprints).toHaveLength(3);
    expect(new Set(rotating.fingerprints).size).toBe(3);
    const random = crypto.getRandomValues(new Uint8Array(32));
    const [fingerprint] = createSeal(random).fingerprints;
    expect(fingerprint).toMatch(/^[0-9a-f]{16}$/);
    expect(createSeal(Uint8Array.from(random)).fingerprints).toEqual([fingerprint]);
    const [cursors] = createSeal(random).deriveKeys("cursor");
    for (const bytes of [random, cursors])
      expect(Buffer.from(bytes).toString("hex")).not.toContain(fingerprint);
  });

  test("refuses a fallback that is not 32 bytes", () => {
    expect(() => createSeal(KEY, [new Uint8Array(31)])).toThrow("32 bytes");
  });
});
