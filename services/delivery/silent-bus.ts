import type { DueItem } from "../../shared/bus/messages.ts";
import type { Region } from "../../shared/domain/scope.ts";
import type { Database } from "../../shared/store/database.ts";
import { listShards } from "../../shared/store/shards.ts";
import { sweepShards } from "../../shared/store/sweep.ts";

/** Workers beat twice a second; four beats missed mean that none can reach this node. */
const SILENT_MS = 2_000;
const SWEEP_EVERY_MS = 500;

/**
 * While no worker of a region is heard, because the bus is down or all of them are, the node looks for what is due
 * itself. Claims are compare-and-set, so a worker that only this node cannot hear does no harm.
 */
export function createSilentBusSweep({
  db,
  regions,
  room,
  take,
}: {
  db: Database;
  regions: readonly Region[];
  room: () => number;
  take: (region: Region, item: DueItem) => Promise<unknown>;
}): { heardWorker(regions: readonly Region[]): void; tick(): Promise<void>; everyMs: number } {
  const heardAt = new Map<Region, number>(regions.map((region) => [region, performance.now()]));
  return {
    everyMs: SWEEP_EVERY_MS,
    heardWorker(heard) {
      for (const region of heard) if (heardAt.has(region)) heardAt.set(region, performance.now());
    },
    async tick() {
      const silent = regions.filter((region) => (heardAt.get(region) ?? 0) < performance.now() - SILENT_MS);
      if (silent.length === 0 || room() <= 0) return;
      const shards = (await listShards(db, silent)).map((row) => ({
        ...row,
        sinceAt: Number.NEGATIVE_INFINITY,
      }));
      const { rows } = await sweepShards(db, shards, [], 0);
      await Promise.all(rows.slice(0, room()).map(({ region, ...item }) => take(region, item)));
    },
  };
}
