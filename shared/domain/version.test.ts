import { expect, test } from "bun:test";
import { ApiError } from "./errors.ts";
import { API_VERSIONS, isApiVersion, NEWEST_API_VERSION, versionOf } from "./version.ts";

test("a request uses the version that it names, else its project's", () => {
  expect(NEWEST_API_VERSION).toBe("2026-11-01");
  expect(API_VERSIONS.toSorted()).toEqual([...API_VERSIONS]);
  expect(versionOf(null, "2026-11-01")).toBe("2026-11-01");
  expect(versionOf("2026-11-01", "2026-11-01")).toBe("2026-11-01");
});

test("an unknown version is refused", () => {
  for (const text of ["", "2026-11-02", "2", "v2", "2026-11-01 "]) {
    expect(isApiVersion(text)).toBe(false);
    expect(() => versionOf(text, "2026-11-01")).toThrow(ApiError);
  }
});
