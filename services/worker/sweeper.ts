import type { Clock } from "../../shared/platform/clock.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { type Lane, type RefillLane, refillLanes, sweepShards } from "../../shared/store/queue/sweep.ts";
import { shardName } from "./ownership.ts";
import { type RememberedLane, SWEEP_AHEAD_MS } from "./shard/remembered-lane.ts";
import type { Shard } from "./shard/shard.ts";

/** The worker does nothing else while it reads an answer. So one answer is about no more lanes than this. */
const LANES_PER_STATEMENT_MAX = 200;
/**
 * About how many entries that are remembered already one sweep reads again, to find those of which no message told. If more are
 * remembered, lanes take turns in it, and of the others a sweep reads what comes after the last look.
 */
const READ_AGAIN_MAX = 5_000;

/**
 * Finds in Postgres the attempts of which no message told, and those that did not fit when a message told of them. It
 * asks two questions. What is in the lanes that the shards do not remember is one statement for all shards of the process.
 * What comes next in those that they remember is one statement for each LANES_PER_STATEMENT_MAX lanes.
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
    const lanes = remembered.map(({ lane }) => lane);
    const names = lanes.map(({ name }) => name);
    const readAgain = this.chooseReadAgain(lanes);
    const [swept, newsCount] = await Promise.all([
      sweepShards(this.db, asked, names, SWEEP_AHEAD_MS),
      this.ask(remembered, (lane) => !readAgain.has(lane)),
    ]);
    const now = this.clock.now();
    const rowsOf = Map.groupBy(swept.rows, ({ region, shard }) => shardName({ region, shard }));
    return shards.reduce((count, shard, index) => {
      // Nearly always no shard has rows, and then no name is made.
      const rows = (rowsOf.size > 0 && rowsOf.get(shardName(shard.held))) || [];
      return count + shard.swept(rows, asked[index]?.sinceAt ?? Number.NEGATIVE_INFINITY, swept.sweptAt, now);
    }, newsCount);
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

  private async ask(
    lanes: readonly { lane: RememberedLane; shard: Shard }[],
    mayBePart: (lane: RememberedLane) => boolean,
  ): Promise<number> {
    let newsCount = 0;
    for (let at = 0; at < lanes.length; at += LANES_PER_STATEMENT_MAX)
      newsCount += await this.askSome(lanes.slice(at, at + LANES_PER_STATEMENT_MAX), mayBePart);
    return newsCount;
  }

  private async askSome(
    lanes: readonly { lane: RememberedLane; shard: Shard }[],
    mayBePart: (lane: RememberedLane) => boolean,
  ): Promise<number> {
    const wanted: { lane: RememberedLane; shard: Shard; asked: RefillLane }[] = [];
    for (const { lane, shard } of lanes) {
      const asked = lane.ask(this.clock.now(), mayBePart(lane));
      if (asked !== null) wanted.push({ lane, shard, asked });
    }
    if (wanted.length === 0) return 0;
    const questions = wanted.map(({ asked }) => asked);
    const { rows, sweptAt } = await refillLanes(this.db, questions, SWEEP_AHEAD_MS).catch((error) => {
      for (const { lane } of wanted) lane.failRefill();
      throw error;
    });
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

const laneName = ({ projectNo, region, flowClass }: Lane) => `${projectNo} ${region} ${flowClass}`;
