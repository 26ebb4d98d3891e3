import { describe, expect, test } from "bun:test";
import { runCommandLine } from "./command-line.ts";

/** `cron preview` needs neither a database, nor settings, nor keys, so the tests give it none. */
const preview = (...words: string[]) => runCommandLine(["cron", "preview", ...words], {});

/** The output with --json, and the exit code. */
async function ask(...words: string[]): Promise<{ code: number; json: unknown }> {
  const { code, stdout, stderr } = await preview(...words, "--json");
  expect(stderr).toBe("");
  return { code, json: JSON.parse(stdout) };
}

describe("cron preview", () => {
  test("prints the next five firings and the smallest gap", async () => {
    expect(await ask("--cron", "*/10 9 * * MON", "--from", "2026-11-01T00:00:00Z")).toEqual({
      code: 0,
      json: {
        firings: [
          "2026-11-02T09:00:00.000Z",
          "2026-11-02T09:10:00.000Z",
          "2026-11-02T09:20:00.000Z",
          "2026-11-02T09:30:00.000Z",
          "2026-11-02T09:40:00.000Z",
        ],
        min_gap_seconds: 600,
      },
    });
  });

  test("reads the expression in the zone, and fires what a clock change skips", async () => {
    const words = [
      "--cron",
      "30 2 * * *",
      "--timezone",
      "america/new_york",
      "--from",
      "2026-03-08T02:30:00-05:00",
    ];
    expect(await ask(...words, "--count", "1")).toEqual({
      code: 0,
      json: { firings: ["2026-03-09T06:30:00.000Z"], min_gap_seconds: 86_400 },
    });
    const { code, stdout } = await preview(...words.with(-1, "2026-03-08T00:00:00-05:00"), "--count", "2");
    expect(code).toBe(0);
    expect(stdout).toMatch(/2026-03-08T07:30:00.000Z +2026-03-08T03:30:00-04:00 +moved by a clock change\n/);
    expect(stdout).toMatch(/2026-03-09T06:30:00.000Z +2026-03-09T02:30:00-04:00\n/);
  });

  test("begins now, after an instant that it is given, and ends with the year 9999", async () => {
    const before = Date.now();
    const { json } = await ask("--cron", "* * * * *", "--count", "1000");
    const { firings } = json as { firings: string[] };
    expect(firings.length).toBe(1_000);
    expect(Date.parse(firings[0] ?? "")).toBeGreaterThan(before);
    expect(Date.parse(firings[0] ?? "")).toBeLessThanOrEqual(Date.now() + 60_000);
    expect(Date.parse(firings[999] ?? "") - Date.parse(firings[0] ?? "")).toBe(999 * 60_000);

    const words = ["--cron", "0 0 * * *", "--count", "3"];
    expect((await ask(...words, "--from", "9999-12-30T00:00:00Z")).json).toMatchObject({
      firings: ["9999-12-31T00:00:00.000Z"],
    });
  });

  test.each([
    ["invalid_cron_expression", ["--cron", "61 * * * *"]],
    ["invalid_cron_expression", ["--cron", ""]],
    ["invalid_cron_expression", ["--cron", "-1 * * * *"]],
    ["invalid_cron_expression", ["--cron", "* * * 30 2 *"]],
    ["invalid_cron_expression", ["--cron", "0 0 * * *", "--timezone", "PST"]],
    ["invalid_cron_expression", ["--cron", "0 0 * * *", "--timezone", "-08:00"]],
    ["invalid_cron_expression", ["--cron", "0 0 * * *", "--timezone", ""]],
    ["interval_too_short", ["--cron", "0,10 * * * * *"]],
    ["invalid_request", ["--cron", "0 0 * * *", "--count", "0"]],
    ["invalid_request", ["--cron", "0 0 * * *", "--count", "-1"]],
    ["invalid_request", ["--cron", "0 0 * * *", "--count", "1001"]],
    ["invalid_request", ["--cron", "0 0 * * *", "--from", "2026-11-01"]],
    ["invalid_request", ["--cron", "0 0 * * *", "--from", "yesterday"]],
    ["invalid_request", []],
  ])("refuses as %s: %p", async (code, words) => {
    expect(await ask(...words)).toEqual({ code: 1, json: { error: { code, message: expect.any(String) } } });
    const { code: exit, stdout, stderr } = await preview(...words);
    expect({ exit, stdout }).toEqual({ exit: 1, stdout: "" });
    expect(stderr).toStartWith(code);
    expect(stderr.trim().split("\n").length).toBe(1);
  });

  test("knows its options only", async () => {
    for (const words of [["--zone", "UTC"], ["--cron"], ["--cron", "--json"], ["surplus"]]) {
      const { code, stdout, stderr } = await preview("--cron", "0 0 * * *", ...words);
      expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
      expect(stderr).not.toBe("");
    }
  });
});
