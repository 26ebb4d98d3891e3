import { expect, test } from "bun:test";
import { idToUuid } from "../../shared/domain/ids.ts";
import { flowClassCode, regionCode } from "../../shared/store/database/codes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { Sweeper } from "./sweeper.ts";
import { newJobId, owedOf, startShard } from "./test-support.ts";

const NOW = 1_000_000;
const LANES = 450;

test("a sweep asks about each remembered lane once, some hundred lanes in a statement", async () => {
  const { shard, lane } = startShard(NOW);
  for (let projectNo = 1; projectNo <= LANES; projectNo++)
    shard.learn(owedOf({ projectNo, dueAt: NOW + 60_000 }), NOW);
  const untold = { projectNo: LANES, id: newJobId(), dueAt: NOW };
  const asked: number[][] = [];
  const sweptAt = { id: null, due_at: NOW };
  const run = async (name: string, _text: string, [projects]: [string]) => {
    if (name !== "refill") return [sweptAt];
    const projectNos = projects.slice(1, -1).split(",").map(Number);
    asked.push(projectNos);
    if (!projectNos.includes(untold.projectNo)) return [sweptAt];
    const found = {
      project_no: untold.projectNo,
      flow_class: flowClassCode("production jobs"),
      region: regionCode("us-east"),
      ...{ shard: 3, id: idToUuid(untold.id), attempt: 1, due_at: untold.dueAt },
      ...{ concurrency: 500, is_keyed: false },
    };
    return [found, sweptAt];
  };
  const sweeper = new Sweeper({ run } as unknown as Database, { now: () => NOW, stop: () => undefined });

  expect(await sweeper.sweep([shard])).toBe(1);
  expect(asked.map(({ length }) => length)).toEqual([200, 200, 50]);
  expect(new Set(asked.flat()).size).toBe(LANES);
  expect(lane(untold.projectNo)?.find(untold.id)?.state).toBe("ready");
});
