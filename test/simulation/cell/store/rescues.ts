import { lostRows } from "./members.ts";
import { fromMs, type Instant, readInstant, toMs } from "./parameters.ts";
import { laneKey, type Place, type Statement, type Tables } from "./tables.ts";

/** The lists of attempts that their nodes will not settle (shared/store/cell/nodes.ts). */

const shardOf = (tables: Tables, row: Place) => tables.lanes.get(laneKey(row))?.shard ?? null;

/** An attempt may have begun after the statement that lists it. */
const elapsedMs = (now: Instant, startedAt: Instant | null): number =>
  toMs(Math.max(0, now - (startedAt as Instant)));

function overdueBefore(
  { clock_watch }: Tables,
  now: Instant,
  [beganBefore, , afterMs]: readonly unknown[],
): Instant {
  const after = fromMs(Number(afterMs));
  const isSteady = clock_watch !== null && clock_watch.steady_since <= now - after;
  return isSteady ? Math.min(readInstant(beganBefore), now - after) : Number.NEGATIVE_INFINITY;
}

export const listLost: Statement = (tables, { now }, values) =>
  lostRows(tables, tables.open_jobs.values(), overdueBefore(tables, now, values))
    .slice(0, Number(values[1]))
    .map(({ row, nodeDead }) => ({
      project_no: row.project_no,
      environment: row.environment,
      region: row.region,
      shard: shardOf(tables, row),
      job_id: row.id,
      run_id: row.run_id,
      attempt: row.attempt,
      attempts_allowed: row.attempts_allowed,
      elapsed_ms: elapsedMs(now, row.started_at),
      node_dead: nodeDead,
    }));

export const listLostDeliveries: Statement = (tables, { now }, values) =>
  lostRows(tables, tables.open_deliveries.values(), overdueBefore(tables, now, values))
    .slice(0, Number(values[1]))
    .map(({ row, nodeDead }) => ({
      project_no: row.project_no,
      environment: row.environment,
      region: row.region,
      shard: shardOf(tables, row),
      id: row.id,
      attempt_id: row.attempt_id,
      attempt: row.attempt,
      waits: row.waits,
      by_hand: row.by_hand,
      started_at: toMs(row.started_at as Instant),
      first_started_at: toMs(row.first_started_at as Instant),
      elapsed_ms: elapsedMs(now, row.started_at),
      node_dead: nodeDead,
    }));
