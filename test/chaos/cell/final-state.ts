import pg from "pg";
import { idToUuid } from "../../../shared/domain/ids.ts";
import { hostOfTarget } from "../../../shared/domain/target.ts";
import { JOB_END_TYPES } from "../../../shared/domain/webhook.ts";
import {
  environmentOf,
  eventTypeCode,
  eventTypesMask,
  waitReasonOf,
} from "../../../shared/store/database/codes.ts";
import type { TestStore } from "../../../shared/store/test-support.ts";
import { readFinalState } from "../../simulation/cell/final-state.ts";
import { READS_INSTANTS, readPostgres } from "../../simulation/cell/store/postgres-rows.ts";
import { emptyTables, type Tables } from "../../simulation/cell/store/tables.ts";
import type { DownTime, FinalGate, FinalState } from "../../support/history/history.ts";

/** Reads the final state of the database, in the form of a simulated cell's. */
export async function readCell(url: string, beganAt: number): Promise<{ final: FinalState; tables: Tables }> {
  const client = new pg.Client({ connectionString: url, options: "-c statement_timeout=60s" });
  await client.connect();
  try {
    await client.query(READS_INSTANTS);
    const query = (async (text: string) => (await client.query(text)).rows) as TestStore["query"];
    const insights = await readInsights(query);
    const gates = await readGates(query);
    const flows = await query<JobFlow>("SELECT id, flow FROM jobs WHERE flow IS NOT NULL");
    const hostEvents = await query<HostEvent>(HOST_EVENTS);
    const tables = tablesOf(await readPostgres({ query }));
    // Events of hosts are no ends of jobs, and their endpoint hears of nothing else: both are left out.
    for (const { id } of hostEvents) tables.events.delete(id);
    for (const { id, events } of tables.webhooks.values())
      if ((events & eventTypesMask(JOB_END_TYPES)) === 0) tables.webhooks.delete(id);
    for (const deliveries of [tables.open_deliveries, tables.ended_deliveries])
      for (const [id, { event_id }] of deliveries)
        if (hostEvents.some((event) => event.id === event_id)) deliveries.delete(id);
    const final = { ...readFinalState(tables, beganAt, Date.now()), insights, gates };
    const told = withGates(withRequests(final, tables), tables, flows);
    return { tables, final: { ...told, downTimes: downTimesOf(hostEvents) } };
  } finally {
    await client.end();
  }
}

/** The runs that insights tell, once they have caught up or ROLLED_UP_WITHIN_MS is over. */
async function readInsights(query: TestStore["query"]): Promise<NonNullable<FinalState["insights"]>> {
  const giveUpAt = performance.now() + ROLLED_UP_WITHIN_MS;
  for (;;) {
    const told = await query<{ project: number; counted: number; runs: number }>(TOLD);
    if (told.every(({ counted, runs }) => counted >= runs) || performance.now() > giveUpAt) return told;
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

/** The counts of gates and the jobs there, once all calls of gates are answered or CALLED_WITHIN_MS is over. */
async function readGates(query: TestStore["query"]): Promise<FinalGate[]> {
  const giveUpAt = performance.now() + CALLED_WITHIN_MS;
  for (;;) {
    const calls = await query("SELECT FROM gate_calls LIMIT 1");
    if (calls.length === 0 || performance.now() > giveUpAt) break;
    await Bun.sleep(LOOK_EVERY_MS);
  }
  const rows = await query<Omit<FinalGate, "environment"> & { environment: number }>(GATES);
  return rows.map((row) => ({ ...row, environment: environmentOf(row.environment) }));
}

/** Delivery nodes empty gate_calls twice a second. */
const CALLED_WITHIN_MS = 30_000;

const STANDS_THERE = "o.project_no = g.project_no AND o.environment = g.environment";
const GATES = `
SELECT project_no AS project, environment, flow_key AS gate, in_use AS "inUse",
       (SELECT count(*)::int FROM open_jobs o WHERE ${STANDS_THERE} AND o.flow_key = g.flow_key AND o.has_place) AS places,
       (SELECT sum(w)::int FROM unnest(waiting) w) AS waiting,
       (SELECT count(*)::int FROM open_jobs o WHERE ${STANDS_THERE} AND o.gate = 'k' || g.flow_key AND o.due_at IS NULL) AS parked
  FROM flow_keys g
 UNION ALL
SELECT project_no, environment, host, 0, 0, parked::int,
       (SELECT count(*)::int FROM open_jobs o WHERE ${STANDS_THERE} AND o.gate = 'h' || g.host AND o.due_at IS NULL)
  FROM target_hosts g`;

interface JobFlow {
  id: string;
  flow: { key: string; hold?: "attempt" | "job" };
}

/** Adds to each job its flow and its host, and to each run the reason for which it was held. */
function withGates(final: FinalState, tables: Tables, flows: readonly JobFlow[]): FinalState {
  const flowOf = new Map(flows.map(({ id, flow }) => [id, { hold: "attempt" as const, ...flow }]));
  return {
    ...final,
    jobs: final.jobs.map((job) => {
      const [id, flow] = [idToUuid(job.job), flowOf.get(idToUuid(job.job))];
      const host = hostOfTarget(tables.jobs.get(id)?.target_url ?? "");
      return { ...job, host, ...(flow !== undefined && { flow }) };
    }),
    runs: final.runs.map((run) => {
      const heldFor = tables.runs.get(idToUuid(run.run))?.held_for ?? null;
      return { ...run, heldFor: heldFor === null ? null : waitReasonOf(heldFor) };
    }),
  };
}

interface HostEvent {
  id: string;
  project: number;
  environment: number;
  isDown: boolean;
  host: string;
  since: number;
}

const HOST_EVENTS = `
SELECT id, project_no AS project, environment, type = ${eventTypeCode("host.down")} AS "isDown", data ->> 'host' AS host,
       (data ->> 'since')::float8 AS since
  FROM events WHERE type IN (${eventTypeCode("host.down")}, ${eventTypeCode("host.up")}) ORDER BY since`;

/** A host that went down is down until it comes up. */
const downTimesOf = (events: readonly HostEvent[]): DownTime[] =>
  events.flatMap(({ isDown, since, ...event }, index) => {
    const isOfHost = (other: HostEvent) => other.project === event.project && other.host === event.host;
    const up = events.slice(index + 1).find((other) => !other.isDown && isOfHost(other));
    const name = { project: event.project, environment: environmentOf(event.environment), gate: event.host };
    return isDown ? [{ ...name, downAt: since, upAt: up?.since ?? null }] : [];
  });

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
