import { expect, test } from "bun:test";
import { createIdSource, JOB_PREFIX } from "../../../../shared/domain/ids.ts";
import type { Database } from "../../../../shared/store/database/database.ts";
import { createJobs, type JobToCreate } from "../../../../shared/store/resources/job-creation.ts";
import { firstRows } from "../first-rows.ts";
import { makePlan } from "../plan.ts";
import { Random } from "../random.ts";
import { answer } from "./model-statements.ts";
import { fromMs } from "./parameters.ts";

test("a lane gets the shard of its own job, although a project before it is gone", async () => {
  const random = new Random(1, "model");
  const plan = makePlan(1);
  const tables = firstRows(plan, random);
  tables.flows.delete(1);
  const now = fromMs(plan.beginsAt);
  const run: Database["run"] = async (name, _text, values) =>
    name === "create_jobs" ? (answer(tables, name, { now, clock: now }, values) as never[]) : [];
  const ids = createIdSource((count) => random.bytes(count));
  const jobs = [1, 2].map(
    (projectNo): JobToCreate => ({
      ...{ projectNo, id: ids.next(JOB_PREFIX, plan.beginsAt), environment: "production", region: "us-east" },
      ...{ shard: 10 + projectNo, targetUrl: "https://a.example/", payload: "{}", runAt: plan.beginsAt },
      ...{ maxAttempts: 1, baseSeconds: 1, capSeconds: 1, cause: null },
    }),
  );
  await createJobs({ run, drizzle: undefined as never } as unknown as Database, jobs, new Set());
  expect([...tables.lanes.values()].map(({ project_no, shard }) => [project_no, shard])).toEqual([[2, 12]]);
});
