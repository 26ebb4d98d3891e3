import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findSecretsKey, makeSecretsKey, parseSecretsKey, parseSecretsKeys } from "./secrets-key.ts";

const scratch = mkdtempSync(join(tmpdir(), "jobwheel-key-"));
afterAll(() => rmSync(scratch, { recursive: true }));

const BYTES = Uint8Array.from({ length: 32 }, (_, index) => 255 - index);

describe("a spelled key", () => {
  test.each(["hex", "base64", "base64url"] as const)("is read as %s", (encoding) => {
    expect(parseSecretsKey(Buffer.from(BYTES).toString(encoding))).toEqual(BYTES);
  });

  test.each([
    "",
    "secret",
    Buffer.alloc(31).toString("hex"),
    Buffer.alloc(33).toString("base64"),
    Buffer.alloc(16).toString("base64"),
    `${Buffer.alloc(31).toString("hex")}zz`,
    `${Buffer.alloc(32).toString("base64").slice(0, 42)}*=`,
  ])("is refused where it is not 32 bytes: %p", (text) => {
    expect(parseSecretsKey(text)).toBeNull();
  });
});

describe("a list of keys", () => {
  const [hex, base64] = [Buffer.from(BYTES).toString("hex"), Buffer.from(BYTES).toString("base64")];

  test("is read with commas between, each key in its own spelling", () => {
    expect(parseSecretsKeys(hex)).toEqual([BYTES]);
    expect(parseSecretsKeys(`${hex}, ${base64}`)).toEqual([BYTES, BYTES]);
  });

  test.each([`${hex},`, `,${hex}`, `${hex} ${base64}`, `${hex},secret`])("is refused whole: %p", (text) => {
    expect(parseSecretsKeys(text)).toBeNull();
  });
});

describe("the key of a data directory", () => {
  test("is made once, kept, and readable by its owner alone", () => {
    const dataDir = join(scratch, "a", "b");
    expect(findSecretsKey(dataDir)).toBeNull();
    const key = makeSecretsKey(dataDir);
    expect(key.length).toBe(32);
    expect(makeSecretsKey(dataDir)).toEqual(key);
    expect(findSecretsKey(dataDir)).toEqual(key);
    expect(statSync(join(dataDir, "secrets-key")).mode & 0o777).toBe(0o600);
    expect(readdirSync(dataDir)).toEqual(["secrets-key"]);
  });

  test("is the same for processes that make it at the same time", async () => {
    const dataDir = join(scratch, "together");
    const source = `
      import { makeSecretsKey } from ${JSON.stringify(join(import.meta.dir, "secrets-key.ts"))};
      console.log(makeSecretsKey(${JSON.stringify(dataDir)}).toBase64());`;
    const children = Array.from({ length: 6 }, () => Bun.spawn([process.execPath, "-e", source]));
    const keys = await Promise.all(children.map((child) => child.stdout.text()));
    expect(keys[0]?.trim().length).toBe(44);
    expect(new Set(keys).size).toBe(1);
  });

  test("is never replaced, however damaged, because secrets sealed with it could not be opened any more", () => {
    writeFileSync(join(scratch, "secrets-key"), "damaged");
    expect(() => makeSecretsKey(scratch)).toThrow("does not hold 32 bytes");
    expect(() => findSecretsKey(scratch)).toThrow("does not hold 32 bytes");
  });
});
