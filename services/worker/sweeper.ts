import type { Clock } from "../../shared/platform/clock.ts";
import type { Database } from "../../shared/store/database/database.ts";
import {
  type Lane,
  type RefillLane,
  refillLanes,
  type Swept,
  sweepShards,
} from "../../shared/store/queue/sweep.ts";
import { shardName } from "./ownership.ts";
import { type RememberedLane, SWEEP_AHEAD_MS } from "./shard/remembered-lane.ts";
import type { Shard } from "./shard/shard.ts";

/** The worker does nothing else while it reads an answer. So one statement asks about no more lanes than this. */
const LANES_PER_STATEMENT_MAX = 200;
/**
 * About how many entries that are remembered already one sweep reads again, to find those of which no message told. If more are
 * remembered, lanes take turns in it, and of the others a sweep reads what comes after the last look.
 */
const READ_AGAIN_MAX = 5_000;
/** About how many remembered lanes, with their entries that are due soon, the statement for the forgotten lanes reads as well. */
const READ_ALONG_MAX = 2_000;
/** A lane with more entries is asked apart, since its entries would have to be counted. */
const ENTRIES_ALONG_MAX = 64;

interface LaneOfShard {
  lane: RememberedLane;
  shard: Shard;
}
interface AskedLane extends LaneOfShard {
  asked: RefillLane;
}

/**
 * Finds in Postgres the attempts of which no message told, and those that did not fit when a message told of them. One statement
 * reads the lanes that the shards do not remember, for all shards of the process. It also reads small remembered lanes whose older
 * attempts are all known. Each other remembered lane is asked apart, from its own mark, by one statement for each
 * LANES_PER_STATEMENT_MAX lanes. There a lane costs Postgres three times as many pages as in the first statement.
 */
export class Sweeper {
  private readonly low = new Map<RememberedLane, Shard>();
  private sweepNo = 0;
  /** The last sweep that read a lane's entries again. */
  private readonly readIn = new WeakMap<RememberedLane, number>();

  constructor(
    private readonly db: Database,
    private readonly clock: Clock,
  ) {}

  /** Looks into every lane. Returns how many attempts it found of which no message had told. */
  async sweep(shards: readonly Shard[]): Promise<number> {
    const asked = shards.map((shard) => ({ ...shard.held, sinceAt: shard.sweepsFromAt }));
    if (asked.length === 0) return 0;
    const remembered = shards.flatMap((shard) => shard.rememberedLanes().map((lane) => ({ lane, shard })));
    const readAgain = this.chooseReadAgain(remembered.map(({ lane }) => lane));
    const along = this.askAlong(remembered, readAgain);
    const apart = remembered.filter(({ lane }) => !along.has(lane));
    const names = apart.map(({ lane }) => lane.name);
    // No answer comes after the sweep has ended: it would move the marks of shards while the next sweep looks from them.
    const looks = await Promise.allSettled([
      sweepShards(this.db, asked, names, SWEEP_AHEAD_MS).then(
        (swept) => this.noteSwept(shards, asked, along, swept),
        (error) => failRefill(along.keys(), error),
      ),
      this.ask(apart, (lane) => !readAgain.has(lane)),
    ]);
    return looks.reduce((sum, look) => {
      if (look.status === "rejected") throw look.reason;
      return sum + look.value;
    }, 0);
  }

  /** A lane will soon have nothing left to send while Postgres has more. */
  noteLow(lane: RememberedLane, shard: Shard): void {
    this.low.set(lane, shard);
  }

  get hasLow(): boolean {
    return this.low.size > 0;
  }

  /** Refills the lanes that were noted. */
  async refill(): Promise<number> {
    const lanes = [...this.low].map(([lane, shard]) => ({ lane, shard }));
    this.low.clear();
    return this.ask(lanes, () => false);
  }

  /** The lanes whose entries this sweep may read again: those that have waited longest for it first. */
  private chooseReadAgain(lanes: readonly RememberedLane[]): ReadonlySet<RememberedLane> {
    this.sweepNo++;
    const now = this.clock.now();
    const readIn = (lane: RememberedLane) => this.readIn.get(lane) ?? 0;
    const chosen = new Set<RememberedLane>();
    let left = READ_AGAIN_MAX;
    for (const lane of lanes.toSorted((one, other) => readIn(one) - readIn(other))) {
      const count = lane.readAgainCount;
      if (count > left || !lane.isWorthAsking(now)) continue;
      left -= count;
      chosen.add(lane);
    }
    return chosen;
  }

  /** The lanes that are read along with the forgotten ones, each with the question that this is. */
  private askAlong(
    lanes: readonly LaneOfShard[],
    readAgain: ReadonlySet<RememberedLane>,
  ): ReadonlyMap<RememberedLane, AskedLane> {
    const now = this.clock.now();
    const along = new Map<RememberedLane, AskedLane>();
    let left = READ_ALONG_MAX;
    for (const { lane, shard } of lanes) {
      if (left <= 0) break;
      if (lane.size > ENTRIES_ALONG_MAX || !readAgain.has(lane) || !lane.isKnownFrom(shard.sweepsFromAt))
        continue;
      const asked = lane.ask(now);
      if (asked === null) continue;
      left -= 1 + lane.countOwed(now + SWEEP_AHEAD_MS);
      along.set(lane, { lane, shard, asked });
    }
    return along;
  }

  private noteSwept(
    shards: readonly Shard[],
    from: readonly { sinceAt: number }[],
    along: ReadonlyMap<RememberedLane, AskedLane>,
    { rows, sweptAt }: Swept,
  ): number {
    for (const lane of along.keys()) this.readIn.set(lane, this.sweepNo);
    const now = this.clock.now();
    const rowsOf = Map.groupBy(rows, ({ region, shard }) => shardName({ region, shard }));
    const alongOf = Map.groupBy(along.values(), ({ shard }) => shard);
    return shards.reduce((count, shard, index) => {
      // If nothing was found, no name is made.
      const ofShard = (rowsOf.size > 0 && rowsOf.get(shardName(shard.held))) || [];
      const questions = alongOf.get(shard)?.map(({ asked }) => asked) ?? [];
      const fromAt = from[index]?.sinceAt ?? Number.NEGATIVE_INFINITY;
      return count + shard.swept(ofShard, questions, { fromAt, sweptAt }, now);
    }, 0);
  }

  private async ask(
    lanes: readonly LaneOfShard[],
    mayBePart: (lane: RememberedLane) => boolean,
  ): Promise<number> {
    let newsCount = 0;
    for (let at = 0; at < lanes.length; at += LANES_PER_STATEMENT_MAX)
      newsCount += await this.askSome(lanes.slice(at, at + LANES_PER_STATEMENT_MAX), mayBePart);
    return newsCount;
  }

  private async askSome(
    lanes: readonly LaneOfShard[],
    mayBePart: (lane: RememberedLane) => boolean,
  ): Promise<number> {
    const wanted: AskedLane[] = [];
    for (const { lane, shard } of lanes) {
      const asked = lane.ask(this.clock.now(), mayBePart(lane));
      if (asked !== null) wanted.push({ lane, shard, asked });
    }
    if (wanted.length === 0) return 0;
    const questions = wanted.map(({ asked }) => asked);
    const { rows, sweptAt } = await refillLanes(this.db, questions, SWEEP_AHEAD_MS).catch((error) =>
      failRefill(
        wanted.map(({ lane }) => lane),
        error,
      ),
    );
    for (const { lane } of wanted) if (!mayBePart(lane)) this.readIn.set(lane, this.sweepNo);
    const rowsOf = Map.groupBy(rows, laneName);
    const now = this.clock.now();
    return wanted.reduce(
      (count, { shard, asked }) =>
        count + shard.refilled(asked, rowsOf.get(laneName(asked)) ?? [], sweptAt, now),
      0,
    );
  }
}

function failRefill(lanes: Iterable<RememberedLane>, error: unknown): never {
  for (const lane of lanes) lane.failRefill();
  throw error;
}

const laneName = ({ projectNo, region, flowClass }: Lane) => `${projectNo} ${region} ${flowClass}`;
