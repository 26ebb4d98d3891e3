import { keyHashOf } from "./gates.ts";
import { type Instant, instants, numbers, texts, toMs } from "./parameters.ts";
import { type LaneRow, laneKey, type OwedRow, rowAt, type Statement, type Tables } from "./tables.ts";

/** Sweeps and refills of lanes, and look-ups of attempts' URLs (shared/store/queue/sweep.ts, target-urls.ts). */

const LANE_ROOM_MIN = 64;
const LANE_ROOM_MAX = 2_000;
const FIRST_CLASS_OF_DELIVERIES = 2;

type Kind = "open_jobs" | "open_deliveries";
export const firstClassOf = (kind: Kind) => (kind === "open_jobs" ? 0 : FIRST_CLASS_OF_DELIVERIES);
const KINDS: readonly Kind[] = ["open_jobs", "open_deliveries"];

/** The oldest rows of a lane that are due between two instants. */
function dueRows(
  tables: Tables,
  kind: Kind,
  lane: LaneRow,
  { since, until, room }: { since: Instant; until: Instant; room: number },
): object[] {
  const flow = tables.flows.get(lane.project_no);
  if (flow === undefined) return [];
  const rows: OwedRow[] = [];
  for (const row of tables[kind].values()) {
    const { due_at } = row;
    if (due_at === null || due_at < since || due_at > until || laneKey(row) !== laneKey(lane)) continue;
    rows.push(row);
  }
  return rows
    .sort(byDueTime)
    .slice(0, room)
    .map((row) => ({ ...owedColumns(kind, lane, row), concurrency: flow.concurrency }));
}

const byDueTime = (one: OwedRow, other: OwedRow) =>
  (one.due_at ?? 0) - (other.due_at ?? 0) || (one.id < other.id ? -1 : 1);

export const owedColumns = (kind: Kind, lane: LaneRow, row: OwedRow) => ({
  project_no: row.project_no,
  flow_class: row.environment + firstClassOf(kind),
  region: row.region,
  shard: lane.shard,
  id: row.id,
  attempt: row.attempt,
  due_at: toMs(row.due_at ?? 0),
  key_hash: "flow_key" in row && typeof row.flow_key === "string" ? keyHashOf(row.flow_key) : null,
});

const sweptAt = (now: Instant) => ({ id: null, due_at: toMs(now) });

export const sweep: Statement = (tables, { now }, values) => {
  const [regions, shards, lastShards, sinces] = [
    numbers(values[0]),
    numbers(values[1]),
    numbers(values[2]),
    instants(values[3]),
  ];
  const [projects, exceptRegions, classes] = [numbers(values[4]), numbers(values[5]), numbers(values[6])];
  const except = new Set(projects.map((no, index) => `${no}/${exceptRegions[index]}/${classes[index]}`));
  const until = now + Number(values[7]) * 1_000;
  const rows = KINDS.flatMap((kind) =>
    [...tables.lanes.values()].flatMap((lane) => {
      if (kind === "open_deliveries" && !lane.has_deliveries) return [];
      if (except.has(`${lane.project_no}/${lane.region}/${lane.environment + firstClassOf(kind)}`)) return [];
      const range = shards.findIndex(
        (shard, index) =>
          regions[index] === lane.region &&
          lane.shard >= shard &&
          lane.shard <= (lastShards[index] as number),
      );
      if (range < 0) return [];
      const concurrency = tables.flows.get(lane.project_no)?.concurrency ?? 0;
      const room = Math.min(Math.max(2 * concurrency, LANE_ROOM_MIN), LANE_ROOM_MAX);
      return dueRows(tables, kind, lane, { since: sinces[range] as Instant, until, room });
    }),
  );
  return [...rows, sweptAt(now)];
};

export const refill: Statement = (tables, { now }, values) => {
  const [projects, regions, classes, sinces, rooms] = [
    numbers(values[0]),
    numbers(values[1]),
    numbers(values[2]),
    instants(values[3]),
    numbers(values[4]),
  ];
  const until = now + Number(values[5]) * 1_000;
  const rows = projects.flatMap((project_no, index) => {
    const flowClass = classes[index] as number;
    const kind: Kind = flowClass < FIRST_CLASS_OF_DELIVERIES ? "open_jobs" : "open_deliveries";
    const environment = flowClass - firstClassOf(kind);
    const lane = tables.lanes.get(laneKey({ project_no, region: regions[index] as number, environment }));
    if (lane === undefined) return [];
    const [since, room] = [sinces[index] as Instant, rooms[index] as number];
    return dueRows(tables, kind, lane, { since, until, room });
  });
  return [...rows, sweptAt(now)];
};

export const listShardsInUse: Statement = (tables, _time, values) => {
  const regions = numbers(values[0]);
  const found = new Map<string, object>();
  for (const { region, shard } of tables.lanes.values())
    if (regions.includes(region)) found.set(`${region}/${shard}`, { region, shard });
  return [...found.values()];
};

export const listEnvironmentsInUse: Statement = (tables, _time, values) => {
  const regions = numbers(values[0]);
  const found = new Map<string, object>();
  for (const { region, project_no, environment } of tables.lanes.values())
    if (regions.includes(region)) found.set(`${project_no}/${environment}`, { no: project_no, environment });
  return [...found.values()];
};

function readPlaces(values: readonly unknown[]) {
  const [projects, environments, regions] = [numbers(values[0]), numbers(values[1]), numbers(values[2])];
  return texts(values[3]).map((id, index) => ({
    id,
    project_no: projects[index] as number,
    environment: environments[index] as number,
    region: regions[index] as number,
  }));
}

export const findTargetUrls: Statement = (tables, _time, values) =>
  readPlaces(values).map((place) => ({ url: rowAt(tables.jobs, place, place.id)?.target_url ?? null }));

export const findEndpointUrls: Statement = (tables, _time, values) =>
  readPlaces(values).map((place) => {
    const row = rowAt(tables.open_deliveries, place, place.id);
    return { url: (row && tables.webhooks.get(row.webhook_id)?.url) ?? null };
  });
