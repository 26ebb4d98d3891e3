import { type Answer, type DueItem, SHARE_PAUSE_MS } from "../../shared/bus/messages.ts";
import { environmentOfClass, kindOf } from "../../shared/domain/flow-class.ts";
import type { Region } from "../../shared/domain/scope.ts";
import { hostOfTarget } from "../../shared/domain/target.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Log } from "../../shared/platform/log.ts";
import { type Claimed, type GrantedAttempt, NodeDeclaredDead } from "../../shared/store/queue/claim.ts";
import type { GrantedDelivery } from "../../shared/store/queue/delivery-claim.ts";
import type { InFlight, RequestsPerHost } from "./concurrency.ts";
import type { Outgoing, OwedItem } from "./outgoing.ts";
import type { Patience } from "./patience.ts";

/** An attempt that only blind claims keep from its host is asked for again between so long and twice that. */
const HOST_PAUSE_MS = 500;

/**
 * Claims one owed attempt and, if it is granted, sees it through; parked, it is gone. Null if the same is under way
 * already. At `heldFor` a place is kept for it.
 */
export type Take = (region: Region, item: DueItem, heldFor?: string | null) => Promise<Answer | null>;

export function createTaking(options: {
  jobs: Outgoing<GrantedAttempt>;
  webhooks: Outgoing<GrantedDelivery>;
  inFlight: InFlight;
  hosts: RequestsPerHost;
  room(): number;
  patience: Patience;
  clock: Clock;
  log: Log;
  /** There was no room until something ended just now. */
  onRoom(): void;
  /** Something was parked at the host. */
  onParked(host: string): void;
  /** Something that was sent to the host has been settled: its place there is free, and its permit. */
  onFreed(host: string): void;
  /** The node was declared dead: nothing of it may go on. */
  onDeclaredDead(): void;
}): Take {
  const { jobs, webhooks, inFlight, hosts, room, patience, clock, log } = options;

  async function takeOf<Granted>(
    outgoing: Outgoing<Granted>,
    item: OwedItem,
    heldFor: string | null,
  ): Promise<Answer | null> {
    const { id, projectNo } = item;
    if (inFlight.has(id)) return null;
    if (room() <= 0) return { kind: "node_full" };
    // Not "node_full", which says that the same may be sent again at once: the node has room, though not for this.
    if (inFlight.isShareTaken(projectNo)) return { kind: "blocked", untilAt: clock.now() + SHARE_PAUSE_MS };
    inFlight.add(id, projectNo);
    let isSending = false;
    try {
      let host: string | null = null;
      if (heldFor !== null || !hosts.mayClaimBlindly()) {
        const url = await patience.untilAnswered(() => outgoing.locate(item));
        if (url !== null) {
          host = hostOfTarget(url);
          if (host !== heldFor && !hosts.mayClaimFor(host))
            return await putAside(outgoing, item, { host, url });
        }
      }
      const claimed = await claim(outgoing, item, host);
      if (claimed.kind !== "granted") return claimed;
      isSending = true;
      // Whatever is thrown there is a bug: the attempt is not settled by this node, which goes on counting it; others find
      // it past its deadline.
      send(outgoing, item, claimed.attempt).catch((error) => log.error({ err: error, id }, "attempt.failed"));
      return { kind: "granted" };
    } catch (error) {
      if (error instanceof NodeDeclaredDead) options.onDeclaredDead();
      else patience.warn("claim.failed", error);
      return null;
    } finally {
      if (!isSending) inFlight.delete(id, projectNo);
    }
  }

  async function putAside<Granted>(
    outgoing: Outgoing<Granted>,
    item: OwedItem,
    at: { host: string; url: string },
  ): Promise<Answer> {
    if (hosts.roomOf(at.host) <= 0) {
      const outcome = await patience.untilAnswered(() => outgoing.park(item, at));
      if (outcome === "parked") options.onParked(at.host);
      if (outcome !== "elsewhere") return { kind: "gone" };
    }
    return { kind: "early", waitMs: HOST_PAUSE_MS * (1 + Math.random()) };
  }

  /**
   * What is granted counts at its host from then on; `host` is null where it was not known before. An endpoint can have
   * been given another host meanwhile, and then that one may have a request too many.
   */
  async function claim<Granted>(
    outgoing: Outgoing<Granted>,
    item: OwedItem,
    host: string | null,
  ): Promise<Claimed<Granted>> {
    hosts.add(host);
    try {
      const claimed = await patience.untilAnswered(() => outgoing.claim(item));
      const granted = claimed.kind === "granted" ? hostOf(outgoing, claimed.attempt) : null;
      if (granted !== null) hosts.add(granted);
      return claimed;
    } finally {
      hosts.delete(host);
    }
  }

  function hostOf<Granted>(outgoing: Outgoing<Granted>, granted: Granted): string | null {
    const url = outgoing.urlOf(granted);
    return url === null ? null : hostOfTarget(url);
  }

  async function send<Granted>(outgoing: Outgoing<Granted>, item: OwedItem, granted: Granted): Promise<void> {
    const host = hostOf(outgoing, granted);
    const settle = await outgoing.send(item, granted).finally(() => {
      if (host !== null) hosts.delete(host);
    });
    await settle();
    const wasFull = room() <= 0;
    inFlight.delete(item.id, item.projectNo);
    if (wasFull) options.onRoom();
    if (host !== null) options.onFreed(host);
  }

  return (region, item, heldFor = null) => {
    const owed = { ...item, region, environment: environmentOfClass(item.flowClass) };
    switch (kindOf(item.flowClass)) {
      case "jobs":
        return takeOf(jobs, owed, heldFor);
      case "webhooks":
        return takeOf(webhooks, owed, heldFor);
    }
  };
}
