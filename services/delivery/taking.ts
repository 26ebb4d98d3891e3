import { type Answer, type DueItem, SHARE_PAUSE_MS } from "../../shared/bus/messages.ts";
import { environmentOfClass, kindOf } from "../../shared/domain/flow-class.ts";
import type { Region } from "../../shared/domain/scope.ts";
import { hostOfTarget } from "../../shared/domain/target.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Log } from "../../shared/platform/log.ts";
import { type Claimed, type GrantedAttempt, NodeDeclaredDead } from "../../shared/store/claim.ts";
import type { GrantedDelivery } from "../../shared/store/delivery-claim.ts";
import type { InFlight, RequestsPerHost } from "./concurrency.ts";
import type { Outgoing, OwedItem } from "./outgoing.ts";
import type { Patience } from "./patience.ts";

/** An attempt whose host is full is asked for again between so long and twice that. */
const HOST_PAUSE_MS = 500;

/** Claims one owed attempt and, if it is granted, sees it through. Null if the same is under way already. */
export type Take = (region: Region, item: DueItem) => Promise<Answer | null>;

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
  /** The node was declared dead: nothing of it may go on. */
  onDeclaredDead(): void;
}): Take {
  const { jobs, webhooks, inFlight, hosts, room, patience, clock, log } = options;

  async function takeOf<Granted>(outgoing: Outgoing<Granted>, item: OwedItem): Promise<Answer | null> {
    const { id, projectNo } = item;
    if (inFlight.has(id)) return null;
    if (room() <= 0) return { kind: "node_full" };
    // Not "node_full", which says that the same may be sent again at once: the node has room, though not for this.
    if (inFlight.isShareTaken(projectNo)) return { kind: "blocked", untilAt: clock.now() + SHARE_PAUSE_MS };
    inFlight.add(id, projectNo);
    let isSending = false;
    try {
      let host: string | null = null;
      if (!hosts.mayClaimBlindly()) {
        const url = await patience.untilAnswered(() => outgoing.locate(item));
        if (url !== null) host = hostOfTarget(url);
        if (host !== null && !hosts.mayClaimFor(host)) {
          return { kind: "early", waitMs: HOST_PAUSE_MS * (1 + Math.random()) };
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
      if (claimed.kind === "granted") count(outgoing, claimed.attempt, "add");
      return claimed;
    } finally {
      hosts.delete(host);
    }
  }

  function count<Granted>(outgoing: Outgoing<Granted>, granted: Granted, step: "add" | "delete"): void {
    const url = outgoing.urlOf(granted);
    if (url !== null) hosts[step](hostOfTarget(url));
  }

  async function send<Granted>(outgoing: Outgoing<Granted>, item: OwedItem, granted: Granted): Promise<void> {
    const settle = await outgoing.send(item, granted).finally(() => count(outgoing, granted, "delete"));
    await settle();
    const wasFull = room() <= 0;
    inFlight.delete(item.id, item.projectNo);
    if (wasFull) options.onRoom();
  }

  return (region, item) => {
    const owed = { ...item, region, environment: environmentOfClass(item.flowClass) };
    switch (kindOf(item.flowClass)) {
      case "jobs":
        return takeOf(jobs, owed);
      case "webhooks":
        return takeOf(webhooks, owed);
    }
  };
}
