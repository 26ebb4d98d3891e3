import pg from "pg";
import { idToUuid } from "../../../shared/domain/ids.ts";
import type { TestStore } from "../../../shared/store/test-support.ts";
import { readFinalState } from "../../simulation/cell/final-state.ts";
import { READS_INSTANTS, readPostgres } from "../../simulation/cell/store/postgres-rows.ts";
import { emptyTables, type Tables } from "../../simulation/cell/store/tables.ts";
import type { FinalState } from "../../support/history/history.ts";

/** What stands in the database at the end, read and told as of a simulated cell. */
export async function readCell(url: string, beganAt: number): Promise<{ final: FinalState; tables: Tables }> {
  const client = new pg.Client({ connectionString: url, options: "-c statement_timeout=60s" });
  await client.connect();
  try {
    await client.query(READS_INSTANTS);
    const query = (async (text: string) => (await client.query(text)).rows) as TestStore["query"];
    const insights = await readInsights(query);
    const tables = tablesOf(await readPostgres({ query }));
    const final = { ...readFinalState(tables, beganAt, Date.now()), insights };
    return { tables, final: withRequests(final, tables) };
  } finally {
    await client.end();
  }
}

/** What insights tell once they have caught up, or have not in all that time. */
async function readInsights(query: TestStore["query"]): Promise<NonNullable<FinalState["insights"]>> {
  const giveUpAt = performance.now() + ROLLED_UP_WITHIN_MS;
  for (;;) {
    const told = await query<{ project: number; counted: number; runs: number }>(TOLD);
    if (told.every(({ counted, runs }) => counted >= runs) || performance.now() > giveUpAt) return told;
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

/** The roll-up goes on every 5 s, and a worker that takes over its duty has to be found first. */
const ROLLED_UP_WITHIN_MS = 60_000;
const LOOK_EVERY_MS = 250;

/** The finest level holds an hour, and this cell is younger. */
const TOLD = `
SELECT f.project_no AS project, (SELECT count(*)::int FROM runs r WHERE r.project_no = f.project_no) AS runs,
       (SELECT coalesce(sum(succeeded + failed + timed_out), 0)::int FROM insights i
         WHERE i.project_no = f.project_no AND i.level = 0) AS counted
  FROM flows f ORDER BY 1`;

function tablesOf(rows: Record<string, unknown[]>): Tables {
  const of = (name: string) => (rows[name] ?? []) as Record<string, never>[];
  const byId = (name: string, key = "id") =>
    new Map(of(name).map((row) => [row[key] as never, row as never]));
  return {
    ...emptyTables(),
    projects: byId("projects", "no"),
    flows: byId("flows", "project_no"),
    jobs: byId("jobs"),
    open_jobs: byId("open_jobs"),
    ended_jobs: byId("ended_jobs"),
    runs: byId("runs"),
    webhooks: byId("webhooks"),
    events: byId("events"),
    open_deliveries: byId("open_deliveries"),
    ended_deliveries: byId("ended_deliveries"),
    schedules: byId("schedules"),
    usage_days: new Map(of("usage_days").map(({ key = "", runs = 0 }) => [key, runs])),
    // Two firings of one instant, if there were any, must both be seen.
    firings: new Map(of("firings").map((row, index) => [String(index), row as never])),
  };
}

/** The name of the request that asked for a job is the part of its target's token before the point. */
function withRequests(final: FinalState, tables: Tables): FinalState {
  const nameOf = (job: string) => tokenOf(tables.jobs.get(idToUuid(job))?.target_url).split(".")[0];
  return {
    ...final,
    jobs: final.jobs.map((job) => (job.schedule === null ? { ...job, request: nameOf(job.job) ?? "" } : job)),
  };
}

export const tokenOf = (url = "") => url.slice(url.lastIndexOf("/") + 1);
