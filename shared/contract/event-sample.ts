import { JOB_PREFIX, RUN_PREFIX, retypeId, SCHEDULE_PREFIX, WEBHOOK_PREFIX } from "../domain/ids.ts";
import { billingMonthOf } from "../domain/plan.ts";
import type { Region } from "../domain/scope.ts";
import type { EventType } from "../domain/webhook.ts";
import type { EventFacts, EventHead, EventRunFacts, Happening } from "./event-text.ts";

/** Sample events, which a client asks for to try an endpoint. The resources in them do not exist. */

/** A sample as it is recorded: the same row gives the same bytes, on every attempt. */
export interface RecordedSample extends EventHead {
  type: EventType;
  region: Region;
  /** The answer of `sampleRun` when the sample was made, and when that run began. */
  run: (SampleRun & { startedAt: number }) | null;
}

export interface SampleRun extends Omit<EventRunFacts, "id" | "startedAt"> {
  durationMs: number;
}

/** The made-up run that a sample shows; null if it shows none. */
export function sampleRun(type: EventType): SampleRun | null {
  const common = { attempt: 1, durationMs: 120 };
  switch (type) {
    case "job.succeeded":
      return { ...common, status: "succeeded", responseStatus: 200, error: null };
    case "job.failed":
      return {
        ...common,
        status: "failed",
        responseStatus: 500,
        error: "The target answered 500 with an empty body.",
      };
    case "job.canceled":
    case "schedule.firing_missed":
    case "schedule.firing_skipped":
    case "webhook.disabled":
    case "quota.reached":
    case "host.down":
    case "host.up":
      return null;
  }
}

const HOUR_MS = 3_600_000;
const SAMPLE_HOST = "example.com";
const SAMPLE_TARGET_URL = `https://${SAMPLE_HOST}/hooks/sample`;

/** The facts of a sample. The ids of its resources have the bits of the event's id. */
export function sampleFacts({ region, run, type, ...head }: RecordedSample): EventFacts {
  return { ...head, ...sampleOf(type, head, region, run) };
}

function sampleOf(
  type: EventType,
  { id, occurredAt }: EventHead,
  region: Region,
  run: RecordedSample["run"],
): Happening {
  const job = {
    id: retypeId(id, JOB_PREFIX),
    targetUrl: SAMPLE_TARGET_URL,
    region,
    attempts: run?.attempt ?? 0,
    scheduleId: null,
    createdAt: run?.startedAt ?? occurredAt,
    tags: null,
  };
  const schedule = { id: retypeId(id, SCHEDULE_PREFIX), name: "sample" };
  switch (type) {
    case "job.succeeded":
    case "job.failed":
      if (run === null) throw new Error(`a sample of ${type} has no run`);
      return { type, job, run: { id: retypeId(id, RUN_PREFIX), ...run } };
    case "job.canceled":
      return { type, job, run: null };
    case "schedule.firing_missed":
      return { type, schedule, missed: { fromAt: occurredAt - HOUR_MS, toAt: occurredAt, count: 13 } };
    case "schedule.firing_skipped":
      return { type, schedule, at: occurredAt, status: "skipped_quota" };
    case "webhook.disabled": {
      const webhook = {
        id: retypeId(id, WEBHOOK_PREFIX),
        url: SAMPLE_TARGET_URL,
        reason: "failing",
      } as const;
      return { type, webhook };
    }
    case "quota.reached": {
      const quota = {
        period: billingMonthOf(occurredAt),
        percent: 80,
        runs: 8_000,
        runsIncluded: 10_000,
      } as const;
      return { type, quota };
    }
    case "host.down":
      return { type, host: { host: SAMPLE_HOST, since: occurredAt, parked: 21 } };
    case "host.up":
      return { type, host: { host: SAMPLE_HOST, since: occurredAt, parked: 480 } };
  }
}
