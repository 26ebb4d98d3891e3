import { expect, test } from "bun:test";
import { ApiError } from "./errors.ts";
import { filterOf, idFilterOf, instantFilterOf, parseQuery, readPage } from "./page.ts";

/** The param of the invalid_request that `act` throws. */
function paramOf(act: () => unknown): string | undefined {
  try {
    act();
  } catch (error) {
    if (error instanceof ApiError && error.code === "invalid_request") return error.param;
    throw error;
  }
  throw new Error("It was not refused.");
}

test("a page holds 1 to 200 items, 50 by default", () => {
  expect(readPage({}).pageSize).toBe(50);
  for (const size of [1, 50, 199, 200]) expect(readPage({ limit: String(size) }).pageSize).toBe(size);
  const bad = [
    "0",
    "201",
    "999",
    "1000",
    "-1",
    "+5",
    " 5",
    "5.0",
    "5.5",
    "1e2",
    "0x10",
    "007",
    "",
    "ten",
    "٣",
    "NaN",
  ];
  for (const text of bad) expect([text, paramOf(() => readPage({ limit: text }))]).toEqual([text, "limit"]);
});

test("unknown and repeated query parameters are refused by name", () => {
  const known = ["limit", "status"] as const;
  expect(parseQuery("", known)).toEqual({});
  expect(parseQuery("?", known)).toEqual({});
  expect(parseQuery("?limit=5&status=failed", known)).toEqual({ limit: "5", status: "failed" });
  expect(parseQuery("limit=%35", known)).toEqual({ limit: "5" });
  expect(paramOf(() => parseQuery("limit=5&Status=failed", known))).toBe("Status");
  expect(paramOf(() => parseQuery("limit=5&limit=5", known))).toBe("limit");
  expect(paramOf(() => parseQuery("status=&status=failed", known))).toBe("status");
  expect(paramOf(() => parseQuery("__proto__=1", known))).toBe("__proto__");
  expect(paramOf(() => parseQuery("a=1", []))).toBe("a");
});

test("the message names the parameter and the nearest one, and repeats no more of it than a message holds", () => {
  const known = ["limit", "cursor", "status", "created_after"] as const;
  const messageFor = (query: string, names: readonly string[] = known) => {
    try {
      parseQuery(query, names);
    } catch (error) {
      return (error as Error).message;
    }
    throw new Error("It was not refused.");
  };
  const all = "Known are limit, cursor, status, created_after.";
  expect(messageFor("staus=failed")).toBe(
    `"staus" is not a known query parameter. Did you mean status? ${all}`,
  );
  expect(messageFor("createdAfter=x")).toBe(
    `"createdAfter" is not a known query parameter. Did you mean created_after? ${all}`,
  );
  expect(messageFor("page=2")).toBe(`"page" is not a known query parameter. ${all}`);
  expect(messageFor("a=1", [])).toBe('"a" is not a known query parameter. This route takes none.');
  expect(messageFor("%1b[2J%e2%80%ae=1")).toBe(`"\ufffd[2J\ufffd" is not a known query parameter. ${all}`);
  expect(messageFor(`${"x".repeat(1_000_000)}=1`).length).toBeLessThan(200);
});

test("a filter is one of its words", () => {
  expect(filterOf(undefined, "status", ["failed"])).toBeNull();
  expect(filterOf("failed", "status", ["failed"])).toBe("failed");
  for (const text of ["", "Failed", "failed,queued"]) {
    expect(paramOf(() => filterOf(text, "status", ["failed", "queued"]))).toBe("status");
  }
});

test("a filter by an id that nothing can have is a list of nothing", () => {
  const id = "job_01arz3ndektsv4rrffq69g5fav";
  expect(idFilterOf(undefined, "job_")).toEqual({ kind: "any" });
  expect(idFilterOf(id, "job_")).toEqual({ kind: "one", id });
  for (const text of ["", "x", id.toUpperCase(), `${id} `])
    expect(idFilterOf(text, "job_")).toEqual({ kind: "none" });
  expect(idFilterOf(id, "sch_")).toEqual({ kind: "none" });
});

test("a filter by an instant takes what run_at takes, and drops what is below the millisecond", () => {
  expect(instantFilterOf(undefined, "created_after")).toBeNull();
  expect(instantFilterOf("2026-11-21T10:00:00.0079Z", "created_after")).toBe(
    Date.parse("2026-11-21T10:00:00.007Z"),
  );
  expect(instantFilterOf("2026-11-21T10:00:00+01:00", "created_after")).toBe(
    Date.parse("2026-11-21T09:00:00Z"),
  );
  for (const text of [
    "",
    "2026-11-21",
    "2026-11-21T10:00:00",
    "2026-11-21T10:00:00 01:00",
    "now",
    "1700000000",
  ]) {
    expect(paramOf(() => instantFilterOf(text, "created_after"))).toBe("created_after");
  }
});
