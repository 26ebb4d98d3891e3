import { HOME_REGION, PLAN_TERMS, PLANS, QUOTA_PERCENTS } from "../../domain/plan.ts";
import { ENVIRONMENTS } from "../../domain/scope.ts";
import {
  environmentCode,
  eventTypeCode,
  HOSTS_WATCHED,
  QUOTA_HEARD,
  regionCode,
  retentionClassOf,
} from "../database/codes.ts";
import { runsOf } from "./month.ts";
import { tellOf } from "./owed-deliveries.ts";

/**
 * The events that tell endpoints how much of its month's runs a project has used, as parts of the statements that count runs.
 * The statement that counts the run which reaches a threshold tells of it. The flow's retention class tells the plan, so a
 * change of the plan has nothing more to change.
 */

/** The runs that the plan of a flow (`f`) includes in a month. */
const runsIncluded = (f: string): string =>
  `(CASE ${f}.retention_class ${PLANS.map(
    (plan) => `WHEN ${retentionClassOf(plan)} THEN ${PLAN_TERMS[plan].runsIncluded}`,
  ).join(" ")} END)::bigint`;

const threshold = (f: string, percent: number | string): string => `${runsIncluded(f)} * ${percent} / 100`;

/** The thresholds of all plans, in order. */
const THRESHOLDS = PLANS.flatMap((plan) =>
  QUOTA_PERCENTS.map((percent) => (PLAN_TERMS[plan].runsIncluded * percent) / 100),
).sort((one, other) => one - other);
const reached = (runs: string): string => `width_bucket(${runs}, '{${THRESHOLDS.join(",")}}'::bigint[])`;

/**
 * Answers for a locked flow (f), before the clock is read: whether some endpoint may have to be told if the flow counts up to
 * `runs` more. One bit tells whether any endpoint asks for it. If so, the answer is true for the thresholds of other plans as
 * well, which keeps the expression short: the statement that tells decides. It is always true if the project's hosts are
 * watched (host-gates.ts). A month that has begun meanwhile counts from 0.
 */
export const mayReach = (runs: string): string =>
  `(f.subscriptions & ${QUOTA_HEARD | HOSTS_WATCHED} <> 0 AND (f.subscriptions & ${HOSTS_WATCHED} <> 0 OR ${reached(`f.month_runs + ${runs}`)} <> ${reached("f.month_runs")} OR ${runs} >= ${THRESHOLDS[0]}))`;

/** Whether some endpoint of a flow (f) may hear of the quota, or its hosts are watched. */
export const HEARS_OF_QUOTA = `f.subscriptions & ${QUOTA_HEARD | HOSTS_WATCHED} <> 0 AS hears`;

/** The columns of a locked flow (f) that tellOfQuota needs beside MONTH_COLUMNS (month.ts). */
export const QUOTA_COLUMNS = "f.subscriptions, f.retention_class";

const values = (numbers: readonly number[]) => numbers.map((number) => `(${number})`).join(", ");

/** The event's id, made of month and percentage: each threshold is told once in a month, whatever becomes of the plan. */
const EVENT_ID = `(lpad(to_hex((extract(epoch FROM e.month) * 1000)::bigint), 12, '0')
          || left(md5('quota ' || e.project_no || ' ' || e.environment || ' ' || e.month || ' ' || e.percent), 20))::uuid`;

/**
 * Tells the endpoints of both environments of each threshold that a statement reaches by counting `runs` more of its locked
 * flows. It stands behind `flow` (with MONTH_COLUMNS and QUOTA_COLUMNS) and `clock`; `counted` selects project_no and runs.
 */
export const tellOfQuota = (counted: string): string => `reached AS MATERIALIZED (
  SELECT e.*, ${EVENT_ID} AS own_id
    FROM (SELECT flow.project_no, env.code AS environment, t.percent, greatest(flow_month, clock.month) AS month,
                 used.runs + c.runs AS runs, ${runsIncluded("flow")} AS included
            FROM flow
           CROSS JOIN clock
            JOIN (${counted}) c USING (project_no)
           CROSS JOIN LATERAL (SELECT ${runsOf("flow_month", "month_runs", "clock.month")} AS runs) used
           CROSS JOIN (VALUES ${values(QUOTA_PERCENTS)}) t (percent)
           CROSS JOIN (VALUES ${values(ENVIRONMENTS.map(environmentCode))}) env (code)
           WHERE flow.subscriptions & ${QUOTA_HEARD} <> 0
             AND used.runs < ${threshold("flow", "t.percent")} AND used.runs + c.runs >= ${threshold("flow", "t.percent")}) e
), told AS MATERIALIZED (
  SELECT own_id, project_no, environment::smallint AS environment, ${regionCode(HOME_REGION)}::smallint AS region,
         (SELECT shard FROM lanes l WHERE l.project_no = r.project_no LIMIT 1) AS shard,
         ${eventTypeCode("quota.reached")}::smallint AS type, NULL::uuid AS job_id, NULL::bytea AS trace,
         json_build_object('period', to_char(month, 'YYYY-MM'), 'percent', percent, 'runs', runs, 'runs_included', included) AS data
    FROM reached r
   -- After a change of the plan the same threshold may be reached again.
   WHERE NOT EXISTS (SELECT FROM events v
                      WHERE v.project_no = r.project_no AND v.environment = r.environment AND v.id = r.own_id)
), ${tellOf("told", { eventId: "h.own_id" })}`;
