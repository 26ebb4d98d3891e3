import { existsSync, readFileSync } from "node:fs";
import {
  INTERRUPTED_ERROR,
  LOST_ERROR,
  UNKNOWN_ERROR,
  UNSENT_RUN_ERROR,
} from "../../../shared/domain/run.ts";
import { eventTypeCode, waitReasonCode } from "../../../shared/store/database/codes.ts";
import type { FinalState } from "../../support/history/history.ts";
import type { ReplicatedPostgres } from "../../support/replicated-postgres.ts";
import { FAULTS } from "./faults.ts";
import type { Recording } from "./recording.ts";

/** Lines of the services' logs that tell of a rare path. */
const TOLD: readonly string[] = [
  ...["attempt.rescued", "delivery.rescued", "node.dead", "shards.lost", "shards.acquired", "declared dead"],
  ...[
    "bus lost",
    "postgres.connection_lost",
    "waiting for Postgres",
    "loop.failed",
    "delivery.store_unavailable",
  ],
  ...["schedules.not_fired", "regions.held", "rate_loans.lost", "not stopped cleanly"],
];
/** Lines that no fault of the outside world explains. */
const FORBIDDEN: readonly string[] = [
  ...["request.failed", "attempt.failed", "permits.miscounted", "signing_secrets.unreadable"],
  ...["webhook_secret.unreadable", "schedule.unreadable", "settle.refused"],
];

const FLOW = waitReasonCode("flow");
const OF_FLOW = "JOIN jobs j ON j.id = r.job_id WHERE j.flow IS NOT NULL";
/** Another attempt of the run's key ended in the second before the run started. */
const HAS_LEFT = `EXISTS (
         SELECT FROM runs e JOIN jobs k ON k.id = e.job_id
          WHERE k.project_no = j.project_no AND k.flow ->> 'key' = j.flow ->> 'key'
            AND e.started_at + e.duration_ms * interval '1 ms' BETWEEN r.started_at - interval '1 s' AND r.started_at)`;

const COUNTS = `
SELECT (SELECT count(*)::int FROM runs WHERE error = '${LOST_ERROR}') AS "run: lost with its node",
       (SELECT count(*)::int FROM runs WHERE error = '${INTERRUPTED_ERROR}') AS "run: interrupted by a stop",
       (SELECT count(*)::int FROM runs WHERE error = '${UNKNOWN_ERROR}') AS "run: unknown outcome",
       (SELECT count(*)::int FROM runs WHERE error = '${UNSENT_RUN_ERROR}') AS "run: canceled before it was sent",
       (SELECT count(*)::int FROM runs WHERE status = 3) AS "run: timed out",
       (SELECT count(*)::int FROM runs WHERE attempt > 1) AS "run: a retry",
       (SELECT count(*)::int FROM ended_jobs WHERE status = 2 AND attempts > 0) AS "job: canceled after an attempt",
       (SELECT count(*)::int FROM delivery_attempts WHERE attempt > 1) AS "delivery: a retry",
       (SELECT count(*)::int FROM ended_deliveries WHERE status = 2) AS "delivery: dropped",
       (SELECT count(*)::int FROM firings) AS "schedule: fired",
       (SELECT coalesce(sum(epoch - 1), 0)::int FROM shards WHERE epoch > 1) AS "shard: taken over",
       (SELECT count(*)::int FROM nodes WHERE dead) AS "node: dead",
       (SELECT count(*)::int FROM runs WHERE held_for = ${waitReasonCode("host")}) AS "gate: parked by a host",
       (SELECT count(*)::int FROM runs r ${OF_FLOW} AND r.held_for = ${FLOW} AND j.flow -> 'rate' IS NOT NULL) AS "gate: parked by a rate",
       (SELECT count(*)::int FROM runs r ${OF_FLOW} AND r.held_for = ${FLOW} AND j.flow -> 'rate' IS NULL) AS "gate: parked by a key",
       (SELECT count(*)::int FROM runs r ${OF_FLOW} AND r.held_for = ${FLOW} AND j.flow -> 'rate' IS NULL AND ${HAS_LEFT}) AS "gate: called by who left",
       (SELECT count(*)::int FROM runs r ${OF_FLOW} AND r.error = '${LOST_ERROR}') AS "gate: left by who was rescued",
       (SELECT count(*)::int FROM events WHERE type = ${eventTypeCode("host.up")}) AS "host: back"`;

/** Counts the rare paths that the rows and the logs tell of, and reports forbidden lines of the logs. */
export async function countPaths(
  recording: Recording,
  postgres: ReplicatedPostgres,
  logs: readonly string[],
) {
  const [row] = await postgres.query<Record<string, number>>(COUNTS);
  for (const [path, count] of Object.entries(row ?? {})) recording.meet(path, count);
  for (const log of logs) {
    const lines = existsSync(log) ? readFileSync(log, "utf8").split("\n") : [];
    for (const line of lines) {
      const message = /"msg":"([^"]*)"/.exec(line)?.[1] ?? "";
      for (const told of TOLD) if (message === told) recording.meet(`log: ${told}`);
      if (FORBIDDEN.includes(message)) recording.faults.push(`${log}: ${line}`);
    }
  }
}

/** Counts the attempts that were sent to hosts that were down. */
export function countProbes(recording: Recording, { jobs, runs, downTimes = [] }: FinalState): void {
  const hostOf = new Map(jobs.map(({ job, project, host }) => [job, `${project} ${host}`]));
  for (const { project, gate, downAt, upAt } of downTimes)
    for (const { job, startedAt, status } of runs)
      if (hostOf.get(job) === `${project} ${gate}` && startedAt > downAt && startedAt < (upAt ?? Infinity))
        recording.meet(status === "succeeded" ? "host: found back by a probe" : "host: probed in vain");
}

/** The paths that a long run must have met. It has not tested a path that it never met. */
const RARE_PATHS: readonly string[] = [
  ...FAULTS.map(({ name }) => `fault: ${name}`),
  ...["answer: 201", "answer: 429", "answer: 503", "answer: lost", "answer: replayed", "retry by hand"],
  ...["cancel: before the first attempt", "cancel: after an attempt", "the standby was promoted"],
  ...["run: lost with its node", "run: interrupted by a stop", "run: unknown outcome", "run: timed out"],
  ...["run: a retry", "job: canceled after an attempt", "delivery: a retry", "delivery: dropped"],
  ...["schedule: fired", "shard: taken over", "node: dead", "log: attempt.rescued", "log: bus lost"],
  ...[
    "gate: parked by a key",
    "gate: parked by a rate",
    "gate: parked by a host",
    "gate: called by who left",
  ],
  ...["gate: left by who was rescued", "flow key: paused", "flow key: given other limits", "target: away"],
  ...["host: probed in vain", "host: found back by a probe", "host: back"],
  ...["log: shards.lost", "log: waiting for Postgres", "link: held", "link: swallowed"],
];

export const findUnmet = (counts: ReadonlyMap<string, number>): string[] =>
  RARE_PATHS.filter((path) => !counts.has(path));
