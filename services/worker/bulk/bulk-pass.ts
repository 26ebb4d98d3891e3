import { randomBytes } from "node:crypto";
import { sendCommands } from "../../../shared/bus/hints.ts";
import { pagesOf } from "../../../shared/domain/bulk.ts";
import { createIdSource, type IdSource } from "../../../shared/domain/ids.ts";
import type { Cell } from "../../../shared/process/cell.ts";
import { startBulk } from "../../../shared/store/queue/bulk/counting.ts";
import { listOpenBulks, type OpenBulk } from "../../../shared/store/queue/bulk/open-bulks.ts";
import type { BulkPlace, JudgedPage } from "../../../shared/store/queue/bulk/page.ts";
import type { HeldShard } from "../../../shared/store/queue/shards.ts";
import { countPage } from "./count-page.ts";
import { judgePage } from "./judge-page.ts";
import { createTurns } from "./turns.ts";

/** The bound over all environments, so that bulk operations leave connections and time of Postgres to jobs. */
const STATEMENTS_AT_ONCE_MAX = 3;

export interface BulkPassOptions {
  /** The shard of the home region as this worker owns it now, if it does and may act on it. */
  heldOf(shard: number): HeldShard | undefined;
  /** Another operation may go on: the next look is wanted at once. */
  onChange(): void;
  /** The source of the ids of runs and jobs, if a simulation brings its own. */
  ids?: IdSource;
}

/** A bulk operation, and the instant at which its next step is due, by `performance.now`. */
interface Work {
  bulk: OpenBulk;
  dueAt: number;
}

/** What a step of an operation has changed, and when the next one is due. */
interface Step {
  change: Partial<OpenBulk>;
  /** From the instant at which this step was due. */
  everyMs: number;
  /** At least, from the instant at which this step began. */
  waitMs: number;
}

const AT_ONCE = { everyMs: 0, waitMs: 0 };

/** The work of one worker for one environment: the environment's operations take turns, one statement at a time. */
interface Queue {
  works: Map<string, Work>;
  /** Ends the queue's wait for its next step. */
  wake(): void;
}

/**
 * Carries out the bulk operations of the projects whose shards of the home region this worker owns. Its memory may be lost
 * without harm: one statement counts or judges a page and moves the operation's row on, so that the next statement begins at the
 * very member where the last page ended.
 */
export class BulkPass {
  private readonly queues = new Map<string, Queue>();
  private readonly running = new Set<Promise<void>>();
  private readonly inTurn = createTurns(STATEMENTS_AT_ONCE_MAX);
  private readonly ids: IdSource;
  private readonly timedCount: ReturnType<Cell["metrics"]["statement"]>;
  private readonly timedJudge: ReturnType<Cell["metrics"]["statement"]>;
  private isStopped = false;
  private stepCount = 0;
  /** The looks that were wanted, and those that were answered: while the counts differ, another operation may go on. */
  private looksWanted = 0;
  private looksAnswered = 0;

  constructor(
    private readonly cell: Cell,
    private readonly options: BulkPassOptions,
  ) {
    this.ids = options.ids ?? createIdSource(randomBytes);
    this.timedCount = cell.metrics.statement("count_bulk");
    this.timedJudge = cell.metrics.statement("judge_bulk");
  }

  /** Learns which operations of these shards of the home region can go on. */
  async look(shards: readonly number[]): Promise<void> {
    if (shards.length === 0) return;
    const wanted = this.looksWanted;
    for (const bulk of await listOpenBulks(this.cell.db, shards)) this.learn(bulk);
    this.looksAnswered = wanted;
  }

  /** The milliseconds until the next step of an operation is due, as far as is known; Infinity if there is none. */
  nextInMs(): number {
    const dueAts = [...this.queues.values()].flatMap(({ works }) =>
      [...works.values()].map(({ dueAt }) => dueAt),
    );
    return Math.min(...dueAts) - performance.now();
  }

  /** Whether no step is under way or due, and no look is wanted. */
  get isIdle(): boolean {
    return this.stepCount === 0 && this.nextInMs() > 0 && this.looksAnswered === this.looksWanted;
  }

  /** Shortens all waits by `ms`: a test clock was put ahead by it, and the pace goes by that clock. */
  leapt(ms: number): void {
    for (const queue of this.queues.values()) {
      for (const work of queue.works.values()) work.dueAt -= ms;
      queue.wake();
    }
  }

  /** Begins no more steps, and resolves when the last one has ended. */
  async drain(): Promise<void> {
    this.isStopped = true;
    for (const queue of this.queues.values()) queue.wake();
    await Promise.all(this.running);
  }

  private learn(bulk: OpenBulk): void {
    if (this.isStopped) return;
    const name = `${bulk.projectNo}/${bulk.environment}`;
    const queue = this.queues.get(name) ?? { works: new Map(), wake: () => undefined };
    const known = queue.works.get(bulk.id);
    // The known state of the operation is newer than the row, except for its plan.
    if (known !== undefined) {
      known.bulk = { ...known.bulk, plan: bulk.plan };
      return;
    }
    queue.works.set(bulk.id, { bulk, dueAt: performance.now() });
    queue.wake();
    if (this.queues.has(name)) return;
    this.queues.set(name, queue);
    const work = this.work(name, queue).then(() => void this.running.delete(work));
    this.running.add(work);
  }

  private async work(name: string, queue: Queue): Promise<void> {
    while (!this.isStopped && queue.works.size > 0) {
      const next = [...queue.works.values()].reduce((one, other) => (other.dueAt < one.dueAt ? other : one));
      const waitMs = next.dueAt - performance.now();
      if (waitMs > 0) {
        await waitFor(queue, waitMs);
        continue;
      }
      const beganAt = performance.now();
      this.stepCount++;
      const after = await this.inTurn(() => this.step(next.bulk));
      this.stepCount--;
      if (after === null) queue.works.delete(next.bulk.id);
      else {
        // A step that began late does not put off the steps behind it, so that the pace is kept.
        const dueAt = Math.max(next.dueAt + after.everyMs, beganAt + after.waitMs);
        Object.assign(next, { bulk: { ...next.bulk, ...after.change }, dueAt });
      }
    }
    // An operation that is learnt from here on begins a new queue.
    this.queues.delete(name);
  }

  /** Returns null if no step is left, or if the next step is unknown: the next look tells. Does not throw. */
  private async step(bulk: OpenBulk): Promise<Step | null> {
    const held = this.isStopped ? undefined : this.options.heldOf(bulk.shard);
    if (held === undefined) return null;
    const place = { projectNo: bulk.projectNo, environment: bulk.environment, id: bulk.id, held };
    try {
      switch (bulk.status) {
        case "counting":
          return await this.count(bulk, place);
        case "waiting":
          return (await startBulk(this.cell.db, place))
            ? { ...AT_ONCE, change: { status: "running" } }
            : null;
        case "running":
          return await this.judge(bulk, place);
      }
    } catch (error) {
      this.cell.log.warn({ err: error, bulkId: bulk.id }, "bulk.not_carried_out");
      return null;
    }
  }

  private async count(bulk: OpenBulk, place: BulkPlace) {
    const { db, clock } = this.cell;
    const counted = await this.timedCount(1, () => countPage(db, bulk, place, clock.now()));
    if (counted === "gone") {
      // A look begun before the counting ended brought the old row back, and hid the new one from a later look. The next look
      // comes in its time.
      this.looksWanted++;
      return null;
    }
    if (counted.countedTo !== null) return { ...AT_ONCE, change: counted };
    this.wantLook();
    return null;
  }

  private async judge(bulk: OpenBulk, place: BulkPlace) {
    const { db, bus, clock } = this.cell;
    const asking = { ids: this.ids, now: clock.now() };
    const judged = await this.timedJudge(1, () => judgePage(db, bulk, place, asking));
    if (judged === null) return null;
    this.note(bulk, judged);
    sendCommands(bus, judged.owed, clock.now());
    if (!judged.isOver)
      return {
        change: {},
        everyMs: pagesOf(bulk.perSecond).everyMs,
        waitMs: judged.waitMs > 0 ? Math.ceil(judged.waitMs) + 1 : 0,
      };
    this.cell.log.info({ bulkId: bulk.id, action: bulk.action }, "bulk.done");
    this.wantLook();
    return null;
  }

  private wantLook(): void {
    this.looksWanted++;
    this.options.onChange();
  }

  private note({ action }: OpenBulk, page: JudgedPage): void {
    for (const outcome of ["done", "skipped", "failed"] as const) {
      if (page[outcome] > 0) this.cell.metrics.bulkMembers.of({ action, outcome }).inc(page[outcome]);
    }
    if (action === "backfill") this.cell.metrics.jobsCreated.of({ origin: "backfill" }).inc(page.done);
  }
}

function waitFor(queue: Queue, ms: number): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    queue.wake = () => {
      clearTimeout(timer);
      resolve();
    };
  });
}
