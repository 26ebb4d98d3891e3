import { type ProjectNo, REGIONS, type Region } from "./scope.ts";

/** Decides which shard a project's jobs belong to, and which worker should own a shard. */

/**
 * How far ahead a worker remembers due attempts. No message tells it of later ones, which wait in Postgres until the
 * sweep finds them.
 */
export const HORIZON_MS = 60_000;

/** The shard of a project, the same number in every region: 0 to shardsPerRegion - 1. */
export function shardOf(projectNo: ProjectNo, shardsPerRegion: number): number {
  return mixInteger(projectNo) % shardsPerRegion;
}

/**
 * The node that should own a shard, by rendezvous hashing (Thaler & Ravishankar, 1998). Every node computes the same owner.
 * When a node comes or goes, only the shards that it gains or had change owners. Null without nodes.
 */
export function rendezvousOwner(region: Region, shard: number, nodeIds: readonly number[]): number | null {
  const seed = mix(REGIONS.indexOf(region) + 1) ^ mix(shard + 0x9e3779b9);
  let owner: number | null = null;
  let highest = -1;
  for (const nodeId of nodeIds) {
    const weight = mix(seed ^ mixInteger(nodeId));
    // A tie goes to the smaller id, so that the order of the list does not matter.
    if (weight > highest || (weight === highest && owner !== null && nodeId < owner)) {
      owner = nodeId;
      highest = weight;
    }
  }
  return owner;
}

/** Mixes an integer of up to 53 bits, so that numbers beyond 32 bits spread as well as small ones. */
function mixInteger(number: number): number {
  return mix((number >>> 0) ^ mix(Math.floor(number / 2 ** 32)));
}

/** The finalizer of MurmurHash3 (Appleby): a changed bit of the input changes each bit of the result half the time. */
export function mix(value: number): number {
  let bits = value | 0;
  bits = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}
