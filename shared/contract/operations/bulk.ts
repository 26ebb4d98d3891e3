import type { Static } from "@sinclair/typebox";
import { BACKFILL_INSTANTS_MAX, BULK_KEPT_DAYS, OPEN_BULKS_MAX } from "../../domain/bulk.ts";
import { Bulk, BulkId, BulkList, BulkListParameters, NewBulkRequest } from "../bulk.ts";
import { NEXT_CURSOR_EXAMPLE } from "../list.ts";
import { operation } from "./operation.ts";

const REQUEST_EXAMPLE: Static<typeof NewBulkRequest> = {
  action: "retry",
  filter: { error_contains: "connection refused", created_after: "2026-11-20T00:00:00.000Z" },
  per_second: 100,
};
const BULK_EXAMPLE: Static<typeof Bulk> = {
  id: "blk_01m7ybr3kgsnpd4n830jn3f3ba",
  action: "retry",
  filter: REQUEST_EXAMPLE.filter,
  dry_run: false,
  status: "counting",
  per_second: 100,
  matched: null,
  done: 0,
  skipped: 0,
  failed: 0,
  sample: [],
  created_at: "2026-11-21T06:12:25.328Z",
  started_at: null,
  ended_at: null,
};
const RUNNING_EXAMPLE: Static<typeof Bulk> = {
  ...BULK_EXAMPLE,
  status: "running",
  matched: 12_345,
  done: 1_200,
  skipped: 3,
  sample: ["job_01m7ybr3kgsnpd4n830jn3f3ba"],
  started_at: "2026-11-21T06:12:27.101Z",
};

export const BULK_OPERATIONS = {
  createBulk: operation({
    method: "POST",
    path: "/v2/bulk",
    resource: "bulk",
    summary: "Do something to many jobs",
    description:
      "Counts what the filter matches at the time of the request, oldest first, and then cancels, retries or backfills it at the " +
      "pace that was asked for, through the ordinary queues. Each member is judged again when its turn comes. Jobs that are " +
      "created later never match. A `backfill` makes one job, due at once, for each instant that did not fire and that the " +
      `schedule's firings still show, of at most ${BACKFILL_INSTANTS_MAX.toLocaleString("en")} instants. One operation of an environment ` +
      `runs at a time, in the order of the requests; at most ${OPEN_BULKS_MAX} may be unfinished. Counting waits for nobody.`,
    body: {
      schema: NewBulkRequest,
      examples: {
        retryFailed: REQUEST_EXAMPLE,
        countQueued: { action: "cancel", filter: { status: "queued", tag: "customer:4711" }, dry_run: true },
        backfill: {
          action: "backfill",
          filter: {
            schedule_id: "sch_01arz3ndektsv4rrffq69g5fav",
            from: "2026-11-20T00:00:00.000Z",
            to: "2026-11-21T00:00:00.000Z",
          },
        },
      },
    },
    status: 201,
    response: { schema: Bulk, examples: { counting: BULK_EXAMPLE } },
    codes: ["plan_limit_exceeded"],
  }),
  listBulk: operation({
    method: "GET",
    path: "/v2/bulk",
    resource: "bulk",
    summary: "List bulk operations",
    description: `Newest first. An operation is listed for ${BULK_KEPT_DAYS} days after its end.`,
    query: BulkListParameters,
    response: {
      schema: BulkList,
      examples: { firstPage: { data: [RUNNING_EXAMPLE], next_cursor: NEXT_CURSOR_EXAMPLE } },
    },
  }),
  getBulk: operation({
    method: "GET",
    path: "/v2/bulk/{bulk_id}",
    id: BulkId,
    resource: "bulk",
    summary: "Get a bulk operation",
    description: "Once it is `done`, `matched` is the sum of `done`, `skipped` and `failed`.",
    response: { schema: Bulk, examples: { running: RUNNING_EXAMPLE } },
  }),
  abortBulk: operation({
    method: "POST",
    path: "/v2/bulk/{bulk_id}/abort",
    id: BulkId,
    resource: "bulk",
    summary: "Abort a bulk operation",
    description:
      "Nothing more is done after the answer, whose `done` counts what was done. Attempts that it has made owed are still sent. " +
      "An operation that is over is refused with `invalid_request`.",
    response: {
      schema: Bulk,
      examples: {
        aborted: { ...RUNNING_EXAMPLE, status: "aborted", ended_at: "2026-11-21T06:12:39.500Z" },
      },
    },
  }),
};
