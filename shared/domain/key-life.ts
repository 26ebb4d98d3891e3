import { ApiError, invalidRequest, resourceNotFound, unauthorized } from "./errors.ts";
import type { KeyScope } from "./key.ts";

/** The rules by which a key makes, replaces and deletes keys, always in its own project and environment. */

/** The most keys of an environment that are neither revoked nor expired. */
export const KEYS_MAX = 100;
export const KEY_NAME_CHARACTERS_MAX = 100;
export const KEY_LIFE_HOURS_MAX = 87_600;
export const OVERLAP_HOURS_MAX = 72;
/** A day is time to replace a rotated key wherever it is used. */
export const OVERLAP_HOURS_DEFAULT = 24;

const HOUR_MS = 3_600_000;

/** A key that is neither revoked nor expired. Instants are milliseconds since 1970. */
export interface LivingKey {
  id: string;
  scope: KeyScope;
  /** Null if it does not expire. */
  expiresAt: number | null;
}

/** The facts that decide a change of an environment's keys. */
export interface KeyStanding<Key extends LivingKey = LivingKey> {
  /** All living keys of the environment. */
  keys: readonly Key[];
  /** The key that asks. A gateway may remember it for some seconds after its end. */
  callerId: string;
  now: number;
}

/** When a new key expires; null for never. `hours` is null if the request leaves it out. Throws ApiError. */
export function decideNewKey(standing: KeyStanding, hours: number | null): number | null {
  const caller = livingCaller(standing);
  checkRoom(standing, 1);
  if (hours === null) return caller.expiresAt;
  const expiresAt = standing.now + hours * HOUR_MS;
  if (outlives(expiresAt, caller)) {
    throw invalidRequest(
      "expires_in_hours must not go beyond the expiry of the key that asks.",
      "expires_in_hours",
    );
  }
  return expiresAt;
}

/** The living key of this id. Throws resource_not_found. */
export function requireKey<Key extends LivingKey>({ keys }: KeyStanding<Key>, id: string): Key {
  const key = keys.find((living) => living.id === id);
  if (key === undefined) throw resourceNotFound();
  return key;
}

/** When a replaced key expires. Its successor has the expiry that the key had before. Throws ApiError. */
export function decideKeyRotation(standing: KeyStanding, key: LivingKey, overlapHours: number): number {
  const caller = livingCaller(standing);
  if (outlives(key.expiresAt, caller)) {
    throw invalidRequest("A key cannot rotate one that outlives it: the successor would outlive it, too.");
  }
  checkRoom(standing, overlapHours === 0 ? 0 : 1);
  const overlapEndsAt = standing.now + overlapHours * HOUR_MS;
  return Math.min(key.expiresAt ?? overlapEndsAt, overlapEndsAt);
}

/** Throws ApiError for a key that is unknown, and for one that only an operator may revoke. */
export function decideKeyDeletion(standing: KeyStanding, id: string): void {
  const key = requireKey(standing, id);
  if (key.scope === "full" && !standing.keys.some((other) => other.scope === "full" && other.id !== id)) {
    throw invalidRequest("This is the environment's last key of scope full. Only an operator can revoke it.");
  }
}

function livingCaller({ keys, callerId }: KeyStanding): LivingKey {
  const caller = keys.find(({ id }) => id === callerId);
  if (caller === undefined) throw unauthorized();
  return caller;
}

function outlives(expiresAt: number | null, caller: LivingKey): boolean {
  return caller.expiresAt !== null && (expiresAt === null || expiresAt > caller.expiresAt);
}

function checkRoom({ keys }: KeyStanding, more: number): void {
  if (keys.length + more <= KEYS_MAX) return;
  throw new ApiError("plan_limit_exceeded", `The environment's limit of ${KEYS_MAX} keys is reached.`);
}
