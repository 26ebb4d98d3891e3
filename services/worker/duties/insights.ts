import { Figures } from "../../../shared/domain/insights/figures.ts";
import type { Percentiles, Sketch } from "../../../shared/domain/insights/sketch.ts";
import { WAIT_REASONS } from "../../../shared/domain/wait.ts";
import { type Metrics, single } from "../../../shared/platform/metrics/metrics.ts";
import type { Cell } from "../../../shared/process/cell.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { closeSome } from "../../../shared/store/insights/closing.ts";
import type { Part } from "../../../shared/store/insights/parts.ts";
import { findOutset, type Progress } from "../../../shared/store/insights/progress.ts";
import { closableLevel, takeStep } from "../../../shared/store/insights/roll-up.ts";

/** The next tick does the rest, so that the duty never takes a large part of what Postgres can do. */
const STEPS_PER_TICK_MAX = 20;
const CLOSINGS_PER_TICK_MAX = 200;
/** A smaller step would take longer than the runs that it counts took to come about. */
const SHARE_MIN = 1 / 128;
/** The cell's figures cover this much time. */
const SHOWN_MS = 120_000;

/**
 * Rolls up what was committed since the last tick, and shows the figures of the whole cell. Any worker may do this: if two do
 * it at once, one finds that its step was taken. Resolves to whether nothing is left to be rolled up.
 */
export function createInsights(): (cell: Pick<Cell, "db" | "metrics">) => Promise<boolean> {
  let gauges: CellInsights | null = null;
  let share = 1;

  /** Counts all that is new and resolves to the state after it; null if the next tick or another worker goes on. */
  async function countNew(db: Database, shown: CellInsights): Promise<Progress | null> {
    for (let steps = 0; steps < STEPS_PER_TICK_MAX; steps++) {
      const outset = await findOutset(db);
      if (outset === null) return null;
      const { next, parts, isCaughtUp } = await takeStep(db, outset, share).catch((error) => {
        share = Math.max(share / 2, SHARE_MIN);
        throw error;
      });
      if (next === null) return null;
      share = Math.min(share * 2, 1);
      shown.add(parts);
      if (isCaughtUp) return next;
    }
    return null;
  }

  return async ({ db, metrics }) => {
    gauges ??= new CellInsights(metrics);
    gauges.noteTick();
    const progress = await countNew(db, gauges);
    if (progress === null) return false;
    gauges.noteCaughtUp();
    return closeBuckets(db, progress);
  };
}

async function closeBuckets(db: Database, caughtUp: Progress): Promise<boolean> {
  let progress: Progress | null = caughtUp;
  for (let steps = 0; steps < CLOSINGS_PER_TICK_MAX && progress !== null; steps++) {
    const level = closableLevel(progress);
    if (level === null) return true;
    progress = await closeSome(db, progress, level);
  }
  return false;
}

/** The figures over all projects, as far as this process has counted them itself. */
class CellInsights {
  private counted: { at: number; figures: Figures }[] = [];
  private caughtUpAt: number | null = null;
  private tickedAt = Number.NEGATIVE_INFINITY;
  private readonly waited: Readonly<Record<string, { inc(by: number): void }>>;

  constructor(metrics: Metrics) {
    this.waited = Object.fromEntries(
      WAIT_REASONS.map((reason) => [reason, metrics.insightsWaited.of({ reason })]),
    );
    metrics.insightsLatenessSeconds.follow(() => [
      ...quantilesOf(this.recent().late).map(withRuns("own")),
      ...quantilesOf(this.recent().lateAll()).map(withRuns("all")),
    ]);
    metrics.insightsDurationSeconds.follow(() => quantilesOf(this.recent().durations));
    metrics.insightsBehindSeconds.follow(() =>
      this.caughtUpAt === null || !this.isOnDuty()
        ? []
        : single((performance.now() - this.caughtUpAt) / 1_000),
    );
  }

  /** Adds the parts of level 0; the other levels count the same runs again. */
  add(parts: readonly Part[]): void {
    const figures = new Figures();
    for (const part of parts) if (part.key.level === 0) figures.add(part.figures);
    for (const [reason, count] of figures.waitedFor) this.waited[reason]?.inc(count);
    this.forgetOld();
    this.counted.push({ at: performance.now(), figures });
  }

  noteTick(): void {
    // The progress of the worker before this one is unknown, so the lag is counted from now.
    if (!this.isOnDuty()) this.caughtUpAt = performance.now();
    this.tickedAt = performance.now();
  }

  noteCaughtUp(): void {
    this.caughtUpAt = performance.now();
  }

  /** Whether this worker has ticked within SHOWN_MS; false once another worker has the duty. */
  private isOnDuty(): boolean {
    return this.tickedAt > performance.now() - SHOWN_MS;
  }

  private recent(): Figures {
    this.forgetOld();
    const figures = new Figures();
    for (const one of this.counted) figures.add(one.figures);
    return figures;
  }

  private forgetOld(): void {
    const since = performance.now() - SHOWN_MS;
    this.counted = this.counted.filter(({ at }) => at > since);
  }
}

const QUANTILES: Readonly<Record<keyof Percentiles, string>> = {
  p50: "0.5",
  p90: "0.9",
  p99: "0.99",
  max: "1",
};

function quantilesOf(sketch: Sketch): { labels: { quantile: string }; value: number }[] {
  const percentiles = sketch.percentiles();
  return (Object.keys(QUANTILES) as (keyof Percentiles)[]).flatMap((name) => {
    const ms = percentiles[name];
    return ms === null ? [] : [{ labels: { quantile: QUANTILES[name] }, value: ms / 1_000 }];
  });
}

const withRuns =
  (runs: "own" | "all") =>
  ({ labels, value }: { labels: { quantile: string }; value: number }) => ({
    labels: { runs, ...labels },
    value,
  });
