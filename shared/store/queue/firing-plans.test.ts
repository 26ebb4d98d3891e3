import { afterAll, beforeAll, expect, test } from "bun:test";
import { idToUuid } from "../../domain/ids.ts";
import { REPLACED_JOBS_MAX } from "../../domain/schedule.ts";
import { explain, recordStatements } from "../plan-test-support.ts";
import { createSchedule } from "../resources/schedules.ts";
import { firingOf, keyCause, scheduleOf, takeShard } from "../schedule-test-support.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { fireBoundSchedules, fireSchedules } from "./firings.ts";
import { createShards } from "./shards.ts";

const SHARD = 3;
const TABLES = ["open_jobs", "firings", "schedules"];
const OPEN = 50_000;
/** The most pages that the look-ups of a firing and of its job read, whatever the tables hold. */
const PAGES_MAX = 300;
/** A canceled job is found, locked and deleted, each by a look-up of some pages, and written once. */
const PAGES_PER_CANCELED = 25;

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
  await createShards(store.db, ["us-east"], SHARD + 1);
});
afterAll(() => store.stop());

test("a firing finds the jobs of its schedule by their index, behind any number that have started, and reads no more of them than it cancels", async () => {
  const scope = { projectNo: await store.addProject(), environment: "production" as const };
  const held = await takeShard(store, SHARD);
  const schedules = (["skip", "replace"] as const).map((overlap) => scheduleOf(scope, SHARD, { overlap }));
  for (const schedule of schedules) {
    expect(await createSchedule(store.db, schedule, keyCause(), null)).toBe("created");
  }

  async function expectPlans(state: string, canceled: number): Promise<void> {
    for (const [index, fire] of [fireSchedules, fireBoundSchedules].entries()) {
      const schedule = schedules[index];
      if (schedule === undefined) throw new Error("there is no schedule");
      const { db, statements } = recordStatements(store.db);
      // A firing at an instant that is not due changes nothing. The statement is explained at an instant that is due.
      const firing = firingOf(schedule, held);
      await fire(db, [{ ...firing, nextRunAt: 0 }]);
      const [name = "", { text = "", values = [] } = {}] = [...statements][0] ?? [];
      const due = values.with(5, `{${new Date(firing.nextRunAt).toISOString()}}`);
      // These two values go in binary, and are replaced by texts.
      due.splice(9, 2, `{"${firing.cron}"}`, `{${firing.timezone}}`);
      for (const mode of ["force_generic_plan", "force_custom_plan"]) {
        const plan = await explain(store, { mode, text, values: due, tables: TABLES });
        const bound = PAGES_MAX + (name === "fire_schedules" ? 0 : canceled * PAGES_PER_CANCELED);
        expect({
          state,
          name,
          mode,
          whole: plan.wholeTables,
          isFew: plan.pagesRead < bound,
          pages: plan.pagesRead,
        }).toEqual({
          ...{ state, name, mode, whole: [], isFew: true, pages: plan.pagesRead },
        });
        expect(plan.indexes).toContain("open_jobs_overlap");
      }
    }
  }

  await expectPlans("empty", 0);
  for (const attempt of [2, 1]) {
    await store.query(
      `INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed, attempt, schedule_id)
       SELECT $1, 1, 0, gen_random_uuid(), now() - n * interval '1 ms', 5, $2, id
         FROM unnest($3::uuid[]) AS s (id) CROSS JOIN generate_series(1, $4::int) AS n`,
      [scope.projectNo, attempt, schedules.map(({ id }) => idToUuid(id)), OPEN],
    );
    const canceled = attempt === 1 ? REPLACED_JOBS_MAX : 0;
    await expectPlans("full", canceled);
    await store.query("VACUUM ANALYZE");
    await expectPlans("full and analyzed", canceled);
  }
});
