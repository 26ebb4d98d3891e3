import { expect, test } from "bun:test";
import { until } from "../../shared/store/test-support.ts";
import { LONG_WAY_MS, ordinaryFirst } from "./ordinary-first.ts";

interface Item {
  projectNo: number;
  name: string;
}

/** The two ways, which note the items that they are asked about. The short way leaves the items that are `left`. */
function twoWays(left: (item: Item) => boolean) {
  const asked = { ordinary: [] as string[], long: [] as string[] };
  const { submit } = ordinaryFirst<Item, string>({
    async ordinary(items) {
      asked.ordinary.push(...items.map(({ name }) => name));
      return items.map((item) => (left(item) ? null : `ordinary ${item.name}`));
    },
    async long({ name }) {
      asked.long.push(name);
      return `long ${name}`;
    },
  });
  return { asked, submit: (projectNo: number, name: string) => submit({ projectNo, name }) };
}

test("what the statement for ordinary items leaves is asked of the one for all, item by item", async () => {
  const { asked, submit } = twoWays(({ name }) => name === "b");
  expect(await Promise.all([submit(1, "a"), submit(1, "b"), submit(2, "c")])).toEqual([
    "ordinary a",
    "long b",
    "ordinary c",
  ]);
  expect(asked).toEqual({ ordinary: ["a", "b", "c"], long: ["b"] });
  // One item of the project was ordinary, so the short way is asked about its next item as well.
  expect(await submit(1, "d")).toBe("ordinary d");
});

test("a project of which everything was left goes the other way for a while, and no other project does", async () => {
  let isLeft = true;
  const { asked, submit } = twoWays(({ projectNo }) => projectNo === 1 && isLeft);
  const leftAt = performance.now();
  expect(await submit(1, "a")).toBe("long a");
  isLeft = false;
  expect(await submit(2, "b")).toBe("ordinary b");
  const next = await submit(1, "c");
  if (performance.now() < leftAt + LONG_WAY_MS) {
    expect(next).toBe("long c");
    expect(asked.ordinary).toEqual(["a", "b"]);
  }
  await until(async () => (await submit(1, "d")) === "ordinary d");
  expect(performance.now() - leftAt).toBeGreaterThanOrEqual(LONG_WAY_MS);
});

test("an error of the statement for ordinary items is the item's own", async () => {
  const { submit } = ordinaryFirst<Item, string>({
    ordinary: async () => {
      throw new Error("refused");
    },
    long: async () => "long",
  });
  await expect(submit({ projectNo: 1, name: "a" })).rejects.toThrow("refused");
});
