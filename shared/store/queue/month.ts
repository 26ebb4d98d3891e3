/**
 * The runs of a project's month, in the words of the statements that count them or ask how many are left.
 *
 * A statement may begin before midnight and have the flow only after it, and a database's clock may be set back. So whoever
 * counts reads the clock once the flow is locked, and a flow that counts a month never goes back to one before it. The day
 * of a run's usage lies in the month that the flow counts, so that the two agree.
 */

/** To stand behind `flow`, which locks flows as `f`: the clock once all of them are locked, which is when a run starts. */
export const CLOCK = `clock AS MATERIALIZED (
  SELECT at, at::date AS day, date_trunc('month', at)::date AS month
    FROM (SELECT clock_timestamp() AS at FROM (SELECT count(*) FROM flow) locked) read
)`;

/** What a locked flow is judged by. */
export const MONTH_COLUMNS = "f.month AS flow_month, f.month_runs, f.month_runs_max";

/** Of MONTH_COLUMNS at `clock`: the month that is counted, its first day, and how many runs are left of it (null: no end). */
export const MONTH_AT_CLOCK = `greatest(flow_month, clock.month) AS month,
         month_runs_max - CASE WHEN flow_month < clock.month THEN 0 ELSE month_runs END AS runs_left`;

/** Assignments to a locked flow (f) of `runs` more at `clock`. */
export const countRuns = (runs: string): string =>
  `month_runs = CASE WHEN f.month < clock.month THEN 0 ELSE f.month_runs END + ${runs},
         month = greatest(f.month, clock.month)`;

/** Of a flow (f) that nobody has locked: how many runs its month has, and whether one more may start. */
export const MONTH_RUNS = "CASE WHEN f.month < date_trunc('month', now())::date THEN 0 ELSE f.month_runs END";
export const HAS_QUOTA = `(f.month_runs_max IS NULL OR ${MONTH_RUNS} < f.month_runs_max)`;
