import { type Answer, type DueItem, SHARE_PAUSE_MS } from "../../shared/bus/messages.ts";
import { environmentOfClass, kindOf } from "../../shared/domain/flow-class.ts";
import type { Region } from "../../shared/domain/scope.ts";
import { hostOfTarget } from "../../shared/domain/target.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { type Claimed, NodeDeclaredDead } from "../../shared/store/queue/claim.ts";
import type { AttemptKind, Next, OwedItem } from "./attempt-kind.ts";
import type { InFlight, RequestsPerHost } from "./concurrency.ts";
import type { createDeliveryAttempts } from "./delivery-attempts.ts";
import type { createJobAttempts } from "./job-attempts.ts";
import { KEPT_BACK_MS, type KeyInFlight, KeyQueues } from "./key-queues.ts";
import type { StoreRetries } from "./retry-until-answered.ts";

/** How often the node looks whether an earlier attempt of a job has ended. */
const ENDING_LOOK_MS = 20;
const GRANTED = Promise.resolve<Answer>({ kind: "granted" });

/** If only blind claims keep an attempt from its host, it is asked for again after this long to twice as long. */
const HOST_PAUSE_MS = 500;

/**
 * Claims one owed attempt and, if it is granted, sends and settles it. The answer comes with the claim. It is "gone"
 * for an attempt that is parked, and for one that the node has claimed already: two workers tell of the same attempts
 * while a shard moves, and a gateway and a worker tell of the same job if a sweep finds it before it is claimed. It is
 * null if the claim failed, or if another attempt of the same job or delivery is in flight.
 * `keptAt` names the host at which the attempt was parked and the caller keeps a place for it.
 */
export type ClaimAndSend = (region: Region, item: DueItem, keptAt?: string | null) => Promise<Answer | null>;

/** A claimed attempt, and the host of its URL: null if its endpoint was deleted. */
interface AtHost<Granted> {
  kind: "granted";
  attempt: Granted;
  host: string | null;
}
type ClaimedAtHost<Granted> = Exclude<Claimed<Granted>, { kind: "granted" }> | AtHost<Granted>;

export function createClaimAndSend(
  { clock, log }: Pick<Cell, "clock" | "log">,
  options: {
    jobs: ReturnType<typeof createJobAttempts>;
    webhooks: ReturnType<typeof createDeliveryAttempts>;
    inFlight: InFlight;
    hosts: RequestsPerHost;
    room(): number;
    retries: StoreRetries;
    /** An attempt was started when another one has ended. `wasQueued`: the answer about it was "queued". */
    onNext(item: OwedItem, wasQueued: boolean): void;
    /** The node had no room until an attempt ended just now. */
    onRoom(): void;
    /** An attempt was parked at the host. */
    onParked(host: string): void;
    /** An attempt that was sent to the host has been settled: its place there and its permit are free. */
    onFreed(host: string): void;
    /** The node was declared dead, so all its work must stop. */
    onDeclaredDead(): void;
  },
): ClaimAndSend {
  const { jobs, webhooks, inFlight, hosts, room, retries } = options;
  const keys = new KeyQueues();

  async function claimAndSend<Granted, Sent>(
    kind: AttemptKind<Granted, Sent>,
    item: OwedItem,
    keptAt: string | null,
  ): Promise<Answer | null> {
    const { id, projectNo, attempt } = item;
    const inFlightNow = inFlight.find(id);
    if (inFlightNow !== undefined) {
      const answer = inFlightNow.attempt === attempt ? await inFlightNow.answer : null;
      return answer?.kind === "granted" ? { kind: "gone" } : answer;
    }
    if (room() <= 0) return { kind: "node_full" };
    // "node_full" would say that the same attempt may be sent again at once. The node has room, though none for this
    // project.
    if (inFlight.isShareTaken(projectNo)) return { kind: "blocked", untilAt: clock.now() + SHARE_PAUSE_MS };
    const claiming = Promise.withResolvers<Answer | null>();
    inFlight.add(id, projectNo, { attempt, answer: claiming.promise });
    const answer = await claimOrPark(kind, item, keptAt);
    claiming.resolve(answer);
    return answer;
  }

  /** Does not throw. An attempt that is not sent is taken out of `inFlight`. */
  async function claimOrPark<Granted, Sent>(
    kind: AttemptKind<Granted, Sent>,
    item: OwedItem,
    keptAt: string | null,
  ): Promise<Answer | null> {
    const { id, projectNo } = item;
    let isSending = false;
    let endClaim: () => void = () => undefined;
    try {
      if (keptAt === null) {
        const first = keys.firstClaimOf(item);
        if (first !== undefined) await first;
        if (keys.keepsBack(item)) return { kind: "queued", waitMs: KEPT_BACK_MS * (1 + Math.random()) };
      }
      endClaim = keys.claims(item);
      let host: string | null = null;
      const turn = keptAt === null ? hosts.turnOfClaim() : null;
      if (turn !== null) await turn;
      if (keptAt !== null || !hosts.mayClaimBlindly()) {
        const url = await retries.untilAnswered(() => kind.locate(item));
        if (url !== null) {
          host = hostOfTarget(url);
          if (host !== keptAt && !hosts.mayClaimFor(host)) return await park(kind, item, { host, url });
        }
      }
      const claimed = await claim(kind, item, host);
      if (claimed.kind !== "granted") return claimed;
      isSending = true;
      void sendAndSettle(kind, item, claimed, keys.begins(item, kind.keyOf(claimed.attempt)));
      return { kind: "granted" };
    } catch (error) {
      if (error instanceof NodeDeclaredDead) options.onDeclaredDead();
      else retries.warn("claim.failed", error);
      return null;
    } finally {
      endClaim();
      if (!isSending) inFlight.delete(id, projectNo);
    }
  }

  async function park<Granted, Sent>(
    kind: AttemptKind<Granted, Sent>,
    item: OwedItem,
    at: { host: string; url: string },
  ): Promise<Answer> {
    if (hosts.roomOf(at.host) <= 0) {
      const outcome = await retries.untilAnswered(() => kind.park(item, at));
      if (outcome === "parked") options.onParked(at.host);
      if (outcome !== "elsewhere") return { kind: "gone" };
    }
    return { kind: "early", waitMs: HOST_PAUSE_MS * (1 + Math.random()) };
  }

  /**
   * A granted attempt counts at its host from then on. `host` is null if it was not looked up. If the endpoint is given
   * another host after the look-up, the other host may have a request too many.
   */
  async function claim<Granted, Sent>(
    kind: AttemptKind<Granted, Sent>,
    item: OwedItem,
    host: string | null,
  ): Promise<ClaimedAtHost<Granted>> {
    hosts.add(host);
    try {
      const claimed = await retries.untilAnswered(() => kind.claim(item));
      if (claimed.kind !== "granted") return claimed;
      const url = kind.urlOf(claimed.attempt);
      const grantedHost = url === null ? null : hostOfTarget(url);
      if (grantedHost !== null) hosts.add(grantedHost);
      return { ...claimed, host: grantedHost };
    } finally {
      hosts.delete(host);
    }
  }

  /**
   * A settlement may start another attempt in the place of the settled one: then that one is sent and settled, and so on. An error
   * thrown there is a bug: this node does not settle the attempt and goes on counting it. Others find the attempt past its deadline.
   */
  async function sendAndSettle<Granted, Sent>(
    kind: AttemptKind<Granted, Sent>,
    item: OwedItem,
    claimed: AtHost<Granted>,
    key: KeyInFlight | null,
  ): Promise<void> {
    let sending: [OwedItem, AtHost<Granted>] | null = [item, claimed];
    try {
      while (sending !== null) {
        sending = await sendOne(kind, ...sending);
        if (sending !== null) options.onNext(sending[0], keys.handsOn(key, sending[0]));
      }
    } catch (error) {
      log.error({ err: error, id: sending?.[0].id }, "attempt.failed");
    }
    if (key !== null) await claimKeptBack(kind, key);
  }

  /** An attempt of the key has ended. Claims one that was kept back: the first that is owed and that nothing parks. */
  async function claimKeptBack<Granted, Sent>(
    kind: AttemptKind<Granted, Sent>,
    key: KeyInFlight,
  ): Promise<void> {
    for (let item = keys.ends(key); item !== null; item = keys.next(key)) {
      const answer = await claimAndSend(kind, item, null);
      if (answer?.kind === "gone") continue;
      if (answer?.kind === "granted") options.onNext(item, true);
      keys.leave(key);
      return;
    }
  }

  async function sendOne<Granted, Sent>(
    kind: AttemptKind<Granted, Sent>,
    item: OwedItem,
    { attempt, host }: AtHost<Granted>,
  ): Promise<[OwedItem, AtHost<Granted>] | null> {
    let sent: Sent;
    try {
      sent = await kind.send(item, attempt, host);
    } finally {
      if (host !== null) hosts.delete(host);
    }
    const next = await settle(kind, sent);
    const wasFull = room() <= 0;
    inFlight.delete(item.id, item.projectNo);
    if (wasFull) options.onRoom();
    if (host !== null) options.onFreed(host);
    return next;
  }

  /** The answer is an attempt that was started in the place of this one, and is to be sent. It is in flight already. */
  async function settle<Granted, Sent>(
    kind: AttemptKind<Granted, Sent>,
    sent: Sent,
  ): Promise<[OwedItem, AtHost<Granted>] | null> {
    // While the node is nearly full or drains, others have the place. The next attempt's host is not known before, as for a blind claim.
    const isRoom = room() > 0 && !inFlight.isShared && hosts.mayTakeBlindly();
    const takesNext = isRoom && kind.mayTakeNext(sent);
    if (takesNext) hosts.addSettlement();
    let next: Next<Granted> | null;
    let host: string | null = null;
    try {
      next = await kind.settle(sent, takesNext);
      const url = next === null ? null : kind.urlOf(next.attempt);
      if (url !== null) host = hostOfTarget(url);
      if (host !== null) hosts.add(host);
    } finally {
      if (takesNext) hosts.deleteSettlement();
    }
    if (next === null) return null;
    const { item, attempt, isLeft } = next;
    // A claim of the same attempt may be under way. An earlier attempt of its job may still be waiting for the answer to its settlement.
    for (let other = inFlight.find(item.id); other !== undefined; other = inFlight.find(item.id)) {
      if ((await other.answer)?.kind === "granted") {
        if (other.attempt === item.attempt) break;
        await Bun.sleep(ENDING_LOOK_MS);
      }
    }
    if (!isLeft()) {
      if (host !== null) hosts.delete(host);
      return null;
    }
    inFlight.add(item.id, item.projectNo, { attempt: item.attempt, answer: GRANTED });
    return [item, { kind: "granted", attempt, host }];
  }

  return (region, item, keptAt = null) => {
    const waitedFor = item.waitedFor ?? (keptAt === null ? undefined : "host");
    const owed = { ...item, region, environment: environmentOfClass(item.flowClass), waitedFor };
    switch (kindOf(item.flowClass)) {
      case "jobs":
        return claimAndSend(jobs, owed, keptAt);
      case "webhooks":
        return claimAndSend(webhooks, owed, keptAt);
    }
  };
}
