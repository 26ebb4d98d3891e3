import { invalidRequest } from "./errors.ts";
import { readHost } from "./host-limit.ts";
import { SCHEDULE_PREFIX } from "./ids.ts";
import { isTerminal, type JobStatus, parseInstant } from "./job.ts";
import { hasMoreCharacters } from "./name.ts";
import { type IdFilter, idFilterOf } from "./page.ts";
import type { Region } from "./scope.ts";
import { TAG_PATTERN } from "./tags.ts";

/**
 * Bulk operations: one action on many jobs, or on many instants of a schedule. The statements that judge members decide which
 * operation has its turn, and how many members are judged in a second (store/queue/bulk/page.ts).
 */

export const BULK_ACTIONS = ["cancel", "retry", "backfill"] as const;
export type BulkAction = (typeof BULK_ACTIONS)[number];

/** `counted` is the end of a dry run. An operation waits until the earlier operations of its environment are over. */
export const BULK_STATUSES = ["counting", "counted", "waiting", "running", "done", "aborted"] as const;
export type BulkStatus = (typeof BULK_STATUSES)[number];

/** The most operations of an environment that are not over. */
export const OPEN_BULKS_MAX = 100;
/** An operation is shown for so long after its end. */
export const BULK_KEPT_DAYS = 90;
/** Members judged in any second. */
export const PER_SECOND_BOUNDS = { min: 1, default: 50, max: 1_000 } as const;
export const SAMPLE_MAX = 5;
/** Instants of a schedule that one backfill may look at, those that have fired included. */
export const BACKFILL_INSTANTS_MAX = 100_000;
export const ERROR_CONTAINS_CHARACTERS_MAX = 200;
export const RESPONSE_STATUS_BOUNDS = { min: 100, max: 599 } as const;

/** The filter as a client gives it, by the names of the API, its types already checked. */
export interface BulkFilter {
  all?: boolean;
  status?: JobStatus;
  region?: Region;
  tag?: string;
  schedule_id?: string;
  created_after?: string;
  created_before?: string;
  target_host?: string;
  error_contains?: string;
  response_status?: number;
  from?: string;
  to?: string;
}

type Member = keyof BulkFilter;

const OF_JOBS = [
  "all",
  "status",
  "region",
  "tag",
  "schedule_id",
  "created_after",
  "created_before",
  "target_host",
] as const satisfies Member[];
const MEMBERS: Readonly<Record<BulkAction, readonly Member[]>> = {
  cancel: OF_JOBS,
  retry: [...OF_JOBS, "error_contains", "response_status"],
  backfill: ["schedule_id", "from", "to"],
};

/** The jobs that a filter selects. Null is no bound. Instants are milliseconds since 1970, and are not part of the range. */
export interface JobSelection {
  action: "cancel" | "retry";
  /** A status that the action takes; null for all such statuses. */
  status: JobStatus | null;
  region: Region | null;
  tag: string | null;
  schedule: IdFilter;
  createdAfter: number | null;
  createdBefore: number | null;
  /** The host as hostOfTarget spells it. */
  targetHost: string | null;
  /** A part of the last run's error. */
  errorContains: string | null;
  responseStatus: number | null;
}

/** The instants of a schedule that a filter selects: from `fromAt` on, before `toAt`, in milliseconds since 1970. */
export interface InstantSelection {
  action: "backfill";
  scheduleId: string;
  fromAt: number;
  toAt: number;
}

export type BulkSelection = JobSelection | InstantSelection;

/** Reads what a filter means for an action. Throws invalid_request, which names the member. */
export function readSelection(action: BulkAction, filter: BulkFilter): BulkSelection {
  for (const member of Object.keys(filter) as Member[]) {
    if (!MEMBERS[action].includes(member)) {
      throw wrong(member, `does not apply to ${action}, which takes ${MEMBERS[action].join(", ")}`);
    }
  }
  if (action === "backfill") return readInstants(filter);
  checkAll(action, filter);
  const { status = null, region = null, tag = null, schedule_id: scheduleId } = filter;
  if ((scheduleId?.length ?? 0) > ID_CHARACTERS_MAX) throw unknownSchedule();
  checkStatus(action, status);
  if (tag !== null && !TAG_PATTERN.test(tag)) throw wrong("tag", "is none that a job can have");
  const { error_contains: errorContains = null, response_status: responseStatus = null } = filter;
  if (errorContains !== null) checkErrorText(errorContains);
  return {
    action,
    status,
    region,
    tag,
    schedule: idFilterOf(scheduleId, SCHEDULE_PREFIX),
    createdAfter: readInstant(filter, "created_after"),
    createdBefore: readInstant(filter, "created_before"),
    targetHost: readTargetHost(filter.target_host),
    errorContains,
    responseStatus,
  };
}

/** Throws invalid_request for a range of instants that is empty or reaches beyond `now`. */
export function checkInstants({ fromAt, toAt }: InstantSelection, now: number): void {
  if (fromAt >= toAt) throw wrong("from", "must be before filter.to");
  if (toAt > now) throw wrong("to", "must not be in the future");
}

export const unknownSchedule = () => wrong("schedule_id", "is not the id of a schedule");
export const tooManyInstants = () =>
  wrong("from", `and filter.to must hold at most ${BACKFILL_INSTANTS_MAX} instants of the schedule`);

/** Whether nothing more happens to an operation. */
export function isBulkOver(status: BulkStatus): boolean {
  switch (status) {
    case "counted":
    case "done":
    case "aborted":
      return true;
    case "counting":
    case "waiting":
    case "running":
      return false;
  }
}

/**
 * Throws invalid_request for an operation that is over. If an abort and a page of members race, the one that locks the
 * operation's row first wins.
 */
export function decideAbort({ status }: { status: BulkStatus }): void {
  if (isBulkOver(status)) throw invalidRequest(`The operation is already ${status} and cannot be aborted.`);
}

/**
 * The members of a running operation are judged page by page, and the pages are spread over the second, since other jobs wait
 * while one is judged. A statement costs as much as a few members do. So there are more than PAGES_PER_SECOND.min pages only
 * if each has PAGE_MEMBERS_MIN members.
 */
export function pagesOf(perSecond: number): { membersMax: number; everyMs: number } {
  const { min, max } = PAGES_PER_SECOND;
  const pages = Math.min(max, Math.max(min, Math.floor(perSecond / PAGE_MEMBERS_MIN)));
  return { membersMax: Math.ceil(perSecond / pages), everyMs: 1_000 / pages };
}

export const PAGES_PER_SECOND = { min: 10, max: 25 } as const;
const PAGE_MEMBERS_MIN = 10;

/** A filter with a longer id or host is refused, so longer texts are never stored or shown. */
const ID_CHARACTERS_MAX = 100;
const HOST_CHARACTERS_MAX = 253;

const wrong = (member: Member, fault: string) =>
  invalidRequest(`filter.${member} ${fault}.`, `filter.${member}`);

function checkAll(action: BulkAction, filter: BulkFilter): void {
  const members = Object.keys(filter);
  if (members.length === 0) {
    throw invalidRequest(`filter must not be empty. To ${action} all, say {"all": true}.`, "filter");
  }
  if (filter.all === false) throw wrong("all", "must be true or left out");
  if (filter.all && members.length > 1) throw wrong("all", "must stand alone");
}

function checkStatus(action: "cancel" | "retry", status: JobStatus | null): void {
  if (status === null) return;
  if (action === "retry" && status !== "failed")
    throw wrong("status", "must be failed: no other job is retried");
  if (action === "cancel" && isTerminal(status)) throw wrong("status", "must be queued or running");
}

function checkErrorText(text: string): void {
  if (text === "" || hasMoreCharacters(text, ERROR_CONTAINS_CHARACTERS_MAX)) {
    throw wrong("error_contains", `must have 1 to ${ERROR_CONTAINS_CHARACTERS_MAX} characters`);
  }
  // The error of a run never has such characters, and Postgres cannot store a NUL in a text.
  if (text.includes("\0") || !text.isWellFormed()) {
    throw wrong("error_contains", "must not contain NUL or broken Unicode");
  }
}

function readTargetHost(text: string | undefined): string | null {
  if (text === undefined) return null;
  const host = text.length > HOST_CHARACTERS_MAX ? null : readHost(text);
  if (host === null) throw wrong("target_host", "must be a host without scheme, port and path");
  return host;
}

function readInstants(filter: BulkFilter): InstantSelection {
  const { schedule_id: scheduleId } = filter;
  if (scheduleId === undefined) throw wrong("schedule_id", "is required");
  const [fromAt, toAt] = [readInstant(filter, "from"), readInstant(filter, "to")];
  if (fromAt === null) throw wrong("from", "is required");
  if (toAt === null) throw wrong("to", "is required");
  const schedule = idFilterOf(scheduleId, SCHEDULE_PREFIX);
  if (schedule.kind !== "one") throw unknownSchedule();
  return { action: "backfill", scheduleId: schedule.id, fromAt, toAt };
}

function readInstant(
  filter: BulkFilter,
  member: "created_after" | "created_before" | "from" | "to",
): number | null {
  const text = filter[member];
  if (text === undefined) return null;
  const at = parseInstant(text);
  if (at === null) throw wrong(member, "must be an ISO 8601 date and time with Z or an offset");
  return at;
}
