import type { Static } from "@sinclair/typebox";
import { OLD_SECRET_HOURS } from "../../domain/webhook.ts";
import { InsightParameters, Insights } from "../insights.ts";
import { Project, ProjectUpdateRequest, UsageParameters, UsageReport } from "../project.ts";
import { RevealedSigningSecret, SigningSecret } from "../signing-secret.ts";
import { operation } from "./operation.ts";

const PROJECT_EXAMPLE: Static<typeof Project> = {
  id: "prj_01m7ybqz0000000000000000aa",
  name: "Webshop",
  plan: "pro",
  default_region: "us-east",
  limits: { requests_per_minute: 600, concurrency: 100, schedules: 1_000 },
  usage: { runs_this_period: 12_345, runs_included: 250_000 },
  api_version: "2026-11-01",
  environment: "production",
  created_at: "2026-11-20T09:30:00.000Z",
};

const USAGE_EXAMPLE: Static<typeof UsageReport> = {
  period: "2026-11",
  runs_total: 12_345,
  runs_included: 250_000,
  overage_runs: 0,
  by_day: [
    { date: "2026-11-01", runs: 5_000 },
    { date: "2026-11-02", runs: 7_345 },
  ],
};

const FIGURES_EXAMPLE = {
  created: 1_204,
  succeeded: 1_190,
  failed: 21,
  timed_out: 2,
  late_ms: { p50: 3, p90: 6, p99: 18, max: 41 },
  late_all_ms: { p50: 3, p90: 7, p99: 2_310, max: 5_020 },
  duration_ms: { p50: 84, p90: 190, p99: 1_020, max: 15_004 },
  waited_for: { concurrency: 37 },
};

const INSIGHTS_EXAMPLE: Static<typeof Insights> = {
  period: "24h",
  from: "2026-11-20T09:40:00.000Z",
  to: "2026-11-21T09:34:12.406Z",
  lateness_target: { p99_ms: 1_000 },
  totals: FIGURES_EXAMPLE,
  buckets: [{ at: "2026-11-21T09:30:00.000Z", ...FIGURES_EXAMPLE }],
  hosts: [
    {
      host: "hooks.example.com",
      runs: 310,
      failed: 20,
      duration_p99_ms: 1_100,
      commonest_error: "status_503",
    },
  ],
  waiting: { due: 12, by_reason: { concurrency: 12 }, later: 340, estimated: false },
};

export const PROJECT_OPERATIONS = {
  getProject: operation({
    method: "GET",
    path: "/v2/project",
    resource: "project",
    access: "identify",
    summary: "Get the project",
    description: "The project and the environment that the key belongs to.",
    response: { schema: Project, examples: { project: PROJECT_EXAMPLE } },
  }),
  updateProject: operation({
    method: "PATCH",
    path: "/v2/project",
    resource: "project",
    summary: "Change the project",
    description: "A new `default_region` affects only jobs that are created afterward.",
    body: {
      schema: ProjectUpdateRequest,
      examples: { nameAndRegion: { name: "Webshop", default_region: "eu-central" } },
    },
    response: {
      schema: Project,
      examples: { changed: { ...PROJECT_EXAMPLE, default_region: "eu-central" } },
    },
  }),
  getUsage: operation({
    method: "GET",
    path: "/v2/project/usage",
    resource: "project",
    summary: "Get the usage of a month",
    description:
      "Runs are counted when they start, over both environments. At midnight, or after a clock was set back, a month that has " +
      "begun is not left again.",
    query: UsageParameters,
    response: { schema: UsageReport, examples: { november: USAGE_EXAMPLE } },
  }),
  getInsights: operation({
    method: "GET",
    path: "/v2/project/insights",
    resource: "project",
    summary: "Get what was done, how late, and what waits",
    description:
      "Of the key's environment. What was done is counted within 15 seconds, so a bucket that has just ended may still lack some. Each run " +
      "counts in the bucket in which it ended. Figures are kept for 90 days, however long runs are shown. A job counts when it is " +
      "created, those that a schedule made included. Runs of before the service counted them are missing.",
    query: InsightParameters,
    response: { schema: Insights, examples: { day: INSIGHTS_EXAMPLE } },
  }),
  getSigningSecret: operation({
    method: "GET",
    path: "/v2/project/signing-secret",
    resource: "project",
    summary: "Get the signing secret, masked",
    description: "The secret with which attempts of the environment's jobs are signed.",
    response: {
      schema: SigningSecret,
      examples: { masked: { secret: "whsec_****Qw8=", previous_expires_at: null } },
    },
  }),
  rotateSigningSecret: operation({
    method: "POST",
    path: "/v2/project/signing-secret/rotate",
    resource: "project",
    summary: "Give the environment a new signing secret",
    description:
      `The answer shows the new secret, which no later answer does. It signs within 5 seconds. For ${OLD_SECRET_HOURS} hours \`webhook-signature\` ` +
      "holds a signature of the one before as well, while `Service-Signature` is made with the new one alone. A second rotation " +
      "within that time ends the older one. A body is ignored.",
    response: {
      schema: RevealedSigningSecret,
      examples: {
        rotated: {
          secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw4bN1c7tFQw8=",
          previous_expires_at: "2026-11-22T06:12:25.328Z",
        },
      },
    },
  }),
};
