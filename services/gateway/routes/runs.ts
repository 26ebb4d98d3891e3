import type { Bus } from "../../../shared/bus/bus.ts";
import { sendCommands } from "../../../shared/bus/hints.ts";
import { readRunListQuery, viewRun } from "../../../shared/contract/run.ts";
import { resourceNotFound } from "../../../shared/domain/errors.ts";
import { type IdSource, RUN_PREFIX } from "../../../shared/domain/ids.ts";
import { PAGE_SIZE_MAX, parseQuery } from "../../../shared/domain/page.ts";
import { retainedSince } from "../../../shared/domain/plan.ts";
import { ERROR_BYTES_MAX } from "../../../shared/domain/run.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { retryRun } from "../../../shared/store/resources/jobs-by-hand.ts";
import { listRuns } from "../../../shared/store/resources/run-list.ts";
import {
  findRun,
  type RetainedScope,
  type RunRow,
  startedRun,
} from "../../../shared/store/resources/runs.ts";
import { QuotaExceeded } from "../request/errors.ts";
import { filterText, idOrNull, NOTHING, type Pager, pageText, textOrNull } from "./pager.ts";
import { readPathId } from "./path-id.ts";
import type { ApiRequest, RoutesOf } from "./route.ts";

export function runRoutes(options: {
  db: Database;
  bus: Bus;
  clock: Clock;
  ids: IdSource;
  pager: Pager;
}): RoutesOf<"runs"> {
  const { db, bus, clock, ids, pager } = options;

  /** The runs that this caller may see: those that its plan keeps as of now. */
  const retainedBy = ({ caller, scope }: ApiRequest): RetainedScope => ({
    ...scope,
    sinceAt: retainedSince(caller.project.plan, clock.now()),
  });

  return {
    listRuns: {
      body: null,
      answerBytesMax: RUN_PAGE_BYTES_MAX,
      async answer(request) {
        const { caller, query } = request;
        const asked = readRunListQuery(query);
        const { status, job, tag, schedule, startedAfter, startedBefore } = asked;
        const walk = pager.walk("GET /v2/runs", caller, asked, {
          status,
          job_id: filterText(job),
          tag,
          schedule_id: filterText(schedule),
          started_after: textOrNull(startedAfter),
          started_before: textOrNull(startedBefore),
        });
        const filters = {
          status,
          jobId: idOrNull(job),
          tag,
          scheduleId: idOrNull(schedule),
          startedAfter,
          startedBefore,
        };
        const { beforeId, rowsMax } = walk;
        const found =
          job.kind === "none" || schedule.kind === "none"
            ? NOTHING
            : await listRuns(db, { ...retainedBy(request), ...filters, beforeId, limit: rowsMax });
        const page = walk.page(found.rows, found.endId !== null, found.endId ?? undefined);
        const text = await pageText(page, (run) => [textOf(run)], request.scope.projectNo);
        return { status: 200, text };
      },
    },
    getRun: {
      body: null,
      async answer(request) {
        const runId = readPathId(RUN_PREFIX, request.id);
        parseQuery(request.query, []);
        const run = await findRun(db, retainedBy(request), runId);
        if (run === null) throw resourceNotFound();
        return { status: 200, text: JSON.stringify(viewRun(run)) };
      },
    },
    retryRun: {
      body: null,
      async create(request, key) {
        const runId = readPathId(RUN_PREFIX, request.id);
        parseQuery(request.query, []);
        const newRunId = ids.next(RUN_PREFIX, clock.now());
        const [scope, cause, trace] = [retainedBy(request), request.cause(), request.trace()];
        const retried = await retryRun(db, scope, runId, newRunId, cause, key, trace);
        switch (retried.kind) {
          case "key_taken":
            return "key_taken";
          case "quota_exceeded":
            throw new QuotaExceeded(retried.clearsInMs);
          case "not_found":
            throw resourceNotFound();
          case "retried":
            sendCommands(bus, retried.owed, clock.now());
            return { status: 201, text: JSON.stringify(viewRun(retried.run)) };
        }
      },
      async replay(_request, { jobIds: [jobId], run, at }) {
        if (jobId === undefined || run === null) throw new Error("a manual retry has no run");
        return { status: 201, text: JSON.stringify(viewRun(startedRun({ ...run, jobId, startedAt: at }))) };
      },
    },
  };
}

/** A run without its error, each character of which JSON may write as two. */
const RUN_BYTES_MAX = 512;
const RUN_PAGE_BYTES_MAX = PAGE_SIZE_MAX * (RUN_BYTES_MAX + 2 * ERROR_BYTES_MAX);

const textOf = (run: RunRow) => JSON.stringify(viewRun(run));
