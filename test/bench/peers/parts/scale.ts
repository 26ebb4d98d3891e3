import type { Wish } from "../products/product.ts";
import { type Stage, tomorrow } from "../stage.ts";
import { measureLateness } from "./lateness.ts";
import type { Extent, Part, Point } from "./part.ts";
import { measureStored } from "./stored.ts";

const PROJECTS = [1, 100, 1_000];
const SHARDS = [64, 512, 2_048];
/** While a table holds so few jobs, plans that were made for an empty table are still cheap with every product. */
const ANALYZED_AFTER = 5_000;

/** The cost of jobs that wait for tomorrow: other jobs are measured beside none, a tenth and all of them. */
export const waiting = {
  title: "jobs that wait",
  points: (extent) =>
    [0, extent.waiting / 10, extent.waiting].map((count) =>
      measureBoth(extent, count, `${count} waiting`, {}, (stage) => storeWaiting(stage, count)),
    ),
} satisfies Part;

async function storeWaiting(stage: Stage, count: number): Promise<number> {
  const first = Math.min(count, ANALYZED_AFTER);
  let made = 0;
  for (const wanted of [first, count - first]) {
    if (wanted > 0) made += await stage.loadBatches({ count: wanted }, tomorrow());
    await stage.analyze();
  }
  await stage.vacuumAndWrite();
  return made;
}

/** The cost of jobs that belong to many projects. */
export const projects = {
  title: "projects",
  isOurs: true,
  points: (extent) =>
    PROJECTS.map((count) => measureBoth(extent, count, `${count} projects`, { projects: count })),
} satisfies Part;

/** The cost of many shards in one worker. The jobs are those of one project, so that most shards are empty. */
export const shards = {
  title: "shards of one worker",
  isOurs: true,
  points: (extent) => SHARDS.map((count) => measureBoth(extent, count, `${count} shards`, { shards: count })),
} satisfies Part;

/**
 * Measures jobs that become due evenly at a low rate, and jobs that become due at once. At the low rate most of the cost
 * is work that a product also does without jobs. Under load most of the cost grows with the number of jobs.
 */
function measureBoth(
  { seconds, jobs }: Extent,
  x: number,
  what: string,
  wish: Wish,
  prepare: (stage: Stage) => Promise<number> = async () => 0,
): Point {
  return {
    wish: { ...wish, isPunctual: true },
    async measure(stage) {
      const left = await prepare(stage);
      const even = await measureLateness(stage, seconds, { what: `${what}, evenly due`, x }, left);
      return [even, await measureStored(stage, jobs, { what: `${what}, due at once`, x }, left)];
    },
  };
}
