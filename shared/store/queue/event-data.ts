import type {
  EventFacts,
  EventHead,
  EventHostFacts,
  EventJobFacts,
  EventRunFacts,
  QuotaFacts,
} from "../../contract/event-text.ts";
import { RUN_PREFIX, SCHEDULE_PREFIX, uuidToId, WEBHOOK_PREFIX } from "../../domain/ids.ts";
import type { MissedFirings, SkippedStatus } from "../../domain/schedule.ts";
import type { DisabledReason, EventType } from "../../domain/webhook.ts";
import { runStatusOf } from "../database/codes.ts";
import { epochMs } from "../database/database.ts";

/**
 * The `data` of events that are not the end of an attempt. The statement that makes an event true writes it, and each
 * attempt of a delivery reads it.
 */

/** SQL for the run of a canceled job, from the run's columns (`r`); null without a row. */
export const runData = (
  r: string,
): string => `json_build_object('id', ${r}.id, 'attempt', ${r}.attempt, 'status', ${r}.status,
           'response_status', ${r}.response_status, 'error', ${r}.error, 'started_at', ${epochMs(`${r}.started_at`)},
           'duration_ms', ${r}.duration_ms)`;

/** SQL for the facts about an endpoint (`w`: id, url) that is disabled. */
export const disabledData = (w: string, reason: DisabledReason): string =>
  `json_build_object('webhook_id', ${w}.id, 'url', ${w}.url, 'reason', '${reason}')`;

interface CanceledData {
  attempts: number;
  run: {
    id: string;
    attempt: number;
    status: number;
    response_status: number | null;
    error: string | null;
    started_at: number;
    duration_ms: number | null;
  } | null;
}

interface ScheduleData {
  schedule_id: string;
  name: string;
}

interface DisabledData {
  webhook_id: string;
  url: string;
  reason: DisabledReason;
}

/** SQL for the facts about a host: its name, the beginning of its state, and the number of attempts parked there. */
export const hostData = (host: string, since: string, parked: string): string =>
  `json_build_object('host', ${host}, 'since', ${epochMs(since)}, 'parked', ${parked})`;

type QuotaData = Omit<QuotaFacts, "runsIncluded"> & { runs_included: number };

/** The facts of an event with `data`. `job` is the event's job, without its attempts; null if the event has none. */
export function readEventData(
  head: EventHead & { type: EventType },
  data: unknown,
  job: Omit<EventJobFacts, "attempts"> | null,
): EventFacts {
  const { type } = head;
  switch (type) {
    case "job.succeeded":
    case "job.failed":
      throw new Error(`an event ${type} has its facts in columns`);
    case "schedule.firing_missed": {
      const { missed, ...schedule } = data as ScheduleData & { missed: MissedFirings };
      return { ...head, type, schedule: readSchedule(schedule), missed };
    }
    case "schedule.firing_skipped": {
      const { at, status, ...schedule } = data as ScheduleData & { at: number; status: SkippedStatus };
      return { ...head, type, schedule: readSchedule(schedule), at, status };
    }
    case "quota.reached": {
      const { runs_included: runsIncluded, ...quota } = data as QuotaData;
      return { ...head, type, quota: { ...quota, runsIncluded } };
    }
    case "host.down":
    case "host.up":
      return { ...head, type, host: data as EventHostFacts };
    case "webhook.disabled": {
      const { webhook_id, url, reason } = data as DisabledData;
      return { ...head, type, webhook: { id: uuidToId(WEBHOOK_PREFIX, webhook_id), url, reason } };
    }
    case "job.canceled": {
      const { attempts, run } = data as CanceledData;
      if (job === null) throw new Error(`the event ${head.id} has no job`);
      return { ...head, type, job: { ...job, attempts }, run: run && readRun(run) };
    }
  }
}

const readSchedule = ({ schedule_id, name }: ScheduleData) => ({
  id: uuidToId(SCHEDULE_PREFIX, schedule_id),
  name,
});

function readRun(run: NonNullable<CanceledData["run"]>): EventRunFacts {
  return {
    id: uuidToId(RUN_PREFIX, run.id),
    attempt: run.attempt,
    status: runStatusOf(run.status),
    responseStatus: run.response_status,
    error: run.error,
    startedAt: run.started_at,
    durationMs: run.duration_ms,
  };
}
