import type { Region } from "../../shared/domain/scope.ts";
import { listHeldRegions } from "../../shared/store/cell/holds.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { listShardsInUse, type SweptRow, sweepShards } from "../../shared/store/queue/sweep.ts";
import type { ClaimAndSend } from "./claim-and-send.ts";

/** Workers beat twice a second. Four missed beats mean that no worker can reach this node. */
const SILENT_MS = 2_000;
const SWEEP_EVERY_MS = 500;
/** Attempts that get parked may have hidden due ones behind them. So another look follows at once, at most so often. */
const LOOKS_MAX = 100;

/**
 * Looks in Postgres for due attempts while no worker of a region is heard, because the bus or all workers are down. A
 * worker that only this node cannot hear does no harm, since claims are compare-and-set.
 */
export function createSilentBusSweep({
  db,
  regions,
  room,
  claimAndSend,
}: {
  db: Database;
  regions: readonly Region[];
  room: () => number;
  claimAndSend: ClaimAndSend;
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
      const held = new Set((await listHeldRegions(db)).map(({ region }) => region));
      const sendable = silent.filter((region) => !held.has(region));
      if (sendable.length === 0) return;
      const shards = (await listShardsInUse(db, sendable)).map((shard) => ({
        ...shard,
        sinceAt: Number.NEGATIVE_INFINITY,
      }));
      for (let look = 0; look < LOOKS_MAX && room() > 0; look++) {
        const { rows } = await sweepShards(db, shards, [], 0);
        const next = inTurns(rows).slice(0, room());
        const answers = await Promise.all(next.map(({ region, ...item }) => claimAndSend(region, item)));
        // Those that are gone or queued may have hidden others.
        if (!answers.some((answer) => answer?.kind === "gone" || answer?.kind === "queued")) return;
      }
    },
  };
}

/** The oldest of every lane, then the second of every lane, and so on, so that no lane's backlog hides another's. */
function inTurns(rows: readonly SweptRow[]): SweptRow[] {
  const lanes = [...Map.groupBy(rows, laneName).values()];
  const turnCount = lanes.reduce((most, lane) => Math.max(most, lane.length), 0);
  return Array.from({ length: turnCount }, (_, turn) => lanes.flatMap((lane) => lane[turn] ?? [])).flat();
}

const laneName = ({ projectNo, region, flowClass }: SweptRow) => `${projectNo} ${region} ${flowClass}`;
