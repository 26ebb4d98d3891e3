import { sendHints } from "../../shared/bus/hints.ts";
import type { FlowKind } from "../../shared/domain/flow-class.ts";
import type { OwedAttempt, Placed } from "../../shared/domain/owed.ts";
import type { Region } from "../../shared/domain/scope.ts";
import type { Cell } from "../../shared/process/cell.ts";
import {
  forgetIdleLeftHosts,
  listLeftHosts,
  listParkedHosts,
  type ParkedLane,
  releaseLeft,
  releaseParked,
} from "../../shared/store/queue/parked.ts";
import type { ClaimAndSend } from "./claim-and-send.ts";
import type { RequestsPerHost } from "./concurrency.ts";
import type { StoreRetries } from "./retry-until-answered.ts";

/**
 * A place that comes free calls a parked attempt. After a resume, a raised limit or the death of a node there may be no
 * such place. So this often a look at all hosts finds the parked attempts.
 */
const LOOK_EVERY_MS = 1_000;
/** How many attempts one statement releases. */
const RELEASED_MAX = 200;
/**
 * With every look at all hosts, this many attempts of each lane are released even if their project has no permit free.
 * They wait for a permit among all due attempts. A project that is always at its limit would otherwise send no parked
 * attempt.
 */
const RELEASED_MIN = 32;
/**
 * When an endpoint gets another URL, its attempts stay parked at its old host. One look takes at most so many of these
 * left hosts.
 */
const LEFT_HOSTS_MAX = 20;
/** One look releases at most so many times RELEASED_MAX attempts of each left host. */
const LEFT_TURNS_MAX = 5;
/** One look forgets at most so many left hosts at which nothing is parked any more. */
const IDLE_LEFT_HOSTS_MAX = 1_000;
/** How long a release waits for the end of blind claims that keep it from a host. */
const BLIND_WAIT_MS = 100;
const KINDS: readonly FlowKind[] = ["jobs", "webhooks"];

export interface Releases {
  everyMs: number;
  /** Whether a release is under way. */
  readonly isBusy: boolean;
  /** Finds the attempts that are parked at hosts with room. */
  tick(): Promise<void>;
  /** The node has parked an attempt at the host. */
  parked(host: string): void;
  /** A place at the host has come free. */
  freed(host: string): void;
}

/**
 * Brings back the attempts that are parked at hosts with room on this node. A place that comes free calls the next
 * attempt at once. The node that called the attempt claims it, so that no other attempt takes the place first.
 */
export function createReleases(
  { db, bus }: Pick<Cell, "db" | "bus">,
  {
    regions,
    hosts,
    room,
    claimAndSend,
    retries,
  }: {
    regions: readonly Region[];
    hosts: RequestsPerHost;
    room(): number;
    claimAndSend: ClaimAndSend;
    retries: StoreRetries;
  },
): Releases {
  /** The hosts at which something is parked, as far as this node knows. */
  let waiting = new Set<string>();
  /** The hosts of these at which the node has parked something since the latest look at all hosts began. */
  let parkedSince = new Set<string>();
  /** The hosts where a release is under way. */
  const looking = new Set<string>();
  /** The hosts of these where one more release follows, because something has changed there meanwhile. */
  const again = new Set<string>();
  /** The hosts where the next release calls every lane, whether its project has a permit free or not. */
  let callingAll = new Set<string>();
  /** The lane that had the last turn, for each kind and host. */
  const lastLanes = new Map<string, ParkedLane>();

  /** Calls attempts that are parked at the host, for as long as some of them are sent and there is room. */
  async function release(host: string): Promise<void> {
    again.add(host);
    if (looking.has(host)) return;
    looking.add(host);
    while (again.delete(host)) {
      try {
        while (await releaseSome(host));
      } catch (error) {
        retries.warn("release.failed", error);
      }
    }
    looking.delete(host);
  }

  /** Returns whether more may be sent: some attempts were, or all lanes were called and those with a permit follow. */
  async function releaseSome(host: string): Promise<boolean> {
    const kept = Math.min(hosts.roomOf(host), room(), RELEASED_MAX);
    if (kept <= 0) return false;
    for (let place = 0; place < kept; place++) hosts.add(host);
    try {
      // Every blind claim may lead to this host. While the places are kept, few blind claims begin, and those under way
      // end soon.
      const countLeft = () => kept + Math.min(0, hosts.claimsLeftFor(host));
      if (countLeft() <= 0) await waitForBlindClaims(() => countLeft() > 0);
      return countLeft() > 0 && (await releaseInto(host, countLeft()));
    } finally {
      for (let place = 0; place < kept; place++) hosts.delete(host);
    }
  }

  async function waitForBlindClaims(areFew: () => boolean): Promise<void> {
    const overdue = Bun.sleep(BLIND_WAIT_MS).then(() => "overdue");
    while ((await Promise.race([overdue, hosts.nextBlindEnd()])) !== "overdue" && !areFew());
  }

  async function releaseInto(host: string, count: number): Promise<boolean> {
    const isCallingAll = callingAll.delete(host);
    const countMin = isCallingAll ? RELEASED_MIN : 0;
    const released: Placed<OwedAttempt>[] = [];
    // The first kind is drawn by lot. If the kinds took turns, hosts that are looked at in turn could each have the
    // same kind first every time.
    for (const kind of Math.random() < 0.5 ? KINDS : KINDS.toReversed()) {
      if (released.length < count)
        released.push(...(await releaseOf(kind, host, count - released.length, countMin)));
    }
    return (await sendReleased(released, host)) || isCallingAll;
  }

  async function releaseOf(
    kind: FlowKind,
    host: string,
    count: number,
    countMin: number,
  ): Promise<Placed<OwedAttempt>[]> {
    const turn = `${kind} ${host}`;
    const after = lastLanes.get(turn) ?? null;
    const { attempts, last } = await releaseParked(db, kind, { host, regions, after, count, countMin });
    if (attempts.length >= count && last !== null) {
      lastLanes.set(turn, last);
      return attempts;
    }
    // After the last lane comes the first again.
    lastLanes.delete(turn);
    if (after === null) return attempts;
    return [...attempts, ...(await releaseOf(kind, host, count - attempts.length, countMin))];
  }

  /**
   * Returns whether some of the attempts are sent. The others lack a permit or a quota, or belong to nodes of another
   * region. They wait among all due attempts, and their shards are told.
   */
  async function sendReleased(
    released: readonly Placed<OwedAttempt>[],
    host: string | null,
  ): Promise<boolean> {
    const answers = await Promise.all(
      released.map(({ region, ...item }) =>
        regions.includes(region) ? claimAndSend(region, item, host) : null,
      ),
    );
    const owed = released.filter((_, index) => !["granted", "gone"].includes(answers[index]?.kind ?? ""));
    if (owed.length > 0) sendHints(bus, { owed, freed: [] });
    return answers.some((answer) => answer?.kind === "granted");
  }

  async function releaseLeftHosts(): Promise<void> {
    await forgetIdleLeftHosts(db, IDLE_LEFT_HOSTS_MAX);
    for (const left of await listLeftHosts(db, LEFT_HOSTS_MAX)) {
      for (let turn = 0; turn < LEFT_TURNS_MAX; turn++) {
        const released = await releaseLeft(db, left, RELEASED_MAX);
        await sendReleased(released, null);
        if (released.length < RELEASED_MAX) break;
      }
    }
  }

  return {
    everyMs: LOOK_EVERY_MS,
    get isBusy() {
      return looking.size > 0;
    },
    async tick() {
      if (room() <= 0) return;
      parkedSince = new Set();
      const found = (await Promise.all(KINDS.map((kind) => listParkedHosts(db, kind)))).flat();
      waiting = new Set([...found, ...parkedSince]);
      callingAll = new Set(found);
      // No host waits for another: to send all attempts that are parked at one may take hours.
      for (const host of callingAll) void release(host);
      await releaseLeftHosts();
    },
    parked(host) {
      waiting.add(host);
      parkedSince.add(host);
      // A release that is under way may have kept the very place that the attempt lacked.
      if (looking.has(host) || hosts.roomOf(host) > 0) void release(host);
    },
    freed(host) {
      if (waiting.has(host)) void release(host);
    },
  };
}
