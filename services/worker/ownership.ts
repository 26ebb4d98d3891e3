import type { Region } from "../../shared/domain/scope.ts";
import { rendezvousOwner } from "../../shared/domain/shard.ts";
import type { Log } from "../../shared/platform/log.ts";
import { listNodes, type NodeRow } from "../../shared/store/cell/nodes.ts";
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
/**
 * Shards that another worker should own are offered to it in this many parts. A part is taken within two ticks, one of
 * the owner and one of the taker, so that all of them have moved within 20, about 20 s, however many shards there are.
 * Fewer parts would be larger: the taker reads all that is due in a part at once, and the shards that it has taken
 * stand still if it dies.
 */
const PARTS = 10;

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

/** Held shards that one other worker should own. The first `partSize` of them are on offer. */
interface Foreign {
  shards: HeldShard[];
  partSize: number;
}

/**
 * Knows which shards this worker owns. The table of shards decides. Rendezvous hashing over the living workers tells
 * which of them should own a shard, so that all find the same answer without asking each other.
 *
 * A shard moves without a pause. Its owner lets the lease end, which is the offer, and goes on with the shard. The
 * better owner takes it like any other whose lease is over. The former owner sees that and lets go one tick later, when
 * the new owner has read what is due. Meanwhile both send, which does no harm: claims are compare-and-set, and firings
 * are fenced. A worker that takes nothing is offered no more, and no shard stands still.
 */
export class Ownership {
  private held: HeldShard[] = [];
  /** One entry for each living better owner; judged anew when the living workers have changed. */
  private foreign: Foreign[] = [];
  private judgedFor = "";
  /** Held shards whose lease was let end, so that a better owner may take them. */
  private offered = new Set<HeldShard>();
  /** Shards that others have taken by now and that this worker still acts for. */
  private taken: HeldShard[] = [];
  private trustedUntil = 0;
  private renewAt = 0;
  private graceUntil = 0;

  constructor(private readonly options: OwnershipOptions) {}

  /** Whether the held shards may be acted upon at this moment. */
  get isTrusted(): boolean {
    return performance.now() < this.trustedUntil;
  }

  /** Renews the leases, acquires free shards that it should own, and offers some of those that others should own. */
  async tick(): Promise<void> {
    try {
      await this.settleOwnership();
    } catch (error) {
      // All nodes that are not dead count as living until each of them can have beaten again. Otherwise the first
      // worker to come back would take the shards of the others, only to give them up again.
      this.graceUntil = performance.now() + this.options.leaseMs;
      throw error;
    }
  }

  private async settleOwnership(): Promise<void> {
    const { db, nodeId, regions } = this.options;
    this.letGo();
    await this.lookAtOffers();
    if (performance.now() >= this.renewAt) await this.renew();
    const workers = this.livingOf(await listNodes(db));
    const workersOf = new Map(
      regions.map((region) => [
        region,
        workers.filter((worker) => worker.regions.includes(region)).map(({ id }) => id),
      ]),
    );
    const ownerOf = ({ region, shard }: ShardName) =>
      rendezvousOwner(region, shard, workersOf.get(region) ?? []);
    const living = workers.map(({ id, regions: served }) => `${id} ${served}`).join();
    if (living !== this.judgedFor) {
      this.judge(ownerOf);
      this.judgedFor = living;
      await this.takeBack();
    }
    await this.acquire((await listFreeShards(db, regions)).filter((free) => ownerOf(free) === nodeId));
    await this.offer();
  }

  private livingOf(nodes: readonly NodeRow[]): NodeRow[] {
    const { nodeId, leaseMs } = this.options;
    return nodes.filter(
      (node) =>
        node.kind === "worker" &&
        !node.dead &&
        (node.id === nodeId || node.silentMs < leaseMs || performance.now() < this.graceUntil),
    );
  }

  private judge(ownerOf: (shard: ShardName) => number | null): void {
    // Sorted by number, so that each part has shards of all regions.
    const byOwner = Map.groupBy(
      this.held.toSorted((one, other) => one.shard - other.shard),
      ownerOf,
    );
    byOwner.delete(this.options.nodeId);
    this.foreign = [...byOwner.values()].map((shards) => ({
      shards,
      partSize: Math.ceil(shards.length / PARTS),
    }));
  }

  private async acquire(wanted: readonly ShardName[]): Promise<void> {
    if (wanted.length === 0) return;
    const { db, nodeId, leaseMs } = this.options;
    const askedAt = performance.now();
    const acquired = await acquireShards(db, nodeId, wanted, leaseMs);
    if (this.held.length === 0) {
      this.trustedUntil = askedAt + TRUSTED_PART * leaseMs;
      this.renewAt = askedAt + leaseMs / RENEWALS_PER_LEASE;
    }
    const names = new Set(acquired.map(shardName));
    // A shard that this worker held or still acts for, and has just acquired anew, is another actor with another epoch.
    const isAnew = (shard: HeldShard) => names.has(shardName(shard));
    this.lose(this.held.filter(isAnew), "lost");
    this.lose(this.taken.filter(isAnew), "resigned");
    this.held.push(...acquired);
    if (acquired.length > 0) this.options.onAcquired(acquired);
  }

  /** Offers each better owner the next part of its shards, or the same part again if it has not taken that. */
  private async offer(): Promise<void> {
    const part = this.foreign.flatMap(({ shards, partSize }) => shards.slice(0, partSize));
    const news = part.filter((shard) => !this.offered.has(shard));
    if (news.length === 0) return;
    this.offered = new Set(part);
    await renewShards(this.options.db, this.options.nodeId, news, 0);
  }

  /**
   * Finds which of the offered shards were taken. The leases of the others end anew at this instant, so that a shard
   * whose lease has been over for long has no worker acting for it.
   */
  private async lookAtOffers(): Promise<void> {
    if (this.offered.size === 0) return;
    const standing = await renewShards(this.options.db, this.options.nodeId, [...this.offered], 0);
    const taken = [...this.offered.difference(new Set(standing))];
    this.forget(taken);
    this.taken = taken;
  }

  /** The living workers have changed: takes all offers back. Those still wanted are made anew. */
  private async takeBack(): Promise<void> {
    if (this.offered.size === 0) return;
    this.offered.clear();
    await this.renew();
  }

  /** Lets go of the shards that the tick before has found to be taken. */
  private letGo(): void {
    this.lose(this.taken, "resigned");
  }

  /** Resigns every shard. */
  async resign(): Promise<void> {
    this.letGo();
    const held = this.held;
    this.lose(held, "resigned");
    if (held.length > 0) await resignShards(this.options.db, this.options.nodeId, held);
  }

  private async renew(): Promise<void> {
    const { db, nodeId, leaseMs } = this.options;
    if (this.held.length === 0) return;
    const askedAt = performance.now();
    const kept = this.held.filter((shard) => !this.offered.has(shard));
    const standing = new Set((await renewShards(db, nodeId, kept, leaseMs)).map(shardName));
    this.trustedUntil = askedAt + TRUSTED_PART * leaseMs;
    this.renewAt = askedAt + leaseMs / RENEWALS_PER_LEASE;
    this.lose(
      kept.filter((shard) => !standing.has(shardName(shard))),
      "lost",
    );
  }

  private lose(lost: HeldShard[], why: "lost" | "resigned"): void {
    if (lost.length === 0) return;
    this.forget(lost);
    this.options.onLost(lost, why);
    this.options.log.info({ count: lost.length }, "shards.lost");
  }

  private forget(lost: readonly HeldShard[]): void {
    const gone = new Set(lost);
    const isKept = (shard: HeldShard) => !gone.has(shard);
    this.held = this.held.filter(isKept);
    this.offered = this.offered.difference(gone);
    this.taken = this.taken.filter(isKept);
    for (const foreign of this.foreign) foreign.shards = foreign.shards.filter(isKept);
  }
}

export const shardName = (shard: { region: Region; shard: number }) => `${shard.region}/${shard.shard}`;
