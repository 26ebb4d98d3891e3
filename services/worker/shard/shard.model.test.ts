import { expect, test } from "bun:test";
import fc from "fast-check";
import type { Answer, Due, DueItem, FreedPermits, OwedAttempt } from "../../../shared/bus/messages.ts";
import { FLOW_CLASSES } from "../../../shared/domain/flow-class.ts";
import { laneRoom, type RefillLane, SWEEP_LAG_MS, type SweptRow } from "../../../shared/store/queue/sweep.ts";
import { Dispatcher } from "../dispatch.ts";
import { newJobId, sweptOf } from "../test-support.ts";
import type { Entry } from "./entry.ts";
import type { RememberedLane } from "./remembered-lane.ts";
import { Shard } from "./shard.ts";
import { Timers } from "./timers.ts";

/**
 * A shard and a dispatcher over a database that is a list, with every message in the tester's hand: it may come late,
 * twice or never, and what the sweep read may be old when it arrives. Once messages come through again, everything that
 * is owed is sent, whatever happened before. The claim grants no attempt before its time, beyond a limit or twice.
 */

const START = 1_800_000_000_000;
const PROJECTS = [1, 2];
const STEP_MS = 100;
/** Enough for everything that a run can create, at the smallest limit. */
const QUIET_STEPS_MAX = 6_000;

interface Row extends OwedAttempt {
  /** When other statements see the row. It is owed from the beginning of its own statement on. */
  visibleAt: number;
  state: "owed" | "wire" | "over";
  /** How many attempts follow this one. */
  left: number;
}

/** A statement that is under way. */
interface Look {
  answer(): void;
  fail(): void;
}

class World {
  now = START;
  readonly rows = new Map<string, Row>();
  readonly limits = new Map(
    PROJECTS.map((no) => [no, { limit: 1, returned: 0, isWaiting: false, isHeld: false }]),
  );
  readonly sent = new Set<string>();
  dues: Due[] = [];
  answers: { item: DueItem; answer: Answer }[] = [];
  hints: ({ owed: OwedAttempt } | { freed: FreedPermits } | { begun: OwedAttempt })[] = [];
  private low = new Set<RememberedLane>();
  /** The answers to the last sweep that are still to come, at most two. */
  private sweeping: Look[] = [];
  private refills: Look[] = [];
  private askedCount = 0;
  private dispatcher = this.startDispatcher();
  private readonly timers = new Timers<Entry>(START);
  shard = this.startShard();

  flow(no: number) {
    const flow = this.limits.get(no);
    if (flow === undefined) throw new Error(`no project ${no}`);
    return flow;
  }

  inUse(no: number): number {
    return this.all("wire").filter((row) => row.projectNo === no).length;
  }

  all(state: Row["state"]): Row[] {
    return [...this.rows.values()].filter((row) => row.state === state);
  }

  create(
    projectNo: number,
    development: boolean,
    count: number,
    aheadMs: number,
    lagMs: number,
    isTold: boolean,
  ) {
    for (let n = 0; n < count; n++) {
      const row: Row = {
        projectNo,
        flowClass: development ? "development jobs" : "production webhooks",
        id: newJobId(),
        attempt: 1,
        dueAt: this.now + (aheadMs === 0 ? 0 : aheadMs + n / 8),
        visibleAt: this.now + lagMs,
        state: "owed",
        left: n % 3,
      };
      this.rows.set(row.id, row);
      // A message can tell only of committed rows, and rows that are committed this late are not told of.
      if (isTold && lagMs === 0) this.hints.push({ owed: owedOf(row) });
    }
  }

  retryByHand(pick: number, isTold: boolean): void {
    const waiting = this.all("owed").filter((row) => row.attempt > 1 && row.dueAt > this.now);
    const row = waiting[pick % Math.max(1, waiting.length)];
    if (row === undefined) return;
    row.dueAt = this.now;
    if (isTold) this.hints.push({ owed: owedOf(row) });
  }

  pass(ms: number): void {
    this.now += ms;
    this.dispatcher.heard({ nodeId: 9, regions: ["us-east"], room: 400 }, this.now);
    this.timers.advance(this.now, (entry) => entry.shard.comeDue(entry, this.now));
    this.dispatcher.run(this.now, (shard) => shard === this.shard);
  }

  /** The claim of a whole message, as claim.ts decides it; its answers are on their way. */
  claim(due: Due, areAnswersLost: boolean): void {
    for (const item of due.items) {
      const answer = this.judge(item);
      if (!areAnswersLost) this.answers.push({ item, answer });
    }
    const count = due.items.length;
    if (!areAnswersLost) this.dispatcher.answered(9, count, 400);
  }

  private judge(item: DueItem): Answer {
    const row = this.rows.get(item.id);
    if (row === undefined || row.attempt !== item.attempt || row.state !== "owed") return { kind: "gone" };
    if (row.dueAt > this.now) return { kind: "early", waitMs: row.dueAt - this.now };
    const flow = this.flow(row.projectNo);
    if (flow.isHeld) return { kind: "blocked", untilAt: this.now + 2_000 };
    if (this.inUse(row.projectNo) >= flow.limit) {
      flow.isWaiting = true;
      return { kind: "no_permit", returned: flow.returned };
    }
    if (item.id.endsWith("7") && !this.sent.has(`full ${item.id}`)) {
      this.sent.add(`full ${item.id}`);
      return { kind: "node_full" };
    }
    if (/[35]$/.test(item.id) && !this.sent.has(`queued ${item.id}`)) {
      this.sent.add(`queued ${item.id}`);
      if (item.id.endsWith("3")) this.begin(row);
      return { kind: "queued", waitMs: 900 };
    }
    const name = `${row.id} ${row.attempt}`;
    if (this.sent.has(name)) throw new Error(`${name} was sent twice`);
    this.sent.add(name);
    row.state = "wire";
    return { kind: "granted" };
  }

  /** The node starts an attempt for which it answers "queued" in the place of another one. Its hint may come before the answer. */
  private begin(row: Row): void {
    this.sent.add(`${row.id} ${row.attempt}`);
    row.state = "wire";
    this.hints.push({ begun: owedOf(row) });
  }

  settle(pick: number, isTold: boolean): void {
    const wire = this.all("wire");
    const row = wire[pick % Math.max(1, wire.length)];
    if (row === undefined) return;
    const flow = this.flow(row.projectNo);
    flow.returned++;
    if (row.left > 0) {
      row.left--;
      row.attempt++;
      row.state = "owed";
      row.dueAt = this.now + (pick % 4) * 700;
      if (isTold) this.hints.push({ owed: owedOf(row) });
    } else {
      row.state = "over";
    }
    if (flow.isWaiting && isTold) {
      this.hints.push({ freed: { projectNo: row.projectNo, returned: flow.returned } });
    }
    flow.isWaiting = false;
  }

  deliverHint(pick: number): void {
    const [hint] = this.hints.splice(pick % Math.max(1, this.hints.length), 1);
    if (hint === undefined) return;
    if ("freed" in hint) this.shard.freed(hint.freed, this.now);
    else if ("begun" in hint) this.shard.begun(hint.begun, this.now);
    else this.shard.learn(hint.owed, this.now);
  }

  deliverAnswer(pick: number): void {
    const [answered] = this.answers.splice(pick % Math.max(1, this.answers.length), 1);
    if (answered === undefined) return;
    const { projectNo, shard, id, attempt } = answered.item;
    this.shard.answer({ projectNo, shard, id, attempt, answer: answered.answer }, this.now);
  }

  /** Does as Sweeper.sweep: asks its two questions now. Their answers come by `answerSweep` and `endSweep`. */
  beginSweep(): void {
    if (this.sweeping.length > 0) return;
    const shard = this.shard;
    this.dispatcher.forgetUnanswered(shard.tidy(this.now));
    const fromAt = shard.sweepsFromAt;
    const remembered = shard.rememberedLanes();
    const mayGoAlong = this.askedCount % 2 === 0;
    const along = new Map<RememberedLane, RefillLane>();
    for (const lane of remembered) {
      const question = mayGoAlong && lane.isKnownFrom(fromAt) ? lane.ask(this.now) : null;
      if (question !== null) along.set(lane, question);
    }
    const apart = remembered.filter((lane) => !along.has(lane));
    const ofApart = this.askFor(apart);
    const sweptAt = this.now;
    const rows = PROJECTS.flatMap((projectNo) =>
      FLOW_CLASSES.flatMap((flowClass) => {
        const name = { projectNo, flowClass, region: "us-east" as const };
        const isApart = apart.some(
          (lane) => lane.name.projectNo === projectNo && lane.name.flowClass === flowClass,
        );
        return isApart
          ? []
          : this.read({ ...name, sinceAt: fromAt, room: laneRoom(this.flow(projectNo).limit) });
      }),
    );
    const ofOthers = {
      answer: () => {
        if (shard === this.shard) shard.swept(rows, [...along.values()], { fromAt, sweptAt }, this.now);
      },
      fail: () => {
        for (const lane of along.keys()) lane.failRefill();
      },
    };
    this.sweeping = [ofApart, ofOthers];
  }

  /** One of the two answers of the sweep comes, or its statement fails. */
  answerSweep(pick: number, isAnswered: boolean): void {
    const [look] = this.sweeping.splice(pick % Math.max(1, this.sweeping.length), 1);
    if (isAnswered) look?.answer();
    else look?.fail();
  }

  endSweep(): void {
    for (const look of this.sweeping.splice(0)) look.answer();
  }

  beginRefill(): void {
    const lanes = [...this.low];
    this.low.clear();
    if (lanes.length > 0) this.refills.push(this.askFor(lanes));
  }

  endRefill(isAnswered: boolean): void {
    const look = this.refills.shift();
    if (isAnswered) look?.answer();
    else look?.fail();
  }

  restart(): void {
    this.low.clear();
    this.shard = this.startShard();
  }

  get isAllSent(): boolean {
    return this.all("owed").length === 0 && this.all("wire").length === 0;
  }

  private askFor(lanes: readonly RememberedLane[]): Look {
    const shard = this.shard;
    const mayBePart = this.askedCount++ % 3 > 0;
    const found = lanes.flatMap((lane) => {
      const question = lane.ask(this.now, mayBePart);
      return question === null ? [] : [{ lane, question, rows: this.read(question) }];
    });
    const sweptAt = this.now;
    return {
      answer: () => {
        if (shard !== this.shard) return;
        for (const { question, rows } of found) shard.refilled(question, rows, sweptAt, this.now);
      },
      fail: () => {
        for (const { lane } of found) lane.failRefill();
      },
    };
  }

  private read(asked: RefillLane): SweptRow[] {
    return this.all("owed")
      .filter((row) => row.projectNo === asked.projectNo && row.flowClass === asked.flowClass)
      .filter(
        (row) => row.visibleAt <= this.now && row.dueAt >= asked.sinceAt && row.dueAt <= this.now + 1_500,
      )
      .sort((one, other) => one.dueAt - other.dueAt)
      .slice(0, asked.room)
      .map((row) => sweptOf(owedOf(row), this.flow(row.projectNo).limit));
  }

  private startShard(): Shard {
    return new Shard({ region: "us-east", shard: 3, epoch: 1 }, this.now, this.timers, {
      onSendable: (lane, shard) => this.dispatcher.enqueue(lane, shard),
      onLow: (lane) => this.low.add(lane),
      onGranted: () => undefined,
    });
  }

  private startDispatcher(): Dispatcher {
    return new Dispatcher((_, due) => this.dues.push({ ...due, workerNodeId: 1 }));
  }
}

const owedOf = ({ projectNo, flowClass, id, attempt, dueAt }: Row): OwedAttempt => ({
  projectNo,
  flowClass,
  id,
  attempt,
  dueAt,
});

const pick = fc.nat(1_000);
const often = fc.nat(9).map((n) => n > 2);
const command = fc.oneof(
  fc.record({
    kind: fc.constant("create" as const),
    projectNo: fc.constantFrom(...PROJECTS),
    development: fc.boolean(),
    count: fc.constantFrom(1, 3, 40, 150),
    aheadMs: fc.constantFrom(0, 0, 300, 2_000, 70_000),
    lagMs: fc.constantFrom(0, 0, 800, SWEEP_LAG_MS - 1_000, 4 * SWEEP_LAG_MS),
    isTold: often,
  }),
  fc.record({ kind: fc.constant("pass" as const), ms: fc.constantFrom(1, 20, 300, 1_000, 3_500) }),
  fc.record({ kind: fc.constant("claim" as const), pick, isHeard: often, areAnswersHeard: often }),
  fc.record({ kind: fc.constant("claim all" as const) }),
  fc.record({ kind: fc.constant("settle" as const), pick, count: fc.constantFrom(1, 5, 50), isTold: often }),
  fc.record({ kind: fc.constant("hints" as const), pick, count: fc.constantFrom(1, 20, 500) }),
  fc.record({ kind: fc.constant("answers" as const), pick, count: fc.constantFrom(1, 20, 500) }),
  fc.record({ kind: fc.constant("lose" as const) }),
  fc.record({
    kind: fc.constantFrom("begin sweep", "begin refill", "restart" as const),
  }),
  fc.record({
    kind: fc.constantFrom("answer sweep", "end refill" as const),
    pick,
    isAnswered: often,
  }),
  fc.record({ kind: fc.constant("retry" as const), pick, isTold: often }),
  fc.record({
    kind: fc.constant("hold" as const),
    projectNo: fc.constantFrom(...PROJECTS),
    isHeld: fc.boolean(),
  }),
);
type Command = typeof command extends fc.Arbitrary<infer C> ? C : never;

function obey(world: World, step: Command): void {
  switch (step.kind) {
    case "create":
      world.create(step.projectNo, step.development, step.count, step.aheadMs, step.lagMs, step.isTold);
      break;
    case "pass":
      world.pass(step.ms);
      break;
    case "claim": {
      const [due] = world.dues.splice(step.pick % Math.max(1, world.dues.length), 1);
      if (due !== undefined && step.isHeard) world.claim(due, !step.areAnswersHeard);
      break;
    }
    case "claim all":
      for (const due of world.dues.splice(0)) world.claim(due, false);
      break;
    case "settle":
      for (let n = 0; n < step.count; n++) world.settle(step.pick + n, step.isTold);
      break;
    case "hints":
      for (let n = 0; n < step.count && world.hints.length > 0; n++) world.deliverHint(step.pick * n);
      break;
    case "answers":
      for (let n = 0; n < step.count && world.answers.length > 0; n++) world.deliverAnswer(step.pick * n);
      break;
    case "lose":
      world.hints.length = 0;
      break;
    case "begin sweep":
      world.beginSweep();
      break;
    case "answer sweep":
      world.answerSweep(step.pick, step.isAnswered);
      break;
    case "begin refill":
      world.beginRefill();
      break;
    case "end refill":
      world.endRefill(step.isAnswered);
      break;
    case "restart":
      world.restart();
      break;
    case "retry":
      world.retryByHand(step.pick, step.isTold);
      break;
    case "hold":
      world.flow(step.projectNo).isHeld = step.isHeld;
      break;
  }
}

/** Lets every message through, and returns the milliseconds that passed until nothing was owed. */
function calmDown(world: World): number {
  for (const no of PROJECTS) world.flow(no).isHeld = false;
  for (let step = 0; step < QUIET_STEPS_MAX; step++) {
    if (world.isAllSent) return step * STEP_MS;
    world.pass(STEP_MS);
    for (const due of world.dues.splice(0)) world.claim(due, false);
    while (world.answers.length > 0) world.deliverAnswer(0);
    for (let count = world.all("wire").length; count > 0; count--) world.settle(0, true);
    while (world.hints.length > 0) world.deliverHint(0);
    world.endRefill(true);
    world.beginRefill();
    if (step % 10 === 0) {
      world.endSweep();
      world.beginSweep();
    }
  }
  const owed = world.all("owed");
  throw new Error(
    `${owed.length} attempts are still owed, the first due at ${(owed[0]?.dueAt ?? 0) - START}`,
  );
}

test("a shard sends everything that is owed in the end, whatever was lost, late, refused or in its way", () => {
  fc.assert(
    fc.property(
      fc.array(command, { minLength: 5, maxLength: 60 }),
      fc.constantFrom(1, 5, 40, 100),
      fc.constantFrom(1, 5, 40, 100),
      (steps, one, other) => {
        const world = new World();
        world.flow(1).limit = one;
        world.flow(2).limit = other;
        for (const step of steps) obey(world, step);
        calmDown(world);
        // Then the shard remembers nothing.
        for (let n = 0; n < 20; n++) {
          world.pass(1_000);
          for (const due of world.dues.splice(0)) world.claim(due, false);
          while (world.answers.length > 0) world.deliverAnswer(0);
          world.endSweep();
          world.beginSweep();
        }
        expect(world.shard.entryCount).toBe(0);
        expect(world.shard.rememberedLanes()).toEqual([]);
      },
    ),
    { numRuns: 200 },
  );
});
