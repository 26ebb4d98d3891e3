import { expect, test } from "bun:test";
import fc from "fast-check";
import { isPermitted, KEY_SCOPES, keyEnvironment, makeKey, type Resource } from "./key.ts";

const random = (count: number) => crypto.getRandomValues(new Uint8Array(count));
const ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

test("a key tells its environment and passes its own check", () => {
  for (let i = 0; i < 200; i++) {
    const development = makeKey("development", random);
    expect(development).toMatch(/^svc_dev_[0-9A-Za-z]{38}$/);
    expect(keyEnvironment(development)).toBe("development");
    const production = makeKey("production", random);
    expect(production).toMatch(/^svc_live_[0-9A-Za-z]{38}$/);
    expect(keyEnvironment(production)).toBe("production");
  }
});

test("the check characters never change, because keys are in use for years", () => {
  const counting = (count: number) => Uint8Array.from({ length: count }, (_, index) => index);
  // The check is CRC-32 as in zlib, 3046893105, in base62.
  expect(makeKey("development", counting)).toBe("svc_dev_0123456789ABCDEFGHIJKLMNOPQRSTUV3KCS5B");
});

test("one wrong character, or two swapped, is noticed without a look-up", () => {
  const key = makeKey("production", random);
  for (let at = 0; at < key.length; at++) {
    for (const wrong of ALPHABET) {
      if (wrong !== key[at]) expect(keyEnvironment(key.slice(0, at) + wrong + key.slice(at + 1))).toBeNull();
    }
    const swapped = key.slice(0, at) + (key[at + 1] ?? "") + key[at] + key.slice(at + 2);
    if (swapped !== key) expect(keyEnvironment(swapped)).toBeNull();
  }
  // The check covers the environment, too.
  expect(keyEnvironment(key.replace("svc_live_", "svc_dev_"))).toBeNull();
});

test("a text that is no key is refused", () => {
  const key = makeKey("development", random);
  for (const text of [
    "",
    "svc_dev_",
    `${key}0`,
    ` ${key}`,
    `${key}\n`,
    key.toUpperCase(),
    key.slice(0, -1),
  ]) {
    expect(keyEnvironment(text)).toBeNull();
  }
  fc.assert(fc.property(fc.string(), (text) => expect(keyEnvironment(text)).toBeNull()));
});

test("every character is equally likely", () => {
  // All byte values, each once: 248 of them are used, so each character comes exactly four times.
  const counts = new Map<string, number>();
  for (let start = 0; start < 256; start += 32) {
    const bytes = (count: number) => Uint8Array.from({ length: count }, (_, index) => (start + index) % 256);
    const body = makeKey("development", bytes).slice(8, 40);
    const used = start === 224 ? body.slice(0, 24) : body;
    for (const character of used) counts.set(character, (counts.get(character) ?? 0) + 1);
  }
  expect([...counts.values()]).toEqual(new Array(62).fill(4));
});

test("a source without usable bytes makes no key and no endless loop", () => {
  expect(() => makeKey("development", (count) => new Uint8Array(count).fill(255))).toThrow();
});

test("a scope permits what its name says", () => {
  const resources: Resource[] = ["jobs", "runs", "schedules", "project", "webhooks"];
  const table = KEY_SCOPES.map((scope) => [
    scope,
    resources.filter((resource) => isPermitted(scope, resource, "read")),
    resources.filter((resource) => isPermitted(scope, resource, "write")),
  ]);
  expect(table).toEqual([
    ["full", resources, resources],
    ["read", resources, []],
    ["jobs", ["jobs", "runs"], ["jobs", "runs"]],
  ]);
  for (const scope of KEY_SCOPES) expect(isPermitted(scope, "project", "identify")).toBe(true);
});
