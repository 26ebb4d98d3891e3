import type { AdvanceView, ClockView, Happened } from "../../../shared/contract/test-clock.ts";
import { timestampOf } from "../../../shared/contract/timestamp.ts";
import { type Advance, readAdvance } from "../../../shared/domain/test-clock.ts";
import type { Gate } from "../../../shared/platform/gate.ts";
import { lookOut, moveAhead } from "../../../shared/store/cell/test-clock.ts";
import { type Database, StoreUnavailable } from "../../../shared/store/database/database.ts";
import type { Delivery } from "../../delivery/start.ts";
import type { Worker } from "../../worker/start.ts";
import type { TestClock } from "./clock.ts";
import type { Tally } from "./tally.ts";

/**
 * Puts a test clock ahead, from each instant at which something comes due to the next one, so that everything happens in its order and
 * sees the time that it would see. While the clock leaps, nothing begins, nothing is on the wire, and no request is under way.
 */
export interface Walker {
  look(): ClockView;
  /** Walks as far as the body says, after earlier walks. Throws ApiError, StoreUnavailable and `Stopped`. */
  advance(body: { by?: string; to?: string }, signal: AbortSignal): Promise<AdvanceView>;
}

/** The walk was broken off: its caller has gone, or the process ends. The clock stays where it is by then. */
export class Stopped extends Error {}

export interface WalkOptions {
  /** A database whose statements the gate does not keep out. */
  db: Database;
  clock: TestClock;
  /** Lets in every statement of the worker and the delivery node, and every request. */
  gate: Gate;
  worker: Pick<Worker, "walk">;
  delivery: Pick<Delivery, "walk">;
  tally: Tally;
  isStopping(): boolean;
}

/**
 * How many turns of the event loop must pass without work. A message takes one turn from its sender to its receiver, and a
 * due attempt takes three of them to its claim.
 */
const QUIET_TURNS = 6;
const IDLE_POLL_MS = 1;
/** After so many polls, requests that hang on the wire are looked for less often. */
const PATIENT_AFTER_POLLS = 200;
const PATIENT_POLL_MS = 20;
/** After so many looks in which nothing has happened, due attempts are taken to wait for a limit, a quota or a hold. */
const FRUITLESS_LOOKS = 2;
/** A look fails while Postgres cannot be asked. */
const FAILED_LOOKS_MAX = 100;
const FAILED_LOOK_PAUSE_MS = 100;

export function createWalker(options: WalkOptions): Walker {
  const { db, clock, gate, worker, delivery, tally } = options;
  let last: Promise<unknown> = Promise.resolve();
  let walkingCount = 0;

  const happenedBy = (): Happened => {
    const { judged: _, ...happened } = tally;
    return happened;
  };
  const deeds = () => tally.attempts + tally.firings + tally.deliveries + tally.judged;
  const isIdle = () => worker.walk.isIdle() && delivery.walk.isIdle();

  async function walk(body: { by?: string; to?: string }, signal: AbortSignal): Promise<AdvanceView> {
    const check = () => {
      if (signal.aborted || options.isStopping()) throw new Stopped("the walk was broken off");
    };
    check();
    const from = clock.now();
    const begunAheadUs = clock.aheadUs;
    const before = happenedBy();
    const advance = readAdvance(body, from);
    // Duties by age run once a month on the way: the API hides rows that are over, so no client sees a difference.
    let cleanAt = nextMonthAt(from);
    let fruitless = 0;
    let isThorough = true;
    for (let failedLooks = 0; ; ) {
      check();
      const deedsBefore = deeds();
      if (!(await lookAround(isThorough))) {
        if (++failedLooks > FAILED_LOOKS_MAX) throw new StoreUnavailable("what is due cannot be looked for");
        await Bun.sleep(FAILED_LOOK_PAUSE_MS);
        continue;
      }
      failedLooks = 0;
      await untilIdle(check);
      fruitless = deeds() === deedsBefore ? fruitless + 1 : 0;
      const step = await gate.alone(() => leap(advance, begunAheadUs, fruitless >= FRUITLESS_LOOKS));
      if (step.kind === "arrived") break;
      if (step.kind === "leapt") fruitless = 0;
      else if (fruitless > 0) await Bun.sleep(IDLE_POLL_MS);
      isThorough = fruitless > 0 || step.isParked;
      if (clock.now() < cleanAt) continue;
      await cleanUp();
      cleanAt = nextMonthAt(clock.now());
    }
    await cleanUp();
    return {
      now: timestampOf(clock.now()),
      from: timestampOf(from),
      advanced_ms: Math.round((clock.aheadUs - begunAheadUs) / 1_000),
      happened: differenceOf(before, happenedBy()),
    };
  }

  async function lookAround(isThorough: boolean): Promise<boolean> {
    const looks = [worker.walk.look(isThorough), ...(isThorough ? [delivery.walk.look()] : [])];
    return (await Promise.all(looks)).every((isDone) => isDone);
  }

  async function untilIdle(check: () => void): Promise<void> {
    let polls = 0;
    for (let quietTurns = 0; quietTurns < QUIET_TURNS; quietTurns++) {
      if (!isIdle()) {
        quietTurns = -1;
        check();
        await Bun.sleep(++polls < PATIENT_AFTER_POLLS ? IDLE_POLL_MS : PATIENT_POLL_MS);
      }
      await new Promise(setImmediate);
    }
  }

  /** Goes to the next instant at which something is to be done. It is called while nothing else goes on. */
  async function leap(advance: Advance, begunAheadUs: number, isStuck: boolean): Promise<Step> {
    if (!isIdle()) return { kind: "busy", isParked: false };
    const { nextAt, isDue, isOnWire, isParked } = await lookOut(db);
    if (isOnWire || (isDue && !isStuck)) return { kind: "busy", isParked };
    const now = clock.now();
    const aheadMax = "by" in advance ? begunAheadUs + advance.by * 1_000 : Number.MAX_SAFE_INTEGER;
    const until = "by" in advance ? Number.POSITIVE_INFINITY : advance.to;
    if (clock.aheadUs >= aheadMax || now >= until) return { kind: "arrived", isParked };
    // An attempt that waits for a limit may have a timer for its next try.
    const timerAt = isDue ? worker.walk.nextTimerAt() : Number.POSITIVE_INFINITY;
    const at = Math.min(nextAt, worker.walk.nextBulkAt(), timerAt, nextMonthAt(now), until);
    await putAhead(Math.ceil(at), aheadMax);
    return { kind: "leapt", isParked };
  }

  /** Ends once this process knows what the database has noted, even after a lost answer: nothing may begin before. */
  async function putAhead(at: number, aheadMax: number): Promise<void> {
    const before = clock.aheadUs;
    try {
      clock.aheadUs = await moveAhead(db, at, aheadMax);
    } catch (error) {
      clock.aheadUs = await readUntilAnswered();
      throw error;
    } finally {
      worker.walk.leapt((clock.aheadUs - before) / 1_000);
      delivery.walk.leapt();
    }
  }

  /** Reads the clock without moving it, and waits for a statement that may still be moving it. */
  async function readUntilAnswered(): Promise<number> {
    for (;;) {
      try {
        return await moveAhead(db, 0, 0);
      } catch (error) {
        if (!(error instanceof StoreUnavailable) || options.isStopping()) throw error;
        await Bun.sleep(FAILED_LOOK_PAUSE_MS);
      }
    }
  }

  async function cleanUp(): Promise<void> {
    const { keys, runs } = await worker.walk.cleanUp();
    tally.expired_keys += keys;
    tally.purged_runs += runs;
  }

  return {
    look: () => ({
      now: timestampOf(clock.now()),
      offset_ms: Math.round(clock.aheadUs / 1_000),
      advancing: walkingCount > 0,
    }),
    async advance(body, signal) {
      // A body that can never be right is refused before its turn.
      readAdvance(body, clock.now());
      walkingCount++;
      const turn = last.catch(() => undefined).then(() => walk(body, signal));
      last = turn;
      return turn.finally(() => walkingCount--);
    },
  };
}

/** The outcome of a leap, and whether something is parked. */
interface Step {
  kind: "leapt" | "arrived" | "busy";
  isParked: boolean;
}

/** The instant at which quotas begin anew. */
function nextMonthAt(now: number): number {
  const date = new Date(now);
  return Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1);
}

function differenceOf(before: Happened, after: Happened): Happened {
  return {
    attempts: after.attempts - before.attempts,
    firings: after.firings - before.firings,
    deliveries: after.deliveries - before.deliveries,
    expired_keys: after.expired_keys - before.expired_keys,
    purged_runs: after.purged_runs - before.purged_runs,
  };
}
