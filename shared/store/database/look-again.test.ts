import { describe, expect, test } from "bun:test";
import { StoreUnavailable } from "./database.ts";
import { lookAgain } from "./look-again.ts";

describe("a rare change that another writer was faster than", () => {
  test("is looked at and decided again, until what was read still holds", async () => {
    const answers = [null, null, "changed"];
    expect(await lookAgain("it", async () => answers.shift() ?? null)).toBe("changed");
  });

  test("is given up as unavailable after so many looks", async () => {
    let lookCount = 0;
    const changing = lookAgain("it", async () => {
      lookCount++;
      return null;
    });
    expect(await changing.catch((error) => error)).toBeInstanceOf(StoreUnavailable);
    expect(lookCount).toBe(50);
  });

  test("is not tried again where it is refused", async () => {
    let lookCount = 0;
    const refusal = new Error("refused");
    const changing = lookAgain("it", () => {
      lookCount++;
      return Promise.reject(refusal);
    });
    expect(await changing.catch((error) => error)).toBe(refusal);
    expect(lookCount).toBe(1);
  });
});
