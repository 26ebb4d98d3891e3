import { callLater, leaveGate } from "./flow-keys.ts";
import { flowKeyOf, gateOf } from "./gates.ts";
import { type Instant, monthOf, numbers, texts } from "./parameters.ts";
import { freeOf, runsLeft } from "./permits.ts";
import { owedColumns } from "./sweeps.ts";
import {
  type FlowRow,
  type LaneRow,
  laneKey,
  type OpenJobRow,
  type OwedRow,
  rowAt,
  type Statement,
  type Tables,
} from "./tables.ts";

/** Attempts that are set aside for their host, and come back (shared/store/queue/parking.ts, parked.ts). */

type Kind = "open_jobs" | "open_deliveries";
const isParked = (row: OwedRow) => row.due_at === null && row.node_id === null;

export const park =
  (kind: Kind): Statement =>
  (tables, _time, values) => {
    const [projects, environments, regions] = [numbers(values[0]), numbers(values[1]), numbers(values[2])];
    const [ids, attempts] = [texts(values[3]), numbers(values[4])];
    const [hosts, urls] = [texts(values[5]), texts(values[6])];
    return ids.flatMap((id, index) => {
      const place = {
        project_no: projects[index] as number,
        environment: environments[index] as number,
        region: regions[index] as number,
      };
      const row = rowAt<OwedRow>(tables[kind], place, id);
      if (row === undefined || row.attempt !== attempts[index] || row.due_at === null) return [];
      const is_parked = kind === "open_jobs" || endpointUrl(tables, id) === urls[index];
      if (is_parked) {
        if (isJob(tables, row)) leaveForHost(tables, row);
        row.parked_host = hosts[index] as string;
        row.parked_due_at ??= row.due_at;
        row.due_at = null;
      }
      return [{ n: index + 1, is_parked }];
    });
  };

const isJob = (tables: Tables, row: OwedRow): row is OpenJobRow => tables.open_jobs.get(row.id) === row;

/** A job that waits for a host leaves the queue of its flow key, so that others of the key can pass. */
function leaveForHost(tables: Tables, row: OpenJobRow): void {
  if (row.gate !== null) leaveGate(tables, row, { isOver: false });
  row.gate = null;
}

const endpointUrl = (tables: Tables, deliveryId: string): string | undefined =>
  tables.webhooks.get(tables.open_deliveries.get(deliveryId)?.webhook_id ?? "")?.url;

export const listParked =
  (kind: Kind): Statement =>
  (tables, _time, values) => {
    const hosts = new Set<string>();
    for (const row of tables[kind].values())
      if (isParked(row) && row.parked_host !== null) hosts.add(row.parked_host);
    return [...hosts]
      .sort()
      .slice(0, Number(values[0]))
      .map((parked_host) => ({ parked_host }));
  };

const byLane = (one: OwedRow, other: OwedRow): number =>
  one.project_no - other.project_no || one.region - other.region || one.environment - other.environment;
const byParkedTime = (one: OwedRow, other: OwedRow): number =>
  (one.parked_due_at ?? 0) - (other.parked_due_at ?? 0) || (one.id < other.id ? -1 : 1);

/** How many attempts a lane may get: as many as its project has permits and quota for, or `countMin`. */
function allowedOf(kind: Kind, flow: FlowRow, now: Instant, countMin: number): number {
  const left = kind === "open_jobs" ? runsLeft(flow, monthOf(now)) : null;
  return Math.max(Math.min(freeOf(flow), left ?? Number.POSITIVE_INFINITY), countMin);
}

export const release =
  (kind: Kind): Statement =>
  (tables, { now }, values) => {
    const [host, count, countMin] = [String(values[0]), Number(values[5]), Number(values[6])];
    const regions = numbers(values[1]).filter((region) => !tables.held_regions.has(region));
    const [projectNo, region, environment] = values.slice(2, 5).map(Number) as [number, number, number];
    const after = { project_no: projectNo, region, environment } as OwedRow;
    const parked = ([...tables[kind].values()] as OwedRow[]).filter(
      (row) => row.parked_host === host && isParked(row) && byLane(row, after) > 0,
    );
    const lanes = [...Map.groupBy(parked.sort(byLane), laneKey).values()].flatMap((rows) => {
      const [first] = rows;
      const flow = first && tables.flows.get(first.project_no);
      if (first === undefined || flow === undefined || flow.held || !regions.includes(first.region))
        return [];
      const allowed = allowedOf(kind, flow, now, countMin);
      return allowed > 0 ? [{ rows: rows.sort(byParkedTime), allowed }] : [];
    });
    const chosen = lanes.slice(0, count);
    const share = Math.ceil(count / chosen.length);
    const ranked = chosen.flatMap(({ rows, allowed }) =>
      rows.slice(0, Math.min(share, allowed)).map((row, rank) => ({ row, rank })),
    );
    const picked = ranked
      .sort((one, other) => one.rank - other.rank || byParkedTime(one.row, other.row))
      .slice(0, count)
      .map(({ row }) => row);
    return makeDue(tables, kind, ranked, picked, now);
  };

/** Makes attempts due a microsecond apart, in the order in which they came due. `ranked` are all candidates. */
function makeDue(
  tables: Tables,
  kind: Kind,
  ranked: readonly { row: OwedRow }[],
  picked: readonly OwedRow[],
  now: Instant,
): object[] {
  const order = ranked.map(({ row }) => row).sort(byParkedTime);
  for (const row of picked) {
    row.due_at = Math.max(now, row.parked_due_at ?? now) + order.indexOf(row) + 1;
    if (isJob(tables, row) && row.flow_key !== null && !row.has_place) row.gate = gateOf(row.flow_key);
  }
  const back = picked.filter((row) => isJob(tables, row)).filter(({ gate }) => gate !== null);
  for (const [first] of Map.groupBy(back, (row) => flowKeyOf(row, row.gate ?? "")).values())
    if (first?.gate) callLater(tables, first, first.gate);
  return picked
    .toSorted((one, other) => (one.due_at ?? 0) - (other.due_at ?? 0))
    .map((row) => owedColumns(kind, tables.lanes.get(laneKey(row)) as LaneRow, row));
}
