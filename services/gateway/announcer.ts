import type { Bus } from "../../shared/bus/bus.ts";
import { sendCommands } from "../../shared/bus/hints.ts";
import { type Beat, NO_WORKER } from "../../shared/bus/messages.ts";
import type { OwedAttempt, Placed } from "../../shared/domain/owed.ts";
import type { Region } from "../../shared/domain/scope.ts";
import type { Clock } from "../../shared/platform/clock.ts";

/** A delivery node beats twice a second. One that was silent for this long is sent nothing. */
const NODE_SILENT_MS = 1_500;
/** A node of 4,000 attempts shares its last fifth among projects, so it is left to the workers, whose lanes take turns. */
const ROOM_KEPT = 800;

interface DeliveryNode {
  id: number;
  regions: readonly Region[];
  /** The room that the node last told, without ROOM_KEPT, and less what it was sent since. */
  room: number;
  /** By `steadyNow`. */
  heardAt: number;
}

/** Tells others of attempts that were just committed. */
export interface Announcer {
  /** `startable` are due, and a permit seems to be free for each. */
  announce(startable: readonly Placed<OwedAttempt>[], others: readonly Placed<OwedAttempt>[]): void;
  stop(): void;
}

/**
 * An attempt that may start needs no wheel and no lane. A delivery node is told of it, which saves the way through a worker, and
 * claims it like every other attempt. Workers are told of the other attempts, and of what no node has room for. If the claim is
 * refused, since the permits are taken meanwhile or an operator holds the region, the node tells the worker. If the node dies
 * before its claim, the sweep finds the attempt.
 */
export function createAnnouncer(
  { bus, clock }: { bus: Bus; clock: Clock },
  steadyNow = () => performance.now(),
): Announcer {
  const nodes = new Map<number, DeliveryNode>();
  const hear = ({ nodeId: id, regions, room }: Beat) => {
    nodes.set(id, { id, regions, room: Math.max(0, room - ROOM_KEPT), heardAt: steadyNow() });
  };
  const hearing = bus.onBeat("delivery", hear);

  function roomiest(region: Region): DeliveryNode | undefined {
    const heardFrom = steadyNow() - NODE_SILENT_MS;
    let best: DeliveryNode | undefined;
    for (const node of nodes.values()) {
      if (node.heardAt < heardFrom) nodes.delete(node.id);
      else if (node.regions.includes(region) && node.room > (best?.room ?? 0)) best = node;
    }
    return best;
  }

  return {
    announce(startable, others) {
      const commanded = [...others];
      for (const [region, attempts] of Map.groupBy(startable, (attempt) => attempt.region)) {
        const node = roomiest(region);
        const items = attempts.slice(0, node?.room ?? 0);
        commanded.push(...attempts.slice(items.length));
        if (node === undefined) continue;
        node.room -= items.length;
        bus.sendDue(node.id, { workerNodeId: NO_WORKER, region, items });
      }
      sendCommands(bus, commanded, clock.now());
    },
    stop: () => hearing.unsubscribe(),
  };
}
