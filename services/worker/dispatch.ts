import type { Beat, Due, DueItem } from "../../shared/bus/messages.ts";
import type { Region } from "../../shared/domain/scope.ts";
import type { RememberedLane } from "./shard/remembered-lane.ts";
import type { Shard } from "./shard/shard.ts";

/** A delivery node that was silent for this long is sent nothing; the sweep finds the attempts that it had again. */
const NODE_SILENT_MS = 2_000;
/** How many entries a lane sends before the next lane has its turn. */
const TURN_ITEMS = 32;
/** The most items of one message. They are about one claim statement. */
const MESSAGE_ITEMS_MAX = 200;
/**
 * How many entries may wait for a node's answers. Answers take some milliseconds. Statements of a project that wait for each other take
 * some tenths of a second. More entries would only wait in the node, where they take room from what other workers and gateways send.
 */
const UNANSWERED_MAX = 1_000;

interface DeliveryNode {
  id: number;
  regions: readonly Region[];
  /** The free room that the node last told. */
  room: number;
  /** How many items were sent to it and are not yet answered. */
  unanswered: number;
  heardAt: number;
}

/** Shares what is ready among the delivery nodes that have room, one lane after the other. */
export class Dispatcher {
  private readonly nodes = new Map<number, DeliveryNode>();
  /** The lanes of each region that have something to send, in the order of their turns. */
  private readonly rows = new Map<Region, Map<RememberedLane, Shard>>();

  constructor(private readonly sendDue: (deliveryNodeId: number, due: Omit<Due, "workerNodeId">) => void) {}

  /** A lane has something to send: it joins the end of its region's row. */
  enqueue(lane: RememberedLane, shard: Shard): void {
    lane.standsInRow = true;
    const { region } = shard.held;
    const row = this.rows.get(region);
    if (row === undefined) this.rows.set(region, new Map([[lane, shard]]));
    else row.set(lane, shard);
  }

  heard({ nodeId, regions, room }: Beat, now: number): void {
    const unanswered = this.nodes.get(nodeId)?.unanswered ?? 0;
    this.nodes.set(nodeId, { id: nodeId, regions, room, unanswered, heardAt: now });
  }

  answered(nodeId: number, count: number, room: number): void {
    const node = this.nodes.get(nodeId);
    if (node === undefined) return;
    node.unanswered = Math.max(0, node.unanswered - count);
    node.room = room;
  }

  /** Answers that will not come must not count for ever. `nodeIds` names for each of them the node that owes it. */
  forgetUnanswered(nodeIds: readonly number[]): void {
    for (const nodeId of nodeIds) {
      const node = this.nodes.get(nodeId);
      if (node !== undefined) node.unanswered = Math.max(0, node.unanswered - 1);
    }
  }

  /** After the clock has gone back, the times at which nodes were heard mean nothing. Nodes beat twice a second. */
  forgetNodes(): void {
    this.nodes.clear();
  }

  /** Sends what is ready to nodes that have room. `isActive` is false for shards whose lease may be over. */
  run(now: number, isActive: (shard: Shard) => boolean): void {
    // Regions take turns in coming first. Otherwise the first one would take all room of nodes that serve several.
    const [first] = this.rows;
    if (first !== undefined && this.rows.delete(first[0])) this.rows.set(...first);
    for (const [region, row] of this.rows) {
      const nodes = [...this.nodes.values()].filter(
        (node) => node.heardAt > now - NODE_SILENT_MS && node.regions.includes(region),
      );
      this.runRegion(region, row, nodes, now, isActive);
    }
    for (const node of this.nodes.values()) {
      if (node.heardAt < now - 10 * NODE_SILENT_MS) this.nodes.delete(node.id);
    }
  }

  private runRegion(
    region: Region,
    row: Map<RememberedLane, Shard>,
    nodes: DeliveryNode[],
    now: number,
    isActive: (shard: Shard) => boolean,
  ): void {
    let node = roomiest(nodes);
    let items: DueItem[] = [];
    const flush = () => {
      if (node !== undefined && items.length > 0) {
        node.unanswered += items.length;
        this.sendDue(node.id, { region, items });
      }
      items = [];
      node = roomiest(nodes);
    };
    // A lane that can send more joins the row again, behind the others: the end of the row moves while it is walked.
    for (const [lane, shard] of row) {
      if (node === undefined) break;
      row.delete(lane);
      lane.standsInRow = false;
      // The lane may have been blocked or refused since it joined the row.
      if (!isActive(shard) || !lane.isSendable(now)) continue;
      if (leftFor(lane, node, items.length) <= 0) {
        flush();
        node = roomiest(nodes.filter((each) => leftFor(lane, each) > 0));
        // The next answer to the lane brings it back.
        if (node === undefined) {
          node = roomiest(nodes);
          continue;
        }
      }
      const count = Math.min(TURN_ITEMS, MESSAGE_ITEMS_MAX - items.length, leftFor(lane, node, items.length));
      for (const entry of shard.take(lane, count, node.id, now)) {
        const { projectNo, flowClass, id, attempt, dueAt, isGated, keyHash } = entry;
        const waitedFor = lane.waitOf(entry);
        items.push({
          ...{ projectNo, flowClass, id, attempt, dueAt, shard: shard.held.shard },
          ...(waitedFor !== null && { waitedFor }),
          ...(isGated && { isGated, keyHash }),
        });
      }
      if (lane.isSendable(now)) this.enqueue(lane, shard);
      if (items.length >= Math.min(roomOf(node), MESSAGE_ITEMS_MAX)) flush();
    }
    flush();
  }
}

/** How many more entries the node may be sent. */
function roomOf({ room, unanswered }: DeliveryNode): number {
  return Math.min(room, UNANSWERED_MAX) - unanswered;
}

/**
 * How many more entries of the lane the node may be sent, beside `aboutTo` that are about to be. A lane that has some unanswered there
 * is sent no more than leaves others as many as it has: the rule of Choudhury and Hahne (1998), as for room in a node
 * (delivery/concurrency.ts). So lanes whose answers take long leave room for others. A lane that has none is sent one at least.
 */
function leftFor(lane: RememberedLane, node: DeliveryNode, aboutTo = 0): number {
  const unanswered = lane.sentTo(node.id);
  const left = UNANSWERED_MAX - node.unanswered - aboutTo;
  const share = Math.max(Math.floor((left - unanswered) / 2), unanswered === 0 ? 1 : 0);
  return Math.min(roomOf(node) - aboutTo, share);
}

/** Of the nodes that may be sent more, the one with the most room, whether that may be filled now or not. */
function roomiest(nodes: readonly DeliveryNode[]): DeliveryNode | undefined {
  let best: DeliveryNode | undefined;
  for (const node of nodes) {
    const room = node.room - node.unanswered;
    if (roomOf(node) > 0 && (best === undefined || room > best.room - best.unanswered)) best = node;
  }
  return best;
}
