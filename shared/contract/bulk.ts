import { type Static, Type } from "@sinclair/typebox";
import {
  BULK_ACTIONS,
  BULK_STATUSES,
  type BulkAction,
  type BulkFilter,
  type BulkSelection,
  type BulkStatus,
  checkInstants,
  ERROR_CONTAINS_CHARACTERS_MAX,
  PER_SECOND_BOUNDS,
  RESPONSE_STATUS_BOUNDS,
  readSelection,
  SAMPLE_MAX,
} from "../domain/bulk.ts";
import { BULK_PREFIX, idTimeMs, SCHEDULE_PREFIX } from "../domain/ids.ts";
import { JOB_STATUSES } from "../domain/job.ts";
import { parseQuery, readPage } from "../domain/page.ts";
import { REGIONS } from "../domain/scope.ts";
import { TAG_CHARACTERS_MAX, TAG_PATTERN } from "../domain/tags.ts";
import { idOf } from "./id.ts";
import { JobId } from "./job.ts";
import { listOf, pageParameters } from "./list.ts";
import { Timestamp, timestampOf, timestampOrNull } from "./timestamp.ts";
import { namesOf, validatorOf, wordOf } from "./validator.ts";

const closed = { additionalProperties: false } as const;

export const BulkId = idOf(BULK_PREFIX, "The id of a bulk operation.");

const Action = wordOf(
  BULK_ACTIONS,
  "`cancel` jobs that are not over, `retry` the last run of jobs that failed, or `backfill` the instants of a schedule that did not fire.",
  "BulkAction",
);
const instantField = (description: string) =>
  Type.Optional(Type.String({ documented: { format: "date-time" }, description }));
const BulkFilterSchema = Type.Object(
  {
    all: Type.Optional(
      Type.Boolean({
        documented: { const: true },
        description: "All that the action takes. It stands alone.",
      }),
    ),
    status: Type.Optional(
      wordOf(
        JOB_STATUSES,
        "`queued` or `running` for `cancel`, `failed` for `retry`: each job's status when it is counted.",
      ),
    ),
    region: Type.Optional(wordOf(REGIONS, "Jobs that run there.")),
    tag: Type.Optional(
      Type.String({
        documented: { pattern: TAG_PATTERN.source, minLength: 1, maxLength: TAG_CHARACTERS_MAX },
        description: "Jobs with this tag.",
        examples: ["customer:4711"],
      }),
    ),
    schedule_id: Type.Optional(
      Type.String({
        description: "Jobs of this schedule; for `backfill` the schedule.",
        examples: [`${SCHEDULE_PREFIX}01arz3ndektsv4rrffq69g5fav`],
      }),
    ),
    created_after: instantField("Jobs that were created later than this instant."),
    created_before: instantField("Jobs that were created earlier than this instant."),
    target_host: Type.Optional(
      Type.String({
        description:
          "Jobs whose target has this host: a name or an address without a port, IPv6 in brackets.",
        examples: ["api.example.com"],
      }),
    ),
    error_contains: Type.Optional(
      Type.String({
        documented: { minLength: 1, maxLength: ERROR_CONTAINS_CHARACTERS_MAX },
        description: "`retry` only: the `error` of the last run contains this text, in exactly this case.",
        examples: ["connection refused"],
      }),
    ),
    response_status: Type.Optional(
      Type.Integer({
        minimum: RESPONSE_STATUS_BOUNDS.min,
        maximum: RESPONSE_STATUS_BOUNDS.max,
        description: "`retry` only: the `response_status` of the last run.",
      }),
    ),
    from: instantField(
      "`backfill` only, and required there: the first instant of the schedule that is meant.",
    ),
    to: instantField(
      "`backfill` only, and required there: instants before this one are meant. Not in the future.",
    ),
  },
  {
    ...closed,
    title: "BulkFilter",
    description: "What is meant: what fits all members. At least one is required.",
  },
);
const perSecond = {
  minimum: PER_SECOND_BOUNDS.min,
  maximum: PER_SECOND_BOUNDS.max,
  default: PER_SECOND_BOUNDS.default,
  description: "At most so many members are judged in any second.",
};

export const NewBulkRequest = Type.Object(
  {
    action: Action,
    filter: BulkFilterSchema,
    dry_run: Type.Optional(
      Type.Boolean({
        default: false,
        description: "Only counts what the filter matches, and changes nothing.",
      }),
    ),
    per_second: Type.Optional(Type.Integer(perSecond)),
  },
  { ...closed, title: "NewBulkRequest" },
);

const count = (description: string) => Type.Integer({ minimum: 0, description });
export const Bulk = Type.Object(
  {
    id: BulkId,
    action: Action,
    filter: BulkFilterSchema,
    dry_run: Type.Boolean(),
    status: wordOf(
      BULK_STATUSES,
      "`counting`, then for a dry run `counted`, which ends it. Else `running` and then `done`, or `waiting` while another of the environment goes before it. `aborted` ends it too.",
      "BulkStatus",
    ),
    per_second: Type.Integer(perSecond),
    matched: Type.Union([count("Members."), Type.Null()], { description: "Null until all are counted." }),
    done: count("Members that were canceled, retried or backfilled."),
    skipped: count("Members to which nothing was to be done any more when their turn came."),
    failed: count(
      "Members that could not be retried or backfilled: for want of quota, or because a run or the schedule is gone.",
    ),
    sample: Type.Array(Type.Union([JobId, Timestamp]), {
      maxItems: SAMPLE_MAX,
      description: "The oldest members: ids of jobs, or instants of the schedule.",
    }),
    created_at: Timestamp,
    started_at: Type.Union([Timestamp, Type.Null()], {
      description: "When the first member's turn came near; null before.",
    }),
    ended_at: Type.Union([Timestamp, Type.Null()], { description: "Null until it is over." }),
  },
  {
    ...closed,
    title: "Bulk",
    description: "One action on many jobs, or on many instants of a schedule.",
  },
);
export const BulkList = listOf(Bulk, "BulkList");
export const BulkListParameters = Type.Object(pageParameters);

/** A bulk operation as a client asks for it. */
export interface AcceptedBulk {
  action: BulkAction;
  /** The filter as it was given. */
  filter: BulkFilter;
  selection: BulkSelection;
  dryRun: boolean;
  perSecond: number;
}

/** The body of POST /v2/bulk. `now` is in milliseconds since 1970. Throws ApiError. */
export function readNewBulk(value: unknown, now: number): AcceptedBulk {
  const request = validateNew(value);
  const { action, filter } = request;
  const selection = readSelection(action, filter);
  if (selection.action === "backfill") checkInstants(selection, now);
  return {
    action,
    filter,
    selection,
    dryRun: request.dry_run ?? false,
    perSecond: request.per_second ?? PER_SECOND_BOUNDS.default,
  };
}

/** The query string of GET /v2/bulk. Throws ApiError. */
export function readBulkListQuery(query: string) {
  return readPage(parseQuery(query, namesOf(BulkListParameters)));
}

/** A bulk operation as the store knows it. Instants are milliseconds since 1970. */
export interface BulkFacts {
  id: string;
  action: BulkAction;
  filter: BulkFilter;
  dryRun: boolean;
  status: BulkStatus;
  perSecond: number;
  /** Null until all members are counted. */
  matched: number | null;
  done: number;
  skipped: number;
  failed: number;
  /** The oldest members as the API shows them. */
  sample: string[];
  startedAt: number | null;
  endedAt: number | null;
}

export function viewBulk(bulk: BulkFacts): Static<typeof Bulk> {
  return {
    id: bulk.id,
    action: bulk.action,
    filter: bulk.filter,
    dry_run: bulk.dryRun,
    status: bulk.status,
    per_second: bulk.perSecond,
    matched: bulk.matched,
    done: bulk.done,
    skipped: bulk.skipped,
    failed: bulk.failed,
    sample: bulk.sample,
    created_at: timestampOf(idTimeMs(bulk.id)),
    started_at: timestampOrNull(bulk.startedAt),
    ended_at: timestampOrNull(bulk.endedAt),
  };
}

const validateNew = validatorOf(NewBulkRequest);
