import type { Bus } from "../../shared/bus/bus.ts";
import { sendHints } from "../../shared/bus/hints.ts";
import { type IdSource, RUN_PREFIX } from "../../shared/domain/ids.ts";
import type { Environment, ProjectNo } from "../../shared/domain/scope.ts";
import type { Log } from "../../shared/platform/log.ts";
import type { Metrics } from "../../shared/platform/metrics/metrics.ts";
import type { Traces } from "../../shared/platform/traces/traces.ts";
import { createBatcher } from "../../shared/store/database/batch.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { type Claim, claimAttempts, type GrantedAttempt } from "../../shared/store/queue/claim.ts";
import { type Parked, parkAttempts } from "../../shared/store/queue/parking.ts";
import { type Settlement, settleAttempts } from "../../shared/store/queue/settle.ts";
import { findTargetUrls, type OwedPlace } from "../../shared/store/queue/target-urls.ts";
import { type Sender, sendAttempt } from "./attempts.ts";
import { BATCH } from "./batches.ts";
import type { Outgoing } from "./outgoing.ts";
import type { Patience } from "./patience.ts";
import { beginAttempt, endAttempt } from "./traced.ts";

/** Attempts of jobs. */
export function createJobs(options: {
  db: Database;
  bus: Bus;
  log: Log;
  metrics: Metrics;
  traces: Traces;
  nodeId: number;
  ids: IdSource;
  sender: Sender;
  patience: Patience;
  secretsOf(scope: { projectNo: ProjectNo; environment: Environment }): Promise<string[]>;
}): Outgoing<GrantedAttempt> {
  const { db, bus, log, metrics, traces, nodeId, ids, sender, patience, secretsOf } = options;
  const { clock } = sender;
  const locating = createBatcher({ run: (jobs: OwedPlace[]) => findTargetUrls(db, jobs), ...BATCH });
  const parking = createBatcher({ run: (items: Parked[]) => parkAttempts(db, "jobs", items), ...BATCH });
  const timedClaim = metrics.statement("claim_jobs");
  const timedSettlement = metrics.statement("settle_jobs");
  const noteLateness = metrics.lateness("jobs");
  const claiming = createBatcher({
    run: (claims: Claim[]) => timedClaim(claims.length, () => claimAttempts(db, nodeId, claims)),
    ...BATCH,
  });
  const settling = createBatcher({
    async run(items: Settlement[]) {
      const settled = await timedSettlement(items.length, () => settleAttempts(db, items));
      sendHints(bus, settled);
      return settled.items;
    },
    ...BATCH,
  });

  return {
    locate: (item) => locating.submit(item),
    park: ({ projectNo, environment, region, id, attempt }, at) =>
      parking.submit({ projectNo, environment, region, id, attempt, ...at }),
    claim({ projectNo, environment, region, id: jobId, attempt }) {
      const runId = ids.next(RUN_PREFIX, clock.now());
      return claiming.submit({ projectNo, environment, region, jobId, attempt, runId });
    },
    urlOf: ({ targetUrl }) => targetUrl,
    async send(item, granted) {
      const { projectNo, environment, region, id: jobId, attempt, shard, dueAt } = item;
      const { runId, scheduleId } = granted;
      const span = beginAttempt(traces, item, granted, () => ({
        name: "attempt",
        attributes: {
          "jobwheel.job_id": jobId,
          "jobwheel.run_id": runId,
          ...(scheduleId === null ? {} : { "jobwheel.schedule_id": scheduleId }),
        },
      }));
      const secrets = await patience
        .untilAnswered(() => secretsOf({ projectNo, environment }))
        .catch((error) => {
          log.error({ err: error, jobId }, "signing_secrets.unreadable");
          return [];
        });
      if (secrets.length > 0) noteLateness(region, clock.now() - dueAt);
      const settlement = await sendAttempt(
        { projectNo, environment, region, shard, attempt, granted, secrets, span },
        sender,
      );
      return async () => {
        const settled = await patience.untilSettled(settlement, (it) => settling.submit(it));
        metrics.attemptsSettled[settlement.status].inc();
        const next = settled?.status ?? "settled before";
        endAttempt(span, clock.now(), { ...settlement, next });
        log.info(
          {
            jobId,
            runId,
            attempt,
            durationMs: Math.round(settlement.durationMs),
            outcome: settlement.status,
            responseStatus: settlement.responseStatus,
            job: next,
            nextRetryAt: settled?.nextRetryAt == null ? null : new Date(settled.nextRetryAt).toISOString(),
            ...(span === null ? {} : { traceId: span.context.traceId }),
          },
          "attempt.settled",
        );
      };
    },
  };
}
