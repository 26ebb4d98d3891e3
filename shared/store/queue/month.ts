/**
 * The quota: how many runs a project's month has and how many are left of it, in the words of the statements that count
 * them or ask. The number itself is monthRunsMax (domain/plan.ts), which stands in the project's flow.
 *
 * A statement may begin before midnight and have the flow only after it, and a database's clock may be set back. So a
 * statement that counts reads the clock once the flow is locked, and a flow that counts a month never goes back to one
 * before it. The day of a run's usage lies in the month that the flow counts, so that the two agree.
 */

/**
 * To stand behind `flow`, which locks flows as `f`: the clock once all of them are locked, which is when a run starts. It has an
 * aggregate over the flows as well.
 */
export const clockWith = (aggregate: string, name: string): string => `clock AS MATERIALIZED (
  SELECT at, at::date AS day, date_trunc('month', at)::date AS month, ${name}
    FROM (SELECT clock_timestamp() AS at, ${name} FROM (SELECT ${aggregate} AS ${name} FROM flow) locked) read
)`;
export const CLOCK = clockWith("count(*)", "flow_count");

/** The runs that a flow has counted of the present month: none if the month that it counts is over. */
export const runsOf = (flowMonth: string, flowRuns: string, presentMonth: string): string =>
  `CASE WHEN ${flowMonth} < ${presentMonth} THEN 0 ELSE ${flowRuns} END`;

/** What a locked flow is judged by. */
export const MONTH_COLUMNS = "f.month AS flow_month, f.month_runs, f.month_runs_max";

/** Of MONTH_COLUMNS at `clock`: the month that is counted, its first day, and how many runs are left of it (null: no end). */
export const MONTH_AT_CLOCK = `greatest(flow_month, clock.month) AS month,
         month_runs_max - ${runsOf("flow_month", "month_runs", "clock.month")} AS runs_left`;

/** Assignments to a locked flow (f) of `runs` more at `clock`. */
export const countRuns = (runs: string): string =>
  `month_runs = ${runsOf("f.month", "f.month_runs", "clock.month")} + ${runs},
         month = greatest(f.month, clock.month)`;

/**
 * Of a locked flow (f), before the clock is read: how many runs its month has left at least, whatever the clock will say (null:
 * no end), and whether its month has begun.
 */
export const RUNS_LEFT_AT_LEAST = "f.month_runs_max - f.month_runs";
export const MONTH_HAS_BEGUN = "f.month <= now()::date";

/** Of a flow (f) that is not locked: the runs of its month, how many are left of it (null: no end), and whether one may start. */
export const MONTH_RUNS = runsOf("f.month", "f.month_runs", "date_trunc('month', now())::date");
export const RUNS_LEFT = `f.month_runs_max - ${MONTH_RUNS}`;
export const HAS_QUOTA = `(f.month_runs_max IS NULL OR ${MONTH_RUNS} < f.month_runs_max)`;
