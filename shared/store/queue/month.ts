import { epochMs } from "../database/database.ts";

/**
 * The quota: how many runs a project's month has and how many are left of it, as parts of the statements that count or
 * ask. The number itself is monthRunsMax (domain/plan.ts), which stands in the project's flow.
 *
 * A statement may begin before midnight and lock the flow only after it, and a database's clock may be set back. So a
 * statement that counts reads the clock once the flow is locked, and a flow that counts a month never goes back to one
 * before it. The day of a run's usage lies in the month that the flow counts, so that the two agree.
 */

/**
 * The clock once all flows are locked, which is when a run starts. It stands behind `flow`, which locks flows as `f`, and has
 * an aggregate over the flows as well.
 */
export const clockWith = (aggregate: string, name: string): string => `clock AS MATERIALIZED (
  SELECT at, at::date AS day, date_trunc('month', at)::date AS month, ${name}
    FROM (SELECT clock_timestamp() AS at, ${name} FROM (SELECT ${aggregate} AS ${name} FROM flow) locked) read
)`;
export const CLOCK = clockWith("count(*)", "flow_count");

/** The runs that a flow has counted of the present month: none if the month that it counts is over. */
export const runsOf = (flowMonth: string, flowRuns: string, presentMonth: string): string =>
  `CASE WHEN ${flowMonth} < ${presentMonth} THEN 0 ELSE ${flowRuns} END`;

/** The columns by which a locked flow is judged. */
export const MONTH_COLUMNS = "f.month AS flow_month, f.month_runs, f.month_runs_max";

/** From MONTH_COLUMNS at `clock`: the first day of the month that is counted, and the runs left of it (null: no limit). */
export const MONTH_AT_CLOCK = `greatest(flow_month, clock.month) AS month,
         month_runs_max - ${runsOf("flow_month", "month_runs", "clock.month")} AS runs_left`;

/** Whether `runCount` more runs fit into a month that has `runsLeft` left (null: no limit). */
export const fitsMonth = (runCount: string, runsLeft: string): string =>
  `(${runsLeft} IS NULL OR ${runCount} <= ${runsLeft})`;

/** Assignments to a locked flow (f) that count `runs` more at `clock`. */
export const countRuns = (runs: string): string =>
  `month_runs = ${runsOf("f.month", "f.month_runs", "clock.month")} + ${runs},
         month = greatest(f.month, clock.month)`;

/** Counts the started attempts (`rows`) in the usage of their projects, at `clock`. */
export const countUsage = (rows: string): string => `usage AS (
  INSERT INTO usage_days AS u (project_no, day, region, runs)
  SELECT project_no, clock.day, region, count(*) FROM ${rows} CROSS JOIN clock
   GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
      ON CONFLICT (project_no, day, region) DO UPDATE SET runs = u.runs + excluded.runs
)`;

/**
 * For a locked flow (f), before the clock is read. RUNS_LEFT_AT_LEAST is how many runs are left of the month that the flow counts
 * (null: no limit). More are left if the clock then says that a later month has begun. MONTH_HAS_BEGUN tells whether the counted month
 * has begun.
 */
export const RUNS_LEFT_AT_LEAST = "f.month_runs_max - f.month_runs";
export const MONTH_HAS_BEGUN = "f.month <= now()::date";

/** The milliseconds from `at` until a spent quota clears, which is the end of `month`, the month that its flow counts. */
export const clearsIn = (month: string, at: string): string =>
  `(${epochMs(`${month} + interval '1 month'`)} - ${epochMs(at)})`;

/** The first day of the month that an unlocked flow (f) counts. */
export const COUNTED_MONTH = "greatest(f.month, date_trunc('month', now())::date)";

/** Answers for an unlocked flow (f): the runs of its month, the runs left of it (null: no limit), and whether one may start. */
export const MONTH_RUNS = runsOf("f.month", "f.month_runs", "date_trunc('month', now())::date");
export const RUNS_LEFT = `f.month_runs_max - ${MONTH_RUNS}`;
export const HAS_QUOTA = `(f.month_runs_max IS NULL OR ${MONTH_RUNS} < f.month_runs_max)`;
