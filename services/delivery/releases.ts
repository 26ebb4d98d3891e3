import type { Bus } from "../../shared/bus/bus.ts";
import { sendHints } from "../../shared/bus/hints.ts";
import type { FlowKind } from "../../shared/domain/flow-class.ts";
import type { OwedAttempt, Placed } from "../../shared/domain/owed.ts";
import type { Region } from "../../shared/domain/scope.ts";
import type { Database } from "../../shared/store/database/database.ts";
import {
  forgetIdleLeftHosts,
  listLeftHosts,
  listParkedHosts,
  type ParkedLane,
  releaseLeft,
  releaseParked,
} from "../../shared/store/queue/parked.ts";
import type { RequestsPerHost } from "./concurrency.ts";
import type { Patience } from "./patience.ts";
import type { Take } from "./taking.ts";

/** How soon is found what no freed place calls: after a resume or a raised limit, and what dead nodes would have called. */
const LOOK_EVERY_MS = 1_000;
/** In one statement. */
const RELEASED_MAX = 200;
/**
 * So many of each lane come once with every look at all hosts although its project has no permit free, and wait for one
 * among the others that are due: a project that is always at its limit would else send nothing of them.
 */
const RELEASED_MIN = 32;
/** At each look, of what endpoints have left behind: of so many of them, and of each so often RELEASED_MAX. */
const LEFT_HOSTS_MAX = 20;
const LEFT_TURNS_MAX = 5;
/** And of hosts where nothing is left, so many are forgotten. */
const IDLE_LEFT_HOSTS_MAX = 1_000;
/** So long are blind claims waited for that are all that keeps from a host. */
const BLIND_LOOK_MS = 5;
const BLIND_LOOKS_MAX = 20;
const KINDS: readonly FlowKind[] = ["jobs", "webhooks"];

export interface Releases {
  everyMs: number;
  /** Finds what is parked at hosts that have room. */
  tick(): Promise<void>;
  /** The node has parked something at the host. */
  parked(host: string): void;
  /** A place at the host has come free. */
  freed(host: string): void;
}

/**
 * Brings back what is parked at hosts that have room on this node. A place that comes free calls the next at once; each is
 * taken by the node that called it, so that nobody else has that place before.
 */
export function createReleases({
  db,
  bus,
  regions,
  hosts,
  room,
  take,
  patience,
}: {
  db: Database;
  bus: Bus;
  regions: readonly Region[];
  hosts: RequestsPerHost;
  room(): number;
  take: Take;
  patience: Patience;
}): Releases {
  /** The hosts at which something is parked, as far as is known. */
  let waiting = new Set<string>();
  const looking = new Set<string>();
  /** Of those, where to look once more for what has come meanwhile. */
  const again = new Set<string>();
  /** Where the next places call of every lane, whether its project has a permit free or not. */
  let callingAll = new Set<string>();
  const lastLanes = new Map<string, ParkedLane>();

  /** Calls what is next, for as long as some of it is sent and there is room. */
  async function release(host: string): Promise<void> {
    again.add(host);
    if (looking.has(host)) return;
    looking.add(host);
    while (again.delete(host)) {
      try {
        while (await releaseSome(host));
      } catch (error) {
        patience.warn("release.failed", error);
      }
    }
    looking.delete(host);
  }

  /** True if more may be sent: some of what was called is, or it was called without permits, and those that have one follow. */
  async function releaseSome(host: string): Promise<boolean> {
    const kept = Math.min(hosts.roomOf(host), room(), RELEASED_MAX);
    if (kept <= 0) return false;
    for (let place = 0; place < kept; place++) hosts.add(host);
    try {
      // Every blind claim may lead there. While the places are kept few begin, and those under way end soon.
      const countLeft = () => kept + Math.min(0, hosts.claimsLeftFor(host));
      for (let look = 0; look < BLIND_LOOKS_MAX && countLeft() <= 0; look++) await Bun.sleep(BLIND_LOOK_MS);
      return countLeft() > 0 && (await releaseInto(host, countLeft()));
    } finally {
      for (let place = 0; place < kept; place++) hosts.delete(host);
    }
  }

  async function releaseInto(host: string, count: number): Promise<boolean> {
    const isCallingAll = callingAll.delete(host);
    const countMin = isCallingAll ? RELEASED_MIN : 0;
    const released: Placed<OwedAttempt>[] = [];
    // By chance: hosts that are looked at one after the other would keep a row of turns in step, each with its own kind first.
    for (const kind of Math.random() < 0.5 ? KINDS : KINDS.toReversed()) {
      if (released.length < count)
        released.push(...(await releaseOf(kind, host, count - released.length, countMin)));
    }
    return (await takeAll(released, host)) || isCallingAll;
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
    // Behind the last lane comes the first again.
    lastLanes.delete(turn);
    if (after === null) return attempts;
    return [...attempts, ...(await releaseOf(kind, host, count - attempts.length, countMin))];
  }

  /**
   * What is not sent now, for want of a permit or a quota or because another region's nodes send it, waits among all that is
   * due: its shard is told. True if some is sent.
   */
  async function takeAll(released: readonly Placed<OwedAttempt>[], host: string | null): Promise<boolean> {
    const answers = await Promise.all(
      released.map(({ region, ...item }) => (regions.includes(region) ? take(region, item, host) : null)),
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
        await takeAll(released, null);
        if (released.length < RELEASED_MAX) break;
      }
    }
  }

  return {
    everyMs: LOOK_EVERY_MS,
    async tick() {
      if (room() <= 0) return;
      waiting = new Set((await Promise.all(KINDS.map((kind) => listParkedHosts(db, kind)))).flat());
      callingAll = new Set(waiting);
      // None is waited for: what is parked at one host may be sent for hours.
      for (const host of waiting) void release(host);
      await releaseLeftHosts();
    },
    parked(host) {
      waiting.add(host);
      // A look that is under way may have kept the very places for which there was no room.
      if (looking.has(host) || hosts.roomOf(host) > 0) void release(host);
    },
    freed(host) {
      if (waiting.has(host)) void release(host);
    },
  };
}
