import { type FlowClass, type FlowKind, kindOf } from "../../domain/flow-class.ts";
import { DELIVERY_PREFIX, JOB_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { OwedAttempt, Placed } from "../../domain/owed.ts";
import type { ProjectNo, Region } from "../../domain/scope.ts";
import { flowClassCode, flowClassNamed, regionCode, regionOf } from "../database/codes.ts";
import { column, type Database, epochMs, instant, STATEMENT_TIMEOUT_MS } from "../database/database.ts";
import { keyHashOf } from "./flow-gates.ts";

/** The jobs, or the deliveries, of a project in one environment and one region. Lanes take turns. */
export interface Lane {
  projectNo: ProjectNo;
  flowClass: FlowClass;
  region: Region;
}

export interface SweepShard {
  region: Region;
  shard: number;
  /** The caller holds all that is due before this instant in the shard's lanes, except those in `except`. */
  sinceAt: number;
}

export interface RefillLane extends Lane {
  /** The caller holds everything in the lane that is due before this instant, as far as it knows. */
  sinceAt: number;
  /** The most rows that may come back. */
  room: number;
}

export interface SweptRow extends Placed<OwedAttempt> {
  /** The project's limit: a shard holds about twice as many rows of the lane. */
  concurrency: number;
}

export interface Swept {
  /** The oldest first within each lane. */
  rows: SweptRow[];
  /** The database's clock when the statement began. */
  sweptAt: number;
}

/**
 * How far behind the clock a row can appear. `due_at` is at least the clock at the start of the statement that writes
 * it, and that statement ends within its timeout. So after a sweep that found nothing due in a lane at instant T,
 * nothing due before T - SWEEP_LAG_MS appears there, except what the sweeper itself holds and gives back.
 */
export const SWEEP_LAG_MS = STATEMENT_TIMEOUT_MS + 1_000;

/** The most rows of a lane in one sweep, however high its project's limit. */
export const LANE_ROOM_MAX = 2_000;
/** The least room of a lane: enough that short attempts do not wait for the next refill. */
export const LANE_ROOM_MIN = 64;

/** How many rows of a lane are held at once: about twice what its project may have in flight. */
export function laneRoom(concurrency: number): number {
  return Math.min(Math.max(2 * concurrency, LANE_ROOM_MIN), LANE_ROOM_MAX);
}

/**
 * Reads what is owed and due within `aheadMs` in every lane of the given shards except `except`: the oldest rows of
 * each lane, up to its room. Lanes share no bound, so no backlog hides another project's jobs.
 *
 * Every index scan begins at a low-water mark. Entries of ended jobs stay in the index until a vacuum may remove them,
 * which an old snapshot can put off for hours; without the mark each sweep would step over all of them.
 */
export async function sweepShards(
  db: Database,
  shards: readonly SweepShard[],
  except: readonly Lane[],
  aheadMs: number,
): Promise<Swept> {
  const ranges = rangesOf(shards);
  return readSweep(
    await db.run<SweepRow>("sweep", SWEEP, [
      column(ranges.map(({ region }) => regionCode(region))),
      column(ranges.map(({ shard }) => shard)),
      column(ranges.map(({ lastShard }) => lastShard)),
      column(ranges.map(({ sinceAt }) => sinceInstant(sinceAt))),
      ...laneColumns(except),
      aheadMs,
    ]),
  );
}

/** Neighbouring shards that are swept from the same instant on. */
export interface ShardRange extends SweepShard {
  lastShard: number;
}

/**
 * The shards as few ranges: Postgres walks the lanes of a range at once. A worker that is alone has few ranges, since it
 * holds all shards and has swept nearly all of them at the same time.
 */
export function rangesOf(shards: readonly SweepShard[]): ShardRange[] {
  const ranges: ShardRange[] = [];
  for (const { region, shard, sinceAt } of shards.toSorted(byPlace)) {
    const last = ranges.at(-1);
    if (last?.region === region && last.lastShard === shard - 1 && last.sinceAt === sinceAt)
      last.lastShard = shard;
    else ranges.push({ region, shard, lastShard: shard, sinceAt });
  }
  return ranges;
}

const byPlace = (one: SweepShard, other: SweepShard) =>
  one.region === other.region ? one.shard - other.shard : one.region < other.region ? -1 : 1;

/** The shards of all lanes in these regions, also those that no worker has ever owned. */
export async function listShardsInUse(
  db: Database,
  regions: readonly Region[],
): Promise<{ region: Region; shard: number }[]> {
  const rows = await db.run<{ region: number; shard: number }>(
    "list_shards_in_use",
    "SELECT DISTINCT region, shard FROM lanes WHERE region = ANY ($1::smallint[])",
    [column(regions.map(regionCode))],
  );
  return rows.map(({ region, shard }) => ({ region: regionOf(region), shard }));
}

/** Reads on in the lanes that the caller knows, each from its own mark. */
export async function refillLanes(
  db: Database,
  lanes: readonly RefillLane[],
  aheadMs: number,
): Promise<Swept> {
  return readSweep(
    await db.run<SweepRow>("refill", REFILL, [
      ...laneColumns(lanes),
      column(lanes.map((lane) => sinceInstant(lane.sinceAt))),
      column(lanes.map((lane) => lane.room)),
      aheadMs,
    ]),
  );
}

const laneColumns = (lanes: readonly Lane[]) => [
  column(lanes.map((lane) => lane.projectNo)),
  column(lanes.map((lane) => regionCode(lane.region))),
  column(lanes.map((lane) => flowClassCode(lane.flowClass))),
];
const sinceInstant = (ms: number) => (ms === Number.NEGATIVE_INFINITY ? "-infinity" : instant(ms));

/** The table of what a kind owes, and how a row gets its flow class: classes are numbered by kind, then by environment. */
export interface Owed {
  table: "open_jobs" | "open_deliveries";
  id: "job_id" | "id";
  /** The number of the kind's first class. */
  firstClass: 0 | 2;
  /** The condition of lanes that can hold rows of this kind. */
  lanes: "true" | "l.has_deliveries";
  /** SQL: the hash of the flow key to whose job the table's row with this alias belongs; null if it has none. */
  keyHash(row: string): string;
}
export const OWED: Record<FlowKind, Owed> = {
  jobs: {
    ...{ table: "open_jobs", id: "job_id", firstClass: 0, lanes: "true" },
    keyHash: (row) => keyHashOf(`${row}.flow_key`),
  },
  webhooks: {
    ...{ table: "open_deliveries", id: "id", firstClass: 2, lanes: "l.has_deliveries" },
    keyHash: () => "NULL::int",
  },
};

const rowColumns = ({ firstClass }: Owed) =>
  `l.project_no, (l.environment + ${firstClass})::smallint AS flow_class, l.region, l.shard, o.id, o.attempt,
       ${epochMs("o.due_at")} AS due_at, f.concurrency, o.key_hash`;
const owedRows = (
  { table, id, keyHash }: Owed,
  since: string,
  ahead: string,
  room: string,
  columns = `o.${id} AS id, o.attempt, o.due_at, ${keyHash("o")} AS key_hash`,
) => `
  SELECT ${columns}
    FROM ${table} o
   WHERE o.project_no = l.project_no AND o.region = l.region AND o.environment = l.environment
     AND o.due_at >= ${since} AND o.due_at <= now() + ${ahead}::float8 * interval '1 ms'
   ORDER BY o.due_at
   LIMIT ${room}`;
const withSweptAt = (
  select: (owed: Owed) => string,
) => `${Object.values(OWED).map(select).join("\n UNION ALL")}
 UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, ${epochMs("now()")}, NULL, NULL`;

// Nearly all lanes are empty. Looking for one entry first reads only the index for them, which halves the cost of a sweep.
// OFFSET 0 keeps the planner to that order.
const SWEEP = withSweptAt(
  (owed) => `
SELECT ${rowColumns(owed)}
  FROM (SELECT l.*, s.since
          FROM unnest($1::smallint[], $2::smallint[], $3::smallint[], $4::timestamptz[]) AS s (region, shard, last_shard, since)
          JOIN lanes l ON l.region = s.region AND l.shard BETWEEN s.shard AND s.last_shard AND ${owed.lanes}
         CROSS JOIN LATERAL (${owedRows(owed, "s.since", "$8", "1", "")}) any_owed
         WHERE (l.project_no, l.region, l.environment + ${owed.firstClass})
               NOT IN (SELECT * FROM unnest($5::int[], $6::smallint[], $7::smallint[]))
        OFFSET 0) l
  JOIN flows f ON f.project_no = l.project_no
 CROSS JOIN LATERAL (${owedRows(owed, "l.since", "$8", `least(greatest(2 * f.concurrency, ${LANE_ROOM_MIN}), ${LANE_ROOM_MAX})`)}) o`,
);

const REFILL = withSweptAt(
  (owed) => `
SELECT ${rowColumns(owed)}
  FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::timestamptz[], $5::int[]) AS known (project_no, region, flow_class, since, room)
  JOIN lanes l ON l.project_no = known.project_no AND l.region = known.region AND l.environment = known.flow_class - ${owed.firstClass}
  JOIN flows f ON f.project_no = l.project_no
 CROSS JOIN LATERAL (${owedRows(owed, "known.since", "$6", "known.room")}) o`,
);

type SweepRow = Omit<OwedRow, "id"> & { id: string | null; concurrency: number };

function readSweep(rows: SweepRow[]): Swept {
  const swept: Swept = { rows: [], sweptAt: 0 };
  for (const row of rows) {
    if (row.id === null) {
      swept.sweptAt = row.due_at;
      continue;
    }
    swept.rows.push({ ...readOwed({ ...row, id: row.id }), concurrency: row.concurrency });
  }
  return swept;
}

/** An owed attempt as these statements answer it. */
export interface OwedRow {
  project_no: number;
  flow_class: number;
  region: number;
  shard: number;
  id: string;
  attempt: number;
  due_at: number;
  key_hash: number | null;
}

export function readOwed(row: OwedRow): Placed<OwedAttempt> {
  const flowClass = flowClassNamed(row.flow_class);
  return {
    projectNo: row.project_no,
    flowClass,
    region: regionOf(row.region),
    shard: row.shard,
    id: uuidToId(kindOf(flowClass) === "jobs" ? JOB_PREFIX : DELIVERY_PREFIX, row.id),
    attempt: row.attempt,
    dueAt: row.due_at,
    ...(row.key_hash === null ? {} : { isGated: true, keyHash: row.key_hash }),
  };
}
