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
 * What another worker should own is offered to it in this many parts. A part is taken within two ticks, one of the
 * owner and one of the taker, so that all of it has moved within 20, about 20 s, however many shards there are. Fewer
 * parts would be larger ones: the taker reads at once all that is due in a part, and the shards that it has taken stand
 * still if it dies.
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

/** What is held and one other worker should own. The first `partSize` of it are on offer. */
interface Foreign {
  shards: HeldShard[];
  partSize: number;
}

/**
 * Which shards this worker owns. The table of shards decides. Which worker should own a shard follows by rendezvous
 * hashing over the living workers, so that all of them find the same answer without asking each other.
 *
 * A shard moves without a pause. Its owner lets the lease end, which is the offer, and goes on with the shard. The
 * better owner takes it like any other whose lease is over, and the owner before lets go of it one tick after it has
 * seen that, when the new one has read what is due. Meanwhile both send, which does no harm: claims are
 * compare-and-set, and what fires is fenced. A worker that takes nothing is offered no more, and nothing stands still.
 */
export class Ownership {
  private held: HeldShard[] = [];
  /** For each better owner, while these live; judged anew when the living workers have changed. */
  private foreign: Foreign[] = [];
  private judgedFor = "";
  /** What is held without a lease, so that a better owner may take it. */
  private offered = new Set<HeldShard>();
  /** What others have taken by now, and this worker still acts for. */
  private taken: HeldShard[] = [];
  private trustedUntil = 0;
  private renewAt = 0;
  private graceUntil = 0;

  constructor(private readonly options: OwnershipOptions) {}

  /** Whether what is held may be acted upon at this moment. */
  get isTrusted(): boolean {
    return performance.now() < this.trustedUntil;
  }

  /** Renews the leases, acquires free shards that it should own, and offers some of those that others should own. */
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
    // In the order of their numbers each part has shards of all regions.
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
    // What this worker held, or still acts for, and has just acquired anew is another actor with another epoch.
    const isAnew = (shard: HeldShard) => names.has(shardName(shard));
    this.lose(this.held.filter(isAnew), "lost");
    this.lose(this.taken.filter(isAnew), "resigned");
    this.held.push(...acquired);
    if (acquired.length > 0) this.options.onAcquired(acquired);
  }

  /** Offers to each better owner the next part of what it should own, or the same again if it has not taken it. */
  private async offer(): Promise<void> {
    const part = this.foreign.flatMap(({ shards, partSize }) => shards.slice(0, partSize));
    const news = part.filter((shard) => !this.offered.has(shard));
    if (news.length === 0) return;
    this.offered = new Set(part);
    await renewShards(this.options.db, this.options.nodeId, news, 0);
  }

  /**
   * Finds what was taken of the offers. The leases of the others end anew, so that a lease that has been over for
   * long is one that nobody acts for.
   */
  private async lookAtOffers(): Promise<void> {
    if (this.offered.size === 0) return;
    const standing = await renewShards(this.options.db, this.options.nodeId, [...this.offered], 0);
    const taken = [...this.offered.difference(new Set(standing))];
    this.forget(taken);
    this.taken = taken;
  }

  /** Whoever lives has changed. What is on offer is offered anew, if it still is to be. */
  private async takeBack(): Promise<void> {
    if (this.offered.size === 0) return;
    this.offered.clear();
    await this.renew();
  }

  /** Lets go of what the tick before has found to be taken. */
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
