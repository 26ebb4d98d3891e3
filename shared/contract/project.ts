import { type Static, Type } from "@sinclair/typebox";
import { invalidRequest } from "../domain/errors.ts";
import { HOST_DOWN_ATTEMPTS_MIN, HOST_DOWN_SECONDS_MIN } from "../domain/host-state.ts";
import { PROJECT_PREFIX } from "../domain/ids.ts";
import { checkName, PROJECT_NAME_CHARACTERS_MAX } from "../domain/name.ts";
import { filterOf, parseQuery } from "../domain/page.ts";
import {
  billingMonthOf,
  daysOfMonth,
  effectiveDefaultRegion,
  isBillingMonth,
  isRegionAllowed,
  limitsOf,
  overageRuns,
  PLAN_TERMS,
  PLANS,
  type Plan,
  type PlanFacts,
} from "../domain/plan.ts";
import { ENVIRONMENTS, type Environment, REGIONS, type Region } from "../domain/scope.ts";
import { API_VERSIONS, type ApiVersion } from "../domain/version.ts";
import { idOf } from "./id.ts";
import { RegionSchema } from "./job.ts";
import { Timestamp, timestampOf } from "./timestamp.ts";
import { namesOf, validatorOf, wordOf } from "./validator.ts";

const closed = { additionalProperties: false } as const;
export const MONTH_PATTERN = "^[0-9]{4}-(?:0[1-9]|1[0-2])$";
const DATE_PATTERN = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$";

const count = (description: string) => Type.Integer({ minimum: 0, description });

const PARK =
  "Whether attempts at a host that is down are parked instead of being used up, in both environments: at least " +
  `${HOST_DOWN_ATTEMPTS_MIN} in a row over at least ${HOST_DOWN_SECONDS_MIN} s found nobody there.`;

export const Project = Type.Object(
  {
    id: idOf(PROJECT_PREFIX, "The id of a project."),
    name: Type.String({ description: "Display name." }),
    plan: wordOf(PLANS, "The plan that sets the limits."),
    default_region: RegionSchema,
    limits: Type.Object(
      {
        requests_per_minute: count("Requests a minute, for each environment."),
        concurrency: count(
          "Job attempts and webhook deliveries in progress together, over both environments.",
        ),
        schedules: count("Active schedules, over both environments."),
      },
      closed,
    ),
    usage: Type.Object(
      {
        runs_this_period: count("Runs started this UTC month, over both environments."),
        runs_included: count("Runs a month that the plan includes."),
      },
      closed,
    ),
    api_version: wordOf(API_VERSIONS, "Pinned API version."),
    environment: wordOf(ENVIRONMENTS, "The environment of the key that asks."),
    created_at: Timestamp,
    park_failing_hosts: Type.Optional(
      Type.Boolean({ description: `${PARK} Shown once it was set; false before.` }),
    ),
  },
  { ...closed, title: "Project", description: "The project that owns the key." },
);

export const ProjectUpdateRequest = Type.Object(
  {
    name: Type.Optional(
      Type.String({
        documented: { pattern: "\\S", maxLength: PROJECT_NAME_CHARACTERS_MAX },
        description: `Up to ${PROJECT_NAME_CHARACTERS_MAX} characters, not all blank.`,
      }),
    ),
    default_region: Type.Optional(
      wordOf(
        REGIONS,
        "Where jobs run that name no region. Jobs that exist stay where they are. Hobby projects are limited to us-east.",
      ),
    ),
    park_failing_hosts: Type.Optional(
      Type.Boolean({ description: `${PARK} False opens what the service has parked.` }),
    ),
  },
  { ...closed, title: "ProjectUpdateRequest", description: "What is left out stays as it is." },
);

export const UsageReport = Type.Object(
  {
    period: Type.String({ pattern: MONTH_PATTERN, description: "The UTC month, YYYY-MM." }),
    runs_total: count("Runs started in the period, in all regions."),
    runs_included: count("Runs a month that the plan includes."),
    overage_runs: count("Runs beyond those included; 0 on hobby, which has none."),
    by_day: Type.Array(
      Type.Object(
        {
          date: Type.String({ pattern: DATE_PATTERN, description: "The UTC day, YYYY-MM-DD." }),
          runs: count("Runs started on that day, in the region asked for."),
        },
        closed,
      ),
      { description: "Every day of the period up to today, zeros included." },
    ),
  },
  { ...closed, title: "UsageReport" },
);

export const UsageParameters = Type.Object({
  period: Type.Optional(
    Type.String({
      pattern: MONTH_PATTERN,
      description: "A UTC month as YYYY-MM, by default the current one and never a later one.",
      examples: ["2026-11"],
    }),
  ),
  region: Type.Optional(wordOf(REGIONS, "Restricts by_day to this region.")),
});

export interface ProjectUpdate {
  name?: string;
  defaultRegion?: Region;
  parksFailingHosts?: boolean;
}

/** The body of PATCH /v2/project. Throws ApiError. */
export function readProjectUpdate(value: unknown, plan: Plan): ProjectUpdate {
  const {
    name,
    default_region: defaultRegion,
    park_failing_hosts: parksFailingHosts,
  } = validateUpdate(value);
  if (name !== undefined) checkName(name, "name", PROJECT_NAME_CHARACTERS_MAX);
  if (defaultRegion !== undefined && !isRegionAllowed(plan, defaultRegion)) {
    throw invalidRequest(`The ${plan} plan is limited to the region us-east.`, "default_region");
  }
  return {
    ...(name === undefined ? {} : { name }),
    ...(defaultRegion === undefined ? {} : { defaultRegion }),
    ...(parksFailingHosts === undefined ? {} : { parksFailingHosts }),
  };
}

/** A project as the store knows it. Instants are milliseconds since 1970. */
export interface ProjectFacts extends PlanFacts {
  id: string;
  name: string;
  defaultRegion: Region;
  apiVersion: ApiVersion;
  createdAt: number;
  /** Null where no client has set it: it means false. */
  parksFailingHosts: boolean | null;
}

export function viewProject(
  project: ProjectFacts,
  environment: Environment,
  runsThisPeriod: number,
): Static<typeof Project> {
  const limits = limitsOf(project);
  return {
    id: project.id,
    name: project.name,
    plan: project.plan,
    default_region: effectiveDefaultRegion(project.plan, project.defaultRegion),
    limits: {
      requests_per_minute: limits.requestsPerMinute,
      concurrency: limits.concurrency,
      schedules: limits.schedules,
    },
    usage: { runs_this_period: runsThisPeriod, runs_included: PLAN_TERMS[project.plan].runsIncluded },
    api_version: project.apiVersion,
    environment,
    created_at: timestampOf(project.createdAt),
    ...(project.parksFailingHosts === null ? {} : { park_failing_hosts: project.parksFailingHosts }),
  };
}

export interface UsageQuery {
  /** YYYY-MM, the current month or an earlier one. */
  period: string;
  region: Region | null;
}

/** The query string of GET /v2/project/usage. Throws ApiError. */
export function readUsageQuery(query: string, now: number): UsageQuery {
  const { period, region } = parseQuery(query, namesOf(UsageParameters));
  const current = billingMonthOf(now);
  if (period !== undefined && !isBillingMonth(period)) {
    throw invalidRequest("period must be a month as YYYY-MM.", "period");
  }
  // Text order is time order in this format.
  if (period !== undefined && period > current) {
    throw invalidRequest(`period must not be after the current month, ${current}.`, "period");
  }
  return { period: period ?? current, region: filterOf(region, "region", REGIONS) };
}

/** `runsByDay` may leave out days without runs. It holds one region's runs if the query names a region. */
export function viewUsage(
  usage: { period: string; plan: Plan; runsTotal: number; runsByDay: ReadonlyMap<string, number> },
  now: number,
): Static<typeof UsageReport> {
  return {
    period: usage.period,
    runs_total: usage.runsTotal,
    runs_included: PLAN_TERMS[usage.plan].runsIncluded,
    overage_runs: overageRuns(usage.plan, usage.runsTotal),
    by_day: daysOfMonth(usage.period, now).map((date) => ({ date, runs: usage.runsByDay.get(date) ?? 0 })),
  };
}

const validateUpdate = validatorOf(ProjectUpdateRequest);
