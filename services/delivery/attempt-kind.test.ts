import { expect, test } from "bun:test";
import { createLog, type ProcessLog } from "../../shared/platform/log.ts";
import { inBatches, noteCommitted } from "./attempt-kind.ts";

test("an error while a committed statement is noted is logged, and the statement is not run again", async () => {
  const errors: string[] = [];
  const log: ProcessLog = {
    ...createLog({ name: "test", level: "silent" }),
    error: (_, message) => void errors.push(message),
  };
  const runs: number[][] = [];
  const batcher = inBatches(async (items: number[]) => {
    runs.push(items);
    noteCommitted(log, () => {
      throw new Error("a bug");
    });
    return items;
  });
  expect(await Promise.all([batcher.submit(1), batcher.submit(2)])).toEqual([1, 2]);
  expect({ runs, errors }).toEqual({ runs: [[1, 2]], errors: ["settle.not_noted"] });
});
