import { expect, test } from "bun:test";
import fc from "fast-check";
import { type CursorBinding, decodeCursor, encodeCursor } from "./cursor.ts";
import { ApiError } from "./errors.ts";

const makeTag = (bytes: Uint8Array) => new Bun.CryptoHasher("sha256", "a key").update(bytes).digest();
const binding: CursorBinding = {
  route: "GET /v2/jobs",
  projectNo: 7,
  environment: "production",
  filters: { status: "failed", region: "us-east" },
};
const position = "job_01arz3ndektsv4rrffq69g5fav";
const cursor = encodeCursor(position, binding, makeTag);

test("a cursor gives back its position, whatever the order of the filters", () => {
  expect(decodeCursor(cursor, binding, makeTag)).toBe(position);
  const reordered = { ...binding, filters: { region: "us-east", status: "failed" } };
  expect(decodeCursor(cursor, reordered, makeTag)).toBe(position);
  const positions = fc.string({ unit: "grapheme", maxLength: 40 });
  fc.assert(
    fc.property(positions, (text) => {
      expect(decodeCursor(encodeCursor(text, binding, makeTag), binding, makeTag)).toBe(text);
    }),
  );
});

test("a cursor of another list is refused", () => {
  const others: CursorBinding[] = [
    { ...binding, route: "GET /v2/runs" },
    { ...binding, projectNo: 8 },
    { ...binding, environment: "development" },
    { ...binding, filters: {} },
    { ...binding, filters: { status: "failed" } },
    { ...binding, filters: { status: "failed", region: "us-west" } },
  ];
  for (const other of others) expect(() => decodeCursor(cursor, other, makeTag)).toThrow(ApiError);
  const otherKey = (bytes: Uint8Array) => new Bun.CryptoHasher("sha256", "another").update(bytes).digest();
  expect(() => decodeCursor(cursor, binding, otherKey)).toThrow(ApiError);
  expect(decodeCursor(cursor, binding, otherKey, makeTag)).toBe(position);
});

test("an altered cursor is refused, whichever character is altered, and so is another spelling of it", () => {
  const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  for (let at = 0; at < cursor.length; at++) {
    for (const wrong of alphabet) {
      if (wrong === cursor[at]) continue;
      expect(() =>
        decodeCursor(cursor.slice(0, at) + wrong + cursor.slice(at + 1), binding, makeTag),
      ).toThrow(ApiError);
    }
  }
  const bad = [
    "",
    "x",
    `${cursor}=`,
    `${cursor}A`,
    ` ${cursor}`,
    cursor.slice(0, -1),
    position,
    "A".repeat(10_000),
  ];
  for (const text of bad) expect(() => decodeCursor(text, binding, makeTag)).toThrow(ApiError);
});
