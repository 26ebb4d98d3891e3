import type { Bus } from "../../../shared/bus/bus.ts";
import { sendProjectChange } from "../../../shared/bus/hints.ts";
import { readBulkListQuery, readNewBulk, viewBulk } from "../../../shared/contract/bulk.ts";
import { viewList } from "../../../shared/contract/list.ts";
import {
  BACKFILL_INSTANTS_MAX,
  type InstantSelection,
  OPEN_BULKS_MAX,
  tooManyInstants,
  unknownSchedule,
} from "../../../shared/domain/bulk.ts";
import { ApiError, resourceNotFound } from "../../../shared/domain/errors.ts";
import { BULK_PREFIX, retypeId } from "../../../shared/domain/ids.ts";
import { PAGE_SIZE_MAX, parseQuery } from "../../../shared/domain/page.ts";
import { retainedSince } from "../../../shared/domain/plan.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { countLedger } from "../../../shared/store/queue/ledger.ts";
import {
  abortBulk,
  type BulkRow,
  createBulk,
  findBulk,
  listBulk,
  newBulk,
} from "../../../shared/store/resources/bulk-operations.ts";
import { findSchedule } from "../../../shared/store/resources/schedules.ts";
import { BODY_BYTES_MAX } from "../request/body.ts";
import { startSlicedWork } from "../request/sliced-work.ts";
import { keptAnswer } from "./kept-answer.ts";
import { createOneAtATime } from "./one-at-a-time.ts";
import type { Pager } from "./pager.ts";
import { readPathId } from "./path-id.ts";
import type { ApiRequest, RoutesOf } from "./route.ts";

/** The routes of bulk operations. A worker carries them out (services/worker/bulk/). */
export function bulkRoutes(options: {
  db: Database;
  bus: Bus;
  clock: Clock;
  pager: Pager;
  shardsPerRegion: number;
}): RoutesOf<"bulk"> {
  const { db, bus, clock, pager, shardsPerRegion } = options;
  const inTurn = createOneAtATime();

  /** Tells the worker, which looks for bulk operations itself, but not at once. */
  const tellWorker = ({ scope }: ApiRequest) =>
    sendProjectChange(bus, scope.projectNo, shardOf(scope.projectNo, shardsPerRegion));

  async function checkLedger({ caller, scope }: ApiRequest, asked: InstantSelection): Promise<void> {
    const schedule = await findSchedule(db, scope, asked.scheduleId);
    if (schedule === null) throw unknownSchedule();
    const fromAt = Math.max(asked.fromAt, retainedSince(caller.project.plan, clock.now()));
    const work = startSlicedWork(scope.projectNo);
    const range = { fromAt, toAt: asked.toAt - 1 };
    const count = await countLedger(db, schedule, range, BACKFILL_INSTANTS_MAX, () => work.pause());
    if (count === null) throw tooManyInstants();
  }

  return {
    createBulk: {
      body: { payload: "none", bytesMax: BODY_BYTES_MAX },
      async create(request, key, body) {
        parseQuery(request.query, []);
        const { scope } = request;
        const { selection, ...asked } = readNewBulk(body.value, clock.now());
        if (selection.action === "backfill") await checkLedger(request, selection);
        const cause = request.cause();
        const bulk = {
          ...asked,
          id: retypeId(cause.requestId, BULK_PREFIX),
          shard: shardOf(scope.projectNo, shardsPerRegion),
        };
        const text = textOf(newBulk(bulk));
        const keyWithAnswer = key === null ? null : { ...key, answer: Buffer.from(text) };
        // Creations of a project exclude each other in Postgres. In this gateway they wait without a connection.
        const outcome = await inTurn(String(scope.projectNo), () =>
          createBulk(db, scope, bulk, cause, keyWithAnswer),
        );
        switch (outcome) {
          case "key_taken":
            return outcome;
          case "limit_exceeded":
            throw tooManyOpen();
          case "created":
            tellWorker(request);
            return { status: 201, text };
        }
      },
      replay: async (_request, first) => keptAnswer(201, first),
    },
    listBulk: {
      body: null,
      answerBytesMax: PAGE_BYTES_MAX,
      async answer({ caller, scope, query }) {
        const walk = pager.walk("GET /v2/bulk", caller, readBulkListQuery(query), {});
        const { beforeId, rowsMax: limit } = walk;
        const { rows, nextCursor } = walk.page(await listBulk(db, { ...scope, beforeId, limit }));
        return { status: 200, text: JSON.stringify(viewList(rows.map(viewBulk), nextCursor)) };
      },
    },
    getBulk: {
      body: null,
      async answer({ scope, id, query }) {
        const bulkId = readPathId(BULK_PREFIX, id);
        parseQuery(query, []);
        const bulk = await findBulk(db, scope, bulkId);
        if (bulk === null) throw resourceNotFound();
        return { status: 200, text: textOf(bulk) };
      },
    },
    abortBulk: {
      body: null,
      async create(request, key) {
        const bulkId = readPathId(BULK_PREFIX, request.id);
        parseQuery(request.query, []);
        const keyWithAnswer = key && { ...key, answerOf: (bulk: BulkRow) => Buffer.from(textOf(bulk)) };
        const aborted = await abortBulk(db, request.scope, bulkId, request.cause(), keyWithAnswer);
        if (aborted === "key_taken") return aborted;
        if (aborted === "not_found") throw resourceNotFound();
        tellWorker(request);
        return { status: 200, text: textOf(aborted) };
      },
      replay: async (_request, first) => keptAnswer(200, first),
    },
  };
}

const textOf = (bulk: BulkRow) => JSON.stringify(viewBulk(bulk));

/** A filter is shorter than 3,072 bytes as JSON writes it, and the other fields are short. */
const PAGE_BYTES_MAX = PAGE_SIZE_MAX * 4_096;

const tooManyOpen = () =>
  new ApiError(
    "plan_limit_exceeded",
    `The environment's limit of ${OPEN_BULKS_MAX} unfinished bulk operations is reached.`,
  );
