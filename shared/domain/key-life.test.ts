import { describe, expect, test } from "bun:test";
import { ApiError } from "./errors.ts";
import type { KeyScope } from "./key.ts";
import {
  decideKeyDeletion,
  decideKeyRotation,
  decideNewKey,
  KEYS_MAX,
  type KeyStanding,
  type LivingKey,
  requireKey,
} from "./key-life.ts";

const NOW = Date.parse("2026-11-21T06:00:00Z");
const HOUR_MS = 3_600_000;

const key = (id: string, scope: KeyScope = "full", expiresAt: number | null = null): LivingKey => ({
  id,
  scope,
  expiresAt,
});
const standing = (callerId: string, ...keys: LivingKey[]): KeyStanding => ({ keys, callerId, now: NOW });
const codeOf = (act: () => unknown): string => {
  try {
    act();
  } catch (error) {
    if (error instanceof ApiError) return `${error.code} ${error.param ?? ""}`.trim();
    throw error;
  }
  return "done";
};
const many = (count: number) => Array.from({ length: count }, (_, n) => key(`many-${n}`, "jobs"));

describe("a new key", () => {
  test("lives as long as it is asked to, and else as long as the key that asks", () => {
    expect(decideNewKey(standing("a", key("a")), 3)).toBe(NOW + 3 * HOUR_MS);
    expect(decideNewKey(standing("a", key("a")), null)).toBeNull();
    const limited = standing("a", key("a", "full", NOW + 2 * HOUR_MS));
    expect(decideNewKey(limited, null)).toBe(NOW + 2 * HOUR_MS);
    expect(decideNewKey(limited, 2)).toBe(NOW + 2 * HOUR_MS);
    expect(codeOf(() => decideNewKey(limited, 3))).toBe("invalid_request expires_in_hours");
  });

  test("is not made by a key that a gateway remembers although it has ended", () => {
    expect(codeOf(() => decideNewKey(standing("a", key("b")), 1))).toBe("unauthorized");
  });

  test("is refused beyond the limit of the environment", () => {
    expect(decideNewKey(standing("a", key("a"), ...many(KEYS_MAX - 2)), null)).toBeNull();
    expect(codeOf(() => decideNewKey(standing("a", key("a"), ...many(KEYS_MAX - 1)), null))).toBe(
      "plan_limit_exceeded",
    );
  });
});

describe("a key that is replaced", () => {
  const rotate = (all: KeyStanding, id: string, hours: number) =>
    decideKeyRotation(all, requireKey(all, id), hours);

  test("ends after the overlap, and no later than it was to", () => {
    const all = standing("a", key("a"), key("b", "jobs", NOW + HOUR_MS));
    expect(rotate(all, "a", 72)).toBe(NOW + 72 * HOUR_MS);
    expect(rotate(all, "a", 0)).toBe(NOW);
    expect(rotate(all, "b", 24)).toBe(NOW + HOUR_MS);
  });

  test("does not outlive the key that asks, whose holder sees the successor", () => {
    const all = standing("a", key("a", "full", NOW + 2 * HOUR_MS), key("b"), key("c", "full", NOW + HOUR_MS));
    expect(codeOf(() => rotate(all, "b", 0))).toBe("invalid_request");
    expect(rotate(all, "c", 0)).toBe(NOW);
    expect(rotate(all, "a", 0)).toBe(NOW);
  });

  test("counts towards the limit while it overlaps", () => {
    const all = standing("a", key("a"), ...many(KEYS_MAX - 1));
    expect(codeOf(() => rotate(all, "a", 1))).toBe("plan_limit_exceeded");
    expect(rotate(all, "a", 0)).toBe(NOW);
  });

  test("may be the environment's last one of scope full", () => {
    expect(rotate(standing("a", key("a")), "a", 0)).toBe(NOW);
  });

  test("is not found once it has ended, and is not replaced by one that has", () => {
    const all = standing("a", key("b"));
    expect(codeOf(() => rotate(all, "a", 1))).toBe("resource_not_found");
    expect(codeOf(() => rotate(all, "b", 1))).toBe("unauthorized");
  });
});

describe("a key is deleted", () => {
  test("unless it is the last one of scope full", () => {
    const all = standing("a", key("a"), key("b", "jobs"), key("c", "read"));
    expect(codeOf(() => decideKeyDeletion(all, "b"))).toBe("done");
    expect(codeOf(() => decideKeyDeletion(all, "a"))).toBe("invalid_request");
    const two = standing("a", key("a"), key("b", "full", NOW + 1));
    expect(codeOf(() => decideKeyDeletion(two, "a"))).toBe("done");
  });

  test("once", () => {
    expect(codeOf(() => decideKeyDeletion(standing("a", key("a")), "b"))).toBe("resource_not_found");
  });
});
