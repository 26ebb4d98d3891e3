import type { Answers, Beat, Hint, OwedAttempt } from "../../shared/bus/messages.ts";
import { kindOf } from "../../shared/domain/flow-class.ts";
import type { Region } from "../../shared/domain/scope.ts";
import { single } from "../../shared/platform/metrics/metrics.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { listHeldRegions } from "../../shared/store/cell/holds.ts";
import type { HeldShard } from "../../shared/store/queue/shards.ts";
import { Dispatcher } from "./dispatch.ts";
import { shardName } from "./ownership.ts";
import type { Entry } from "./shard/entry.ts";
import { Shard } from "./shard/shard.ts";
import { Timers } from "./shard/timers.ts";
import { Sweeper } from "./sweeper.ts";

/** A hold stands until the sweep after the next, in case one is late, and no longer after a resume. */
const HELD_MS = 2_000;

/** The shards that a worker owns, all on its one thread: it tells them what arrives, and sends what they have ready. */
export class ShardHost {
  private readonly shards = new Map<string, Shard>();
  /** Lists of the held shards and their regions, made when asked for and forgotten when a shard comes or goes. */
  private heldNow: readonly HeldShard[] | null = null;
  private regionsNow: Region[] | null = null;
  /** One wheel serves all shards, so that an instant costs the same however many there are. */
  private timers: Timers<Entry>;
  private readonly dispatcher: Dispatcher;
  private readonly sweeper: Sweeper;
  private readonly timedSweep: ReturnType<Cell["metrics"]["statement"]>;

  constructor(
    private readonly cell: Cell,
    private readonly options: {
      nodeId: number;
      /** Whether the shards may be acted upon at this moment. */
      isTrusted(): boolean;
      /** Something may be ready to be sent, or be due at another time than before. */
      onChange(): void;
    },
  ) {
    this.timers = new Timers(cell.clock.now());
    this.dispatcher = new Dispatcher((deliveryNodeId, due) =>
      cell.bus.sendDue(deliveryNodeId, { ...due, workerNodeId: options.nodeId }),
    );
    this.sweeper = new Sweeper(cell.db, cell.clock);
    this.timedSweep = cell.metrics.statement("sweep");
    this.showMetrics();
  }

  find(region: Region, shard: number): Shard | undefined {
    return this.shards.get(shardName({ region, shard }));
  }

  /** The shards that are held, each by its region and number. */
  get held(): readonly HeldShard[] {
    this.heldNow ??= [...this.shards.values()].map(({ held }) => held);
    return this.heldNow;
  }

  /** The regions in which it holds shards. */
  get regions(): Region[] {
    this.regionsNow ??= [...new Set(this.held.map(({ region }) => region))];
    return this.regionsNow;
  }

  add(acquired: readonly HeldShard[]): void {
    this.forgetLists();
    for (const held of acquired) this.shards.set(shardName(held), this.createShard(held));
  }

  remove(lost: readonly HeldShard[]): void {
    this.forgetLists();
    for (const held of lost) {
      const shard = this.find(held.region, held.shard);
      if (shard === undefined) continue;
      this.dispatcher.forgetUnanswered(shard.sentTo());
      shard.end();
      this.shards.delete(shardName(held));
    }
  }

  /** The shards go on with an empty memory. */
  forget(): void {
    const { held } = this;
    this.remove(held);
    this.timers = new Timers(this.cell.clock.now());
    this.add(held);
    this.dispatcher.forgetNodes();
  }

  learn(region: Region, shardNo: number, owed: readonly OwedAttempt[]): void {
    const shard = this.find(region, shardNo);
    if (shard === undefined) return;
    const now = this.cell.clock.now();
    for (const attempt of owed) shard.learn(attempt, now);
    this.options.onChange();
  }

  hearHint({ region, shard, owed, freed, begun = [] }: Hint): void {
    const now = this.cell.clock.now();
    for (const permits of freed) this.find(region, shard)?.freed(permits, now);
    for (const attempt of begun) this.find(region, shard)?.begun(attempt, now);
    this.learn(region, shard, owed);
  }

  hearAnswers({ deliveryNodeId, region, room, items }: Answers): void {
    const now = this.cell.clock.now();
    this.dispatcher.answered(deliveryNodeId, items.length, room);
    for (const item of items) this.find(region, item.shard)?.answer(item, now);
    this.options.onChange();
  }

  hearBeat(beat: Beat): void {
    this.dispatcher.heard(beat, this.cell.clock.now());
    this.options.onChange();
  }

  /** Makes ready what is due, and returns when the next timer is. */
  advance(now: number): number {
    if (this.timers.nextAt() <= now) this.timers.advance(now, (entry) => entry.shard.comeDue(entry, now));
    return this.timers.nextAt();
  }

  /** Sends what is ready to the delivery nodes. */
  send(now: number): void {
    const { isTrusted } = this.options;
    this.dispatcher.run(
      now,
      (shard) => isTrusted() && this.find(shard.held.region, shard.held.shard) === shard,
    );
  }

  /** Finds in Postgres the attempts of which no message told. */
  async sweep(): Promise<void> {
    const { db, clock, metrics } = this.cell;
    const now = clock.now();
    for (const shard of this.shards.values()) this.dispatcher.forgetUnanswered(shard.tidy(now));
    const swept = [...this.shards.values()];
    const heldRegions = new Set((await listHeldRegions(db)).map(({ region }) => region));
    metrics.sweepFound.inc(await this.timedSweep(swept.length, () => this.sweeper.sweep(swept)));
    // The sweep may have found attempts in a held region. Postgres refuses the claim of one that has been sent already.
    for (const shard of swept) if (heldRegions.has(shard.held.region)) shard.hold(clock.now() + HELD_MS);
    this.options.onChange();
  }

  /** When its next timer is, in milliseconds since 1970; Infinity if it has none. */
  nextAt(): number {
    return this.timers.nextAt();
  }

  /** Whether it has nothing to do now, as far as it remembers. */
  isIdle(now: number): boolean {
    return (
      !this.wantsRefill &&
      this.timers.nextAt() > now &&
      [...this.shards.values()].every((shard) => shard.isIdle(now))
    );
  }

  get wantsRefill(): boolean {
    return this.sweeper.hasLow;
  }

  async refill(): Promise<void> {
    await this.sweeper.refill();
    this.options.onChange();
  }

  private forgetLists(): void {
    this.heldNow = null;
    this.regionsNow = null;
  }

  private createShard(held: HeldShard): Shard {
    const { clock, metrics } = this.cell;
    const note = {
      jobs: metrics.granted("jobs", held.region),
      webhooks: metrics.granted("webhooks", held.region),
    };
    return new Shard(held, clock.now(), this.timers, {
      onSendable: (lane, shard) => this.dispatcher.enqueue(lane, shard),
      onLow: (lane, shard) => this.sweeper.noteLow(lane, shard),
      onGranted: ({ flowClass, dueAt }, waitedFor, now) =>
        note[kindOf(flowClass)](now - dueAt, waitedFor !== null),
    });
  }

  /** The figures count what the shards remember. Postgres is not asked, and may hold more. */
  private showMetrics(): void {
    const { shards } = this;
    const { clock, metrics } = this.cell;
    metrics.shardsOwned.follow(() => single(shards.size));
    const read = (figureOf: (shard: Shard, now: number) => number) =>
      function* () {
        const now = clock.now();
        for (const shard of shards.values()) {
          const { region, shard: no } = shard.held;
          yield { labels: { region, shard: String(no) }, value: figureOf(shard, now) };
        }
      };
    metrics.shardReady.follow(read((shard, now) => shard.backlog(now).readyCount));
    metrics.shardOldestDueSeconds.follow(
      read((shard, now) => Math.max(0, now - (shard.backlog(now).oldestDueAt ?? now)) / 1_000),
    );
  }
}
