import type { Flow } from "../../../shared/domain/flow-key.ts";
import { HOST_DOWN_ATTEMPTS_MIN } from "../../../shared/domain/host-state.ts";
import { createIdSource, idToUuid, SCHEDULE_PREFIX, uuidToId } from "../../../shared/domain/ids.ts";
import { nextInstant, readTimetable, spreadMsOf } from "../../../shared/domain/schedule.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import { hostOfTarget } from "../../../shared/domain/target.ts";
import {
  environmentCode,
  HOSTS_WATCHED,
  overlapCode,
  regionCode,
  retentionClassOf,
} from "../../../shared/store/database/codes.ts";
import { SHARDS_PER_REGION } from "./nodes.ts";
import type { Plan, PlannedProject } from "./plan.ts";
import type { PlannedFlow } from "./plan-flows.ts";
import type { Random } from "./random.ts";
import { addTimetable } from "./store/firings.ts";
import { findOrAddKey } from "./store/flow-keys.ts";
import { flowKeyOf } from "./store/gates.ts";
import { fromMs, type Instant, monthOf } from "./store/parameters.ts";
import { emptyTables, type Tables } from "./store/tables.ts";
import { targetUrl } from "./targets.ts";

const BOTH_TYPES = 0b11;
const NEVER: Instant = Number.NEGATIVE_INFINITY;
/** The last project asks only after everything has healed, so nothing from before stands in its way. */
export const QUIET_PROJECT: PlannedProject = {
  concurrency: 50,
  plan: "scale",
  defaultRegion: "us-east",
  runsLeft: null,
  endpoints: [],
  schedules: [],
};
/** Each endpoint has a host of its own, from this number on, so that its requests tell which one it is. */
const FIRST_ENDPOINT_HOST = 20;
const HOBBY_RUNS_MAX = 10_000;
const FAILING_MS = 40_000;
/** The clock was seen to leap just before, so that nothing is deleted by time for an hour. */
const LEAPT_BEFORE_MS = 60_000;

/** The rows with which a simulated cell begins. */
export function firstRows(plan: Plan, random: Random): Tables {
  const tables = emptyTables();
  const ids = createIdSource((count) => random.bytes(count));
  const newUuid = () => idToUuid(ids.next("", plan.beginsAt));
  const beginsAt = fromMs(plan.beginsAt);
  tables.clock_watch = { seen_at: beginsAt, steady_since: beginsAt - fromMs(LEAPT_BEFORE_MS) };
  for (const [index, project] of [...plan.projects, QUIET_PROJECT].entries()) {
    const no = index + 1;
    tables.projects.set(no, {
      ...{ no, id: newUuid(), plan: project.plan, default_region: regionCode(project.defaultRegion) },
      api_version: "2026-01-01",
      active_schedules: project.schedules.length,
      park_failing_hosts: null,
    });
    tables.flows.set(no, {
      ...{ project_no: no, concurrency: project.concurrency, in_use: [0, 0, 0, 0], returned: 0 },
      month: monthOf(beginsAt),
      month_runs: project.runsLeft === null ? 0 : HOBBY_RUNS_MAX - project.runsLeft,
      month_runs_max: project.runsLeft === null ? null : HOBBY_RUNS_MAX,
      held: false,
      retention_class: retentionClassOf(project.plan),
      subscriptions: subscriptionsOf(project),
      ...{ waiting: 0, last_class: 0, called_at: [NEVER, NEVER, NEVER, NEVER] },
    });
    addEndpoints(tables, no, project, newUuid);
    const flow = plan.flows.find(({ projectNo, isOfSchedules }) => projectNo === no && isOfSchedules);
    addSchedules(tables, no, project, newUuid, plan.beginsAt, flow);
  }
  for (const flow of plan.flows) if (flow.isPinned || flow.isOfSchedules) addFlowKey(tables, flow);
  if (plan.watched !== null) watchHosts(tables, plan.watched.projectNo, [plan.watched.host], beginsAt);
  return tables;
}

/** Makes a project park attempts at hosts that are down, and leaves these hosts one failure away from that state. */
export function watchHosts(
  tables: Tables,
  projectNo: number,
  hosts: readonly number[],
  beginsAt: Instant,
): void {
  const [project, flow] = [tables.projects.get(projectNo), tables.flows.get(projectNo)];
  if (project === undefined || flow === undefined) return;
  project.park_failing_hosts = true;
  flow.subscriptions |= HOSTS_WATCHED;
  const failing_since = beginsAt - fromMs(FAILING_MS);
  for (const environment of [0, 1])
    for (const number of hosts) {
      const host = hostOfTarget(targetUrl(number, "good"));
      const scope = { project_no: projectNo, environment };
      tables.target_hosts.set(flowKeyOf(scope, host), {
        ...{ ...scope, host, since: failing_since, failing_since, failures: HOST_DOWN_ATTEMPTS_MIN - 1 },
        ...{ next_probe_at: null, parked: 0, second: 0, started: 0, state: null, by: null },
        ...{ probe_seconds: 0, probe: null },
      });
    }
}

/** Adds a key that was given its limits before any job had it. */
function addFlowKey(tables: Tables, flow: PlannedFlow): void {
  const { projectNo, key, concurrency, rate, isPinned } = flow;
  const scope = { project_no: projectNo, environment: environmentCode(flow.environment) };
  const row = findOrAddKey(tables, scope, key);
  const limits = { rate_count: rate?.count ?? null, rate_seconds: rate?.per_seconds ?? null };
  Object.assign(row, { concurrency, ...limits, pinned: isPinned });
}

/** The flow that a job carries in its request. */
export const flowTerms = ({ key, hold, concurrency, rate, isPinned }: PlannedFlow): Flow => ({
  key,
  hold,
  ...(concurrency !== null && !isPinned && { concurrency }),
  ...(rate !== null && !isPinned && { rate }),
});

const subscriptionsOf = ({ endpoints }: PlannedProject): number =>
  endpoints.reduce((mask, { environment }) => mask | (BOTH_TYPES << (2 * environmentCode(environment))), 0);

function addEndpoints(tables: Tables, no: number, project: PlannedProject, newUuid: () => string): void {
  for (const { environment, habit } of project.endpoints) {
    const id = newUuid();
    tables.webhooks.set(id, {
      ...{
        id,
        project_no: no,
        environment: environmentCode(environment),
        url: targetUrl(FIRST_ENDPOINT_HOST + tables.webhooks.size, habit),
      },
      ...{ events: BOTH_TYPES, enabled: true, generation: 0, failing_since: null, succeeded_at: null },
      sealed_secret: Buffer.from("whsec_c2ltdWxhdGVk"),
    });
  }
}

function addSchedules(
  tables: Tables,
  no: number,
  project: PlannedProject,
  newUuid: () => string,
  beginsAt: number,
  flow: PlannedFlow | undefined,
): void {
  for (const [index, { seconds, overlap, spreadSeconds, habit }] of project.schedules.entries()) {
    const [id, cron] = [newUuid(), `*/${seconds} * * * * *`];
    const firstAt = nextInstant(readTimetable(cron, "UTC"), beginsAt);
    tables.schedules.set(id, {
      ...{
        id,
        project_no: no,
        environment: 1,
        shard: shardOf(no, SHARDS_PER_REGION),
        name: `schedule ${index}`,
      },
      ...{ cron, timezone: "UTC", target_url: targetUrl(0, habit), payload: "{}" },
      overlap: overlap === null ? null : overlapCode(overlap),
      spread_seconds: spreadSeconds,
      spread_ms: spreadMsOf(uuidToId(SCHEDULE_PREFIX, id), spreadSeconds),
      ...{ max_attempts: 2, base_seconds: 1, cap_seconds: 1, paused: false, revision: 0 },
      tags: index % 2 === 0 ? null : ["nightly", "a:b"],
      flow: flow === undefined ? null : flowTerms(flow),
      next_run_at: firstAt === null ? null : fromMs(firstAt),
    });
    const terms = { cron, timezone: "UTC", paused: false, superseded_at: null };
    addTimetable(tables, { ...terms, schedule_id: id, since: fromMs(beginsAt) });
  }
}
