import { expect, test } from "bun:test";
import { StoreUnavailable } from "../../../shared/store/database/database.ts";
import { createStoreAccess } from "./store-access.ts";

const MAX = { ofProject: 2, ofAll: 8, large: 1 };

test("a project has two requests in Postgres, all projects have eight, and waiting projects take turns", async () => {
  const { enter } = createStoreAccess(MAX);
  const begun: number[] = [];
  const ends: (() => void)[] = [];
  const ask = (projectNo: number) =>
    enter(
      projectNo,
      () => true,
      () => {
        begun.push(projectNo);
        const { promise, resolve } = Promise.withResolvers<void>();
        ends.push(resolve);
        return promise;
      },
    );
  const asked = [1, 1, 1, 1, 1, 1, 2].map(ask);
  await Bun.sleep(0);
  expect(begun).toEqual([1, 1, 2]);
  asked.push(...[3, 3, 4, 4, 5, 5, 6].map(ask));
  await Bun.sleep(0);
  expect(begun).toEqual([1, 1, 2, 3, 3, 4, 4, 5]);
  expect(begun).toHaveLength(MAX.ofAll);
  // A place that becomes free goes to the next project in turn, not to the one with most requests waiting.
  for (let n = 0; n < asked.length; n++) {
    ends[n]?.();
    await Bun.sleep(0);
    const open = begun.slice(n + 1).filter((projectNo) => projectNo === 1).length;
    expect(open).toBeLessThanOrEqual(MAX.ofProject);
  }
  await Promise.all(asked);
  expect(begun.slice(MAX.ofAll, MAX.ofAll + 4)).toEqual([1, 5, 6, 1]);
});

test("a failed request frees its place, and nothing is done for a client that has gone", async () => {
  const { enter } = createStoreAccess(MAX);
  const failing = Array.from({ length: MAX.ofAll }, () =>
    enter(
      1,
      () => true,
      () => Promise.reject(new Error("it broke")),
    ).catch(() => "failed"),
  );
  expect(await Promise.all(failing)).toEqual(Array(MAX.ofAll).fill("failed"));
  let isDone = false;
  const gone = enter(
    1,
    () => false,
    async () => {
      isDone = true;
    },
  );
  expect(await gone.catch((error) => error)).toBeInstanceOf(StoreUnavailable);
  expect(isDone).toBe(false);
  expect(
    await enter(
      1,
      () => true,
      async () => "served",
    ),
  ).toBe("served");
});
