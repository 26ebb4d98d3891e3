import { type Static, Type } from "@sinclair/typebox";
import { EXPLAINED_REASONS } from "../domain/explain.ts";
import { FAILURE_WORDS } from "../domain/insights/failure.ts";
import { type Figures, LATENESS_TARGET_P99_MS } from "../domain/insights/figures.ts";
import { HOSTS_KEPT_MAX, HOSTS_SHOWN_MAX, type ShownHost } from "../domain/insights/hosts.ts";
import { INSIGHT_PERIOD_DEFAULT, INSIGHT_PERIODS, type InsightPeriod } from "../domain/insights/levels.ts";
import { type DueReason, WAITING_COUNTED_MAX, type WaitingFigures } from "../domain/insights/waiting.ts";
import { filterOf, parseQuery } from "../domain/page.ts";
import { REGIONS, type Region } from "../domain/scope.ts";
import { WAIT_REASONS } from "../domain/wait.ts";
import { Timestamp, timestampOf } from "./timestamp.ts";
import { namesOf, wordOf } from "./validator.ts";

/** The answer of GET /v2/project/insights: what was done in a period, how late, and what waits. */

const closed = { additionalProperties: false } as const;
const count = (description: string) => Type.Integer({ minimum: 0, description });
const Milliseconds = Type.Union([Type.Integer({ minimum: 0 }), Type.Null()], {
  description: "Whole milliseconds; null for no run.",
});
const PercentilesSchema = Type.Object(
  { p50: Milliseconds, p90: Milliseconds, p99: Milliseconds, max: Milliseconds },
  { ...closed, title: "Percentiles", description: "With a relative error of at most 2 %; `max` is exact." },
);
const perReason = <Reason extends string>(reasons: readonly Reason[], description: string) =>
  Type.Unsafe<Partial<Record<Reason, number>>>(
    Type.Object(
      Object.fromEntries(reasons.map((reason) => [reason, Type.Optional(Type.Integer({ minimum: 1 }))])),
      { ...closed, description },
    ),
  );

const FIGURES = {
  created: count("Jobs that were created."),
  succeeded: count("Runs that succeeded. A run counts when it ends."),
  failed: count("Runs that failed, and those that were canceled before they were sent."),
  timed_out: count("Runs that timed out."),
  late_ms: Type.Object(PercentilesSchema.properties, {
    ...closed,
    description:
      "From when an attempt was due until the instant before its request was dialled, of the runs that waited for nothing of the customer's own.",
  }),
  late_all_ms: Type.Object(PercentilesSchema.properties, {
    ...closed,
    description: "The same of all runs, those included that are counted in `waited_for`.",
  }),
  duration_ms: Type.Object(PercentilesSchema.properties, { ...closed, description: "How long runs took." }),
  waited_for: perReason(
    WAIT_REASONS,
    "Of the runs that started more than a second late since something of the customer's own kept them waiting: how many for each reason.",
  ),
};

const DUE_REASONS = EXPLAINED_REASONS.filter(
  (reason): reason is DueReason => reason !== "due_time" && reason !== "backoff",
);

export const Insights = Type.Object(
  {
    period: wordOf(INSIGHT_PERIODS, "How far back the figures reach."),
    from: Timestamp,
    to: Timestamp,
    lateness_target: Type.Object(
      { p99_ms: count("Of `late_ms`, what the service aims at.") },
      { ...closed, description: "The same for everybody." },
    ),
    totals: Type.Object(FIGURES, { ...closed, title: "InsightFigures" }),
    buckets: Type.Array(Type.Object({ at: Timestamp, ...FIGURES }, { ...closed, title: "InsightBucket" }), {
      description:
        "The oldest first, zeros included; the last one is in progress. `at` is the bucket's start.",
    }),
    hosts: Type.Array(
      Type.Object(
        {
          host: Type.String(),
          runs: count("Runs whose target was there."),
          failed: count("How many of them failed or timed out."),
          duration_p99_ms: Milliseconds,
          commonest_error: Type.String({
            description: `Why most of them failed: a status such as \`status_503\`, ${FAILURE_WORDS.map((word) => `\`${word}\``).join(", ")}.`,
          }),
        },
        { ...closed, title: "InsightHost" },
      ),
      {
        maxItems: HOSTS_SHOWN_MAX,
        description: `The target hosts with most failures. Where an environment has more than ${HOSTS_KEPT_MAX} hosts within a bucket, those with fewer failures may be missing in it, and the numbers of others be too small.`,
      },
    ),
    waiting: Type.Object(
      {
        due: count("Attempts that are due now and not on the wire."),
        by_reason: perReason(DUE_REASONS, "Why they wait, as explain tells it of one job."),
        later: count("Attempts that are due later."),
        estimated: Type.Boolean({
          description: `True if there is more than ${WAITING_COUNTED_MAX} of something, which is an estimate then.`,
        }),
      },
      { ...closed, title: "InsightWaiting" },
    ),
  },
  { ...closed, title: "Insights" },
);

export const InsightParameters = Type.Object({
  period: Type.Optional(
    wordOf(
      INSIGHT_PERIODS,
      `How far back: in buckets of 1 minute, 10 minutes, 1 hour, 6 hours or 1 day, which begin at full ones in UTC. Left out it is ${INSIGHT_PERIOD_DEFAULT}.`,
    ),
  ),
  region: Type.Optional(wordOf(REGIONS, "Only what is of jobs of this region.")),
});

/** The query string of GET /v2/project/insights. Throws ApiError. */
export function readInsightQuery(query: string): { period: InsightPeriod; region: Region | null } {
  const { period, region } = parseQuery(query, namesOf(InsightParameters));
  return {
    period: filterOf(period, "period", INSIGHT_PERIODS) ?? INSIGHT_PERIOD_DEFAULT,
    region: filterOf(region, "region", REGIONS),
  };
}

export interface InsightFacts {
  period: InsightPeriod;
  /** Milliseconds since 1970. */
  now: number;
  totals: Figures;
  buckets: readonly { at: number; figures: Figures }[];
  hosts: readonly ShownHost[];
  waiting: WaitingFigures & { isEstimated: boolean };
}

/** Percentiles of many buckets take a while, so `pause` lets the caller give way after each bucket. */
export async function viewInsights(
  facts: InsightFacts,
  pause: () => Promise<void> | undefined = () => undefined,
): Promise<Static<typeof Insights>> {
  const { period, now, totals, buckets, hosts, waiting } = facts;
  const shown: Static<typeof Insights>["buckets"] = [];
  for (const { at, figures } of buckets) {
    shown.push({ at: timestampOf(at), ...viewFigures(figures) });
    await pause();
  }
  return {
    period,
    from: timestampOf(buckets[0]?.at ?? now),
    to: timestampOf(now),
    lateness_target: { p99_ms: LATENESS_TARGET_P99_MS },
    totals: viewFigures(totals),
    buckets: shown,
    hosts: hosts.map(({ host, runs, failed, durationP99Ms, commonestError }) => ({
      ...{ host, runs, failed },
      duration_p99_ms: durationP99Ms,
      commonest_error: commonestError,
    })),
    waiting: {
      due: waiting.due,
      by_reason: Object.fromEntries(waiting.byReason),
      later: waiting.later,
      estimated: waiting.isEstimated,
    },
  };
}

function viewFigures(figures: Figures) {
  return {
    created: figures.created,
    succeeded: figures.succeeded,
    failed: figures.failed,
    timed_out: figures.timedOut,
    late_ms: figures.late.percentiles(),
    late_all_ms: figures.lateAll().percentiles(),
    duration_ms: figures.durations.percentiles(),
    waited_for: Object.fromEntries(figures.waitedFor),
  };
}
