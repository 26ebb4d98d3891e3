import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createMigratedDatabase, type TestDatabase } from "../../test/support/postgres.ts";
import { runCommandLine } from "./command-line.ts";

let database: TestDatabase;
beforeAll(async () => {
  database = await createMigratedDatabase("host");
});
afterAll(() => database.drop());

const admin = (...words: string[]) => runCommandLine(words, { DATABASE_URL: database.url });

async function ask<T = object>(...words: string[]): Promise<T> {
  const { code, stdout, stderr } = await admin(...words, "--json");
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return JSON.parse(stdout) as T;
}

describe("admin host", () => {
  test("limits a host under the name that targets are compared by, lists it, and clears it", async () => {
    const limited = await ask("host", "limit", "API.Example.com.", "--requests", "0");
    expect(limited).toEqual({ host: "api.example.com", requests: 0 });
    const { data } = await ask<{ data: object[] }>("host", "list");
    expect(data).toEqual([{ host: "api.example.com", requests: 0, limited_at: expect.any(String) }]);
    expect((await admin("host", "list")).stdout).toContain("api.example.com");
    expect(await ask("host", "clear", "api.EXAMPLE.com")).toEqual({
      host: "api.example.com",
      requests: null,
    });
    expect(await ask("host", "list")).toEqual({ data: [] });
  });

  test.each([
    [["limit", "https://example.com", "--requests", "5"], "HOST must be a host alone"],
    [["limit", "example.com"], "--requests is required"],
    [["limit", "example.com", "--requests", "2001"], "--requests must be a whole number from 0 to 2000"],
    [["clear", "example.com"], "example.com is not limited"],
  ])("refuses %p and changes nothing", async (words, message) => {
    const { code, stderr } = await admin("host", ...words);
    expect(code).toBe(1);
    expect(stderr).toContain(message);
    expect(await ask("host", "list")).toEqual({ data: [] });
  });
});
