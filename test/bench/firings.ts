import { parseArgs } from "node:util";
import { shardOf } from "../../shared/domain/shard.ts";
import { SHARDS_PER_REGION, startCell } from "../support/cell.ts";
import { printTable, summarize } from "./harness/measure.ts";

/**
 * How long after their instant do all schedules of one second have their jobs? One worker, Postgres with fsync, and by
 * default 10,000 schedules of 20 projects. No job is delivered meanwhile, so that only firing is measured.
 */

const SEED = `
INSERT INTO schedules (next_run_at, project_no, base_seconds, cap_seconds, environment, shard, max_attempts, id, name,
                       cron, timezone, target_url, payload)
SELECT $1, p.no, 10, 3600, 1, p.shard, 5, gen_random_uuid(), n::text, '0 * * * *', 'Europe/Berlin',
       'https://example.com/hook', '{"text":"' || repeat('x', 180) || '"}'
  FROM unnest($2::int[], $3::int[]) AS p (no, shard), generate_series(1, $4::int) AS n`;

const LEAD_MS = 6_000;
const LOOK_EVERY_MS = 10;
const PROJECTS = 20;

const { values } = parseArgs({
  options: {
    schedules: { type: "string", default: "10000" },
    rounds: { type: "string", default: "5" },
  },
});
const scheduleCount = Number(values.schedules);
const allAfterMs: number[] = [];
const firstAfterMs: number[] = [];
for (let round = 0; round < Number(values.rounds); round++) {
  const { first, all } = await fireOnce();
  firstAfterMs.push(first);
  allAfterMs.push(all);
}
printTable(
  ["schedules of one second", "first job after, ms", "all jobs after, ms", "schedules/s"],
  [
    [
      String(scheduleCount),
      summarize(firstAfterMs),
      summarize(allAfterMs),
      summarize(allAfterMs.map((ms) => (scheduleCount / ms) * 1_000)),
    ],
  ],
);
process.exit(0);

async function fireOnce(): Promise<{ first: number; all: number }> {
  const cell = await startCell();
  const projects = await Promise.all(Array.from({ length: PROJECTS }, () => cell.addProject()));
  const instant = Math.ceil((cell.clock.now() + LEAD_MS) / 1_000) * 1_000;
  await cell.db.run("seed_schedules", SEED, [
    new Date(instant),
    projects.map(({ no }) => no),
    projects.map(({ no }) => shardOf(no, SHARDS_PER_REGION)),
    Math.ceil(scheduleCount / PROJECTS),
  ]);
  const worker = await cell.startWorker({ leaseMs: 30_000 });
  const countJobs = async () => {
    const [row] = await cell.db.run<{ count: string }>("count_jobs", "SELECT count(*) FROM firings", []);
    return Number(row?.count);
  };
  let first = Number.NaN;
  for (;;) {
    const count = await countJobs();
    const after = cell.clock.now() - instant;
    if (count > 0 && Number.isNaN(first)) first = after;
    if (count >= scheduleCount) {
      await worker.stop();
      await cell.stop();
      return { first, all: after };
    }
    await Bun.sleep(LOOK_EVERY_MS);
  }
}
