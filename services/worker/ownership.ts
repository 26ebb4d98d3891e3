import type { Region } from "../../shared/domain/scope.ts";
import { rendezvousOwner } from "../../shared/domain/shard.ts";
import type { Log } from "../../shared/platform/log.ts";
import { listNodes } from "../../shared/store/cell/nodes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import {
  acquireShards,
  type HeldShard,
  listFreeShards,
  renewShards,
  resignShards,
  type ShardName,
} from "../../shared/store/queue/shards.ts";

/**
 * A lease is trusted for this part of its time, counted from before its renewal was sent. The rest is for clocks that
 * run unevenly, and for work that was handed on just before the end.
 */
const TRUSTED_PART = 0.7;
/** A lease is renewed this many times in its lifetime. */
const RENEWALS_PER_LEASE = 4;

export interface OwnershipOptions {
  db: Database;
  nodeId: number;
  regions: readonly Region[];
  leaseMs: number;
  log: Log;
  onAcquired(shards: HeldShard[]): void;
  /** `resigned` says that the worker gave them up by itself. */
  onLost(shards: HeldShard[], why: "lost" | "resigned"): void;
}

/**
 * Which shards this worker owns. The table of shards decides. Which worker should own a shard follows by rendezvous
 * hashing over the living workers, so that all of them find the same answer without asking each other.
 */
export class Ownership {
  private held: HeldShard[] = [];
  /** What is held and other workers should own, while these live; both are judged anew when either has changed. */
  private foreign: HeldShard[] = [];
  private judgedFor = "";
  private trustedUntil = 0;
  private renewAt = 0;
  private graceUntil = 0;

  constructor(private readonly options: OwnershipOptions) {}

  /** Whether what is held may be acted upon at this moment. */
  get isTrusted(): boolean {
    return performance.now() < this.trustedUntil;
  }

  /** Renews the leases, acquires free shards that it should own, and resigns one that another worker should own. */
  async tick(): Promise<void> {
    try {
      await this.settleOwnership();
    } catch (error) {
      // Until every node can have beaten again, all that are not dead count as living. Otherwise the first worker to
      // come back would take the shards of the others, only to give them up again.
      this.graceUntil = performance.now() + this.options.leaseMs;
      throw error;
    }
  }

  private async settleOwnership(): Promise<void> {
    const { db, nodeId, regions, leaseMs } = this.options;
    if (performance.now() >= this.renewAt) await this.renew();
    const workers = (await listNodes(db)).filter(
      (node) =>
        node.kind === "worker" &&
        !node.dead &&
        (node.id === nodeId || node.silentMs < leaseMs || performance.now() < this.graceUntil),
    );
    const workersOf = new Map(
      regions.map((region) => [
        region,
        workers.filter((worker) => worker.regions.includes(region)).map(({ id }) => id),
      ]),
    );
    const ownerOf = ({ region, shard }: ShardName) =>
      rendezvousOwner(region, shard, workersOf.get(region) ?? []);
    const wanted = (await listFreeShards(db, regions)).filter((free) => ownerOf(free) === nodeId);
    if (wanted.length > 0) {
      const askedAt = performance.now();
      const acquired = await acquireShards(db, nodeId, wanted, leaseMs);
      if (this.held.length === 0) {
        this.trustedUntil = askedAt + TRUSTED_PART * leaseMs;
        this.renewAt = askedAt + leaseMs / RENEWALS_PER_LEASE;
      }
      const names = new Set(acquired.map(shardName));
      // A shard whose lease had lapsed, and that this worker has just acquired anew, is another actor with another
      // epoch.
      this.lose(
        this.held.filter((shard) => names.has(shardName(shard))),
        "lost",
      );
      this.held.push(...acquired);
      this.judgedFor = "";
      if (acquired.length > 0) this.options.onAcquired(acquired);
    }
    const living = workers.map(({ id, regions: served }) => `${id} ${served}`).join();
    if (living !== this.judgedFor) this.foreign = this.held.filter((shard) => ownerOf(shard) !== nodeId);
    this.judgedFor = living;
    const foreign = this.foreign[0];
    if (foreign !== undefined) {
      this.lose([foreign], "resigned");
      await resignShards(db, nodeId, [foreign]);
    }
  }

  /** Resigns every shard. */
  async resign(): Promise<void> {
    const held = this.held;
    this.lose(held, "resigned");
    if (held.length > 0) await resignShards(this.options.db, this.options.nodeId, held);
  }

  private async renew(): Promise<void> {
    const { db, nodeId, leaseMs } = this.options;
    if (this.held.length === 0) return;
    const askedAt = performance.now();
    const standing = new Set((await renewShards(db, nodeId, this.held, leaseMs)).map(shardName));
    this.trustedUntil = askedAt + TRUSTED_PART * leaseMs;
    this.renewAt = askedAt + leaseMs / RENEWALS_PER_LEASE;
    this.lose(
      this.held.filter((shard) => !standing.has(shardName(shard))),
      "lost",
    );
  }

  private lose(lost: HeldShard[], why: "lost" | "resigned"): void {
    if (lost.length === 0) return;
    const gone = new Set(lost);
    this.held = this.held.filter((shard) => !gone.has(shard));
    this.foreign = this.foreign.filter((shard) => !gone.has(shard));
    this.options.onLost(lost, why);
    this.options.log.info({ count: lost.length }, "shards.lost");
  }
}

export const shardName = (shard: { region: Region; shard: number }) => `${shard.region}/${shard.shard}`;
