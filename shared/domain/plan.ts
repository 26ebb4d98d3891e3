import type { Region } from "./scope.ts";

/** The limits of each plan, and the billing month by which runs are counted. */

export interface Limits {
  /** The requests of each environment in any minute (store/resources/request-rate.ts). */
  requestsPerMinute: number;
  /** Job attempts and webhook deliveries in progress together, over both environments and all regions. */
  concurrency: number;
  /** Active schedules over both environments. */
  schedules: number;
}

export interface PlanTerms extends Limits {
  runsIncluded: number;
  retentionDays: number;
}

export const PLANS = ["hobby", "pro", "scale", "enterprise"] as const;
export type Plan = (typeof PLANS)[number];

export const PLAN_TERMS: Readonly<Record<Plan, PlanTerms>> = {
  hobby: { requestsPerMinute: 60, concurrency: 10, schedules: 10, runsIncluded: 10_000, retentionDays: 3 },
  pro: {
    requestsPerMinute: 600,
    concurrency: 100,
    schedules: 1_000,
    runsIncluded: 250_000,
    retentionDays: 30,
  },
  scale: {
    requestsPerMinute: 3_000,
    concurrency: 500,
    schedules: 5_000,
    runsIncluded: 5_000_000,
    retentionDays: 90,
  },
  enterprise: {
    requestsPerMinute: 10_000,
    concurrency: 2_000,
    schedules: 50_000,
    runsIncluded: 50_000_000,
    retentionDays: 365,
  },
};

/**
 * Endpoints that ask for it hear when so many percent of the runs that a plan includes in a month are used
 * (store/queue/quota-events.ts).
 */
export const QUOTA_PERCENTS = [80, 100] as const;
export type QuotaPercent = (typeof QUOTA_PERCENTS)[number];

/** Accepted requests are counted by ticks of this length (store/resources/request-rate.ts). */
export const RATE_TICK_MS = 100;
/** A request counts until a whole minute after the end of the tick in which it was accepted. */
export const RATE_WINDOW_TICKS = 60_000 / RATE_TICK_MS + 1;
/** The most seconds that `RateLimit-Reset` and `Retry-After` tell a client to wait. */
export const RATE_WAIT_SECONDS_MAX = Math.ceil((RATE_WINDOW_TICKS * RATE_TICK_MS) / 1_000);

/** The most that an operator may set in place of a plan's own limit. */
export const LIMIT_OVERRIDE_MAX = 1_000_000;
export const WEBHOOK_ENDPOINTS_MAX = 50;
export const HOME_REGION: Region = "us-east";

export function isPlan(text: string): text is Plan {
  return (PLANS as readonly string[]).includes(text);
}

/** A project's plan, and the limits that an operator has set for it alone; null where none was set. */
export interface PlanFacts {
  plan: Plan;
  requestsPerMinuteOverride: number | null;
  concurrencyOverride: number | null;
  schedulesOverride: number | null;
}

export function limitsOf(project: PlanFacts): Limits {
  const terms = PLAN_TERMS[project.plan];
  return {
    requestsPerMinute: project.requestsPerMinuteOverride ?? terms.requestsPerMinute,
    concurrency: project.concurrencyOverride ?? terms.concurrency,
    schedules: project.schedulesOverride ?? terms.schedules,
  };
}

export function isRegionAllowed(plan: Plan, region: Region): boolean {
  return plan !== "hobby" || region === HOME_REGION;
}

/** A stored default that the plan no longer allows, after a downgrade, counts as us-east. */
export function effectiveDefaultRegion(plan: Plan, defaultRegion: Region): Region {
  return isRegionAllowed(plan, defaultRegion) ? defaultRegion : HOME_REGION;
}

/**
 * How many runs may start in a month; null for a paid plan, which is billed for the runs beyond those included. The
 * statements hold a project to this limit, in the words of store/queue/month.ts.
 */
export function monthRunsMax(plan: Plan): number | null {
  return plan === "hobby" ? PLAN_TERMS.hobby.runsIncluded : null;
}

export function overageRuns(plan: Plan, runsInMonth: number): number {
  return plan === "hobby" ? 0 : Math.max(0, runsInMonth - PLAN_TERMS[plan].runsIncluded);
}

/** Runs that were created before this instant, by the times in their ids, are outside the plan's retention window. */
export function retainedSince(plan: Plan, now: number): number {
  return now - PLAN_TERMS[plan].retentionDays * DAY_MS;
}

const DAY_MS = 86_400_000;
const MONTH_PATTERN = /^[0-9]{4}-(?:0[1-9]|1[0-2])$/;

/** The UTC month of an instant, as YYYY-MM. */
export function billingMonthOf(at: number): string {
  return new Date(at).toISOString().slice(0, 7);
}

export function isBillingMonth(text: string): boolean {
  return MONTH_PATTERN.test(text);
}

/** The first instant of a billing month. */
export function monthStartsAt(month: string): number {
  return Date.parse(`${month}-01T00:00:00.000Z`);
}

/** The first instant after a billing month. */
export function monthEndsAt(month: string): number {
  const date = new Date(monthStartsAt(month));
  return date.setUTCMonth(date.getUTCMonth() + 1);
}

/** Every UTC day of the month that has begun, as YYYY-MM-DD in order. */
export function daysOfMonth(month: string, now: number): string[] {
  const end = Math.min(monthEndsAt(month), now + 1);
  const days: string[] = [];
  for (let at = monthStartsAt(month); at < end; at += DAY_MS) {
    days.push(new Date(at).toISOString().slice(0, 10));
  }
  return days;
}
