import { expect, test } from "bun:test";
import { ApiError } from "./errors.ts";
import { checkFlow, flowKeyFilterOf, isFlowKey } from "./flow-key.ts";

const KEYS = ["a", "...", "a/b", "-", "A-Z_.:/@+z0", "x".repeat(64)];
const OTHERS = ["", ".", "..", "x".repeat(65), " a", "a b", "a\n", "ä", "a\0", "a%2Fb", "\\", "a#", "a?"];

function paramOf(act: () => unknown): string | undefined {
  try {
    act();
  } catch (error) {
    if (error instanceof ApiError && error.code === "invalid_request") return error.param;
    throw error;
  }
  throw new Error("It was not refused.");
}

test("a flow key is what a tag may be, but for the two words to which no path leads", () => {
  for (const key of KEYS) {
    expect(isFlowKey(key)).toBe(true);
    checkFlow({ key });
    expect(flowKeyFilterOf(key)).toBe(key);
  }
  for (const key of OTHERS) {
    expect(isFlowKey(key)).toBe(false);
    expect(paramOf(() => checkFlow({ key }))).toBe("flow.key");
    expect(paramOf(() => flowKeyFilterOf(key))).toBe("flow_key");
  }
  expect(flowKeyFilterOf(undefined)).toBeNull();
});
