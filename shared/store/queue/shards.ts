import type { Region } from "../../domain/scope.ts";
import { regionCode, regionOf } from "../database/codes.ts";
import { column, type Database, REAL_NOW } from "../database/database.ts";

export interface ShardName {
  region: Region;
  shard: number;
}

/** A shard that this process may act for while its lease lasts. */
export interface HeldShard extends ShardName {
  epoch: number;
}

export interface ShardRow extends HeldShard {
  /** The owner's node id; null if the shard has no owner. */
  owner: number | null;
  /** The rest of the lease; 0 if it is over or its owner is proved dead. */
  leaseLeftMs: number;
}

/** Adds the rows of missing shards. Rows are never removed: shards beyond a smaller setting are still owned. */
export async function createShards(
  db: Database,
  regions: readonly Region[],
  shardsPerRegion: number,
): Promise<void> {
  await db.run("create_shards", CREATE, [column(regions.map(regionCode)), shardsPerRegion]);
}

const CREATE = `
INSERT INTO shards (region, shard)
SELECT r.region, n FROM unnest($1::smallint[]) AS r (region), generate_series(0, $2::int - 1) AS n
 ORDER BY 1, 2
    ON CONFLICT DO NOTHING`;

/** The shards whose lease is over or whose owner is proved dead. */
export async function listFreeShards(db: Database, regions: readonly Region[]): Promise<ShardName[]> {
  const rows = await db.run<Pick<Row, "region" | "shard">>("list_free_shards", LIST_FREE, [
    column(regions.map(regionCode)),
  ]);
  return rows.map((row) => ({ region: regionOf(row.region), shard: row.shard }));
}

/** Whether a shard (s) may be taken. The dead nodes are read once for all shards. */
const IS_FREE = `(s.lease_until <= ${REAL_NOW} OR s.owner = ANY (ARRAY (SELECT id FROM nodes WHERE dead)))`;

const LIST_FREE = `SELECT s.region, s.shard FROM shards s WHERE s.region = ANY ($1::smallint[]) AND ${IS_FREE}`;

export async function listShards(db: Database, regions: readonly Region[]): Promise<ShardRow[]> {
  const rows = await db.run<Row>("list_shards", LIST, [column(regions.map(regionCode))]);
  return rows.map((row) => ({
    region: regionOf(row.region),
    shard: row.shard,
    epoch: Number(row.epoch),
    owner: row.owner,
    leaseLeftMs: row.lease_left_ms,
  }));
}

const LIST = `
SELECT s.region, s.shard, s.epoch, s.owner,
       CASE WHEN s.lease_until > ${REAL_NOW} AND NOT coalesce(n.dead, false)
            THEN (extract(epoch FROM s.lease_until - ${REAL_NOW}) * 1000)::float8 ELSE 0 END AS lease_left_ms
  FROM shards s LEFT JOIN nodes n ON n.id = s.owner
 WHERE s.region = ANY ($1::smallint[]) ORDER BY s.region, s.shard`;

/**
 * Takes the wanted shards whose lease is over or whose owner is proved dead. A takeover begins a new epoch, and no
 * fenced write of the old epoch follows it. A shard with a fenced write under way is skipped, and the next call takes
 * it.
 */
export async function acquireShards(
  db: Database,
  nodeId: number,
  wanted: readonly ShardName[],
  leaseMs: number,
): Promise<HeldShard[]> {
  return (await db.run<Row>("acquire_shards", ACQUIRE, [...names(wanted), nodeId, leaseMs])).map(readHeld);
}

const ACQUIRE = `
WITH free AS MATERIALIZED (
  SELECT s.region, s.shard
    FROM shards s JOIN unnest($1::smallint[], $2::smallint[]) AS w (region, shard) USING (region, shard)
   WHERE ${IS_FREE}
   ORDER BY s.region, s.shard
     FOR UPDATE OF s SKIP LOCKED
)
UPDATE shards s SET epoch = s.epoch + 1, owner = $3, lease_until = ${REAL_NOW} + $4::float8 * interval '1 ms'
  FROM free WHERE s.region = free.region AND s.shard = free.shard
RETURNING s.region, s.shard, s.epoch`;

/** Prolongs leases. Answers the shards whose leases stand. A lapsed lease is prolonged if nobody has taken the shard. */
export async function renewShards(
  db: Database,
  nodeId: number,
  held: readonly HeldShard[],
  leaseMs: number,
): Promise<HeldShard[]> {
  const values = [...names(held), column(held.map((shard) => shard.epoch)), nodeId, leaseMs];
  const rows = await db.run<Pick<Row, "region" | "shard">>("renew_shards", RENEW, values);
  if (rows.length === 0) return [...held];
  const lost = new Set(rows.map((row) => `${regionOf(row.region)}/${row.shard}`));
  return held.filter(({ region, shard }) => !lost.has(`${region}/${shard}`));
}

// The rows are locked in the order of the sorted names, since only nested loops are planned. The statement answers the
// shards that were lost, which are few.
const RENEW = `
WITH renewed AS (
  UPDATE shards s SET lease_until = ${REAL_NOW} + $5::float8 * interval '1 ms'
    FROM (SELECT * FROM unnest($1::smallint[], $2::smallint[], $3::bigint[]) AS h (region, shard, epoch) ORDER BY 1, 2) h
   WHERE s.region = h.region AND s.shard = h.shard AND s.epoch = h.epoch AND s.owner = $4
  RETURNING s.region, s.shard
)
SELECT h.region, h.shard FROM unnest($1::smallint[], $2::smallint[]) AS h (region, shard)
 WHERE (h.region, h.shard) NOT IN (SELECT region, shard FROM renewed)`;

/** Gives shards back, so that the next owner need not wait for the end of the lease. */
export async function resignShards(db: Database, nodeId: number, held: readonly HeldShard[]): Promise<void> {
  await db.run("resign_shards", RESIGN, [...names(held), column(held.map((shard) => shard.epoch)), nodeId]);
}

const RESIGN = `
UPDATE shards s SET owner = NULL, lease_until = '-infinity'
  FROM unnest($1::smallint[], $2::smallint[], $3::bigint[]) AS h (region, shard, epoch)
 WHERE s.region = h.region AND s.shard = h.shard AND s.epoch = h.epoch AND s.owner = $4`;

interface Row {
  region: number;
  shard: number;
  epoch: string;
  owner: number | null;
  lease_left_ms: number;
}

const names = (shards: readonly ShardName[]) => [
  column(shards.map((shard) => regionCode(shard.region))),
  column(shards.map((shard) => shard.shard)),
];

function readHeld(row: Row): HeldShard {
  return { region: regionOf(row.region), shard: row.shard, epoch: Number(row.epoch) };
}
