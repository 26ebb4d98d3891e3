import type { Bus } from "../../../shared/bus/bus.ts";
import { viewList } from "../../../shared/contract/list.ts";
import { readRunListQuery, viewRun } from "../../../shared/contract/run.ts";
import { resourceNotFound } from "../../../shared/domain/errors.ts";
import { type IdSource, parseId, RUN_PREFIX } from "../../../shared/domain/ids.ts";
import { decideManualRetry } from "../../../shared/domain/job.ts";
import { parseQuery } from "../../../shared/domain/page.ts";
import { retainedSince } from "../../../shared/domain/plan.ts";
import type { Region } from "../../../shared/domain/scope.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { KeyCause } from "../../../shared/store/audit.ts";
import { type Database, StoreUnavailable } from "../../../shared/store/database.ts";
import type { KeyToTake } from "../../../shared/store/idempotency.ts";
import { findJob } from "../../../shared/store/jobs.ts";
import type { Caller } from "../../../shared/store/keys.ts";
import { findRun, listRuns, type RunRow, retryRun, startedRun } from "../../../shared/store/runs.ts";
import type { ApiRequest, Route } from "../app.ts";
import { quotaExceeded } from "../errors.ts";
import type { Pager } from "../pages.ts";

export function runRoutes(options: {
  db: Database;
  bus: Bus;
  clock: Clock;
  ids: IdSource;
  pager: Pager;
  shardsPerRegion: number;
}): Route[] {
  const { db, bus, clock, ids, pager, shardsPerRegion } = options;

  /** Throws resource_not_found for a run that this caller does not see, or no longer. */
  async function findRetained({ caller, scope }: ApiRequest, id: string): Promise<RunRow> {
    const run = await findRun(db, scope, id);
    if (run === null || !isRetained(run, caller, clock.now())) throw resourceNotFound();
    return run;
  }

  return [
    {
      method: "GET",
      path: "/v2/runs",
      resource: "runs",
      body: null,
      async answer({ caller, scope, query }) {
        const asked = readRunListQuery(query);
        const { status, job } = asked;
        const jobId = job.kind === "one" ? job.id : null;
        // No cursor is ever made for the list of a job that cannot be, so none may work with it.
        const filters = { status, job_id: job.kind === "none" ? "" : jobId };
        const walk = pager.walk("GET /v2/runs", caller, asked, filters);
        const { beforeId, rowsMax } = walk;
        const found =
          job.kind === "none"
            ? []
            : await listRuns(db, { ...scope, jobId, status, beforeId, limit: rowsMax });
        // What is older than the window comes last, so the list ends where it begins.
        const now = clock.now();
        const { rows, nextCursor } = walk.page(found.filter((run) => isRetained(run, caller, now)));
        return { status: 200, text: JSON.stringify(viewList(rows.map(viewRun), nextCursor)) };
      },
    },
    {
      method: "GET",
      path: "/v2/runs/:id",
      resource: "runs",
      body: null,
      async answer(request) {
        const runId = readRunId(request.id);
        parseQuery(request.query, []);
        return { status: 200, text: JSON.stringify(viewRun(await findRetained(request, runId))) };
      },
    },
    {
      method: "POST",
      path: "/v2/runs/:id/retry",
      resource: "runs",
      body: null,
      async create(request, key) {
        const runId = readRunId(request.id);
        parseQuery(request.query, []);
        await findRetained(request, runId);
        const { scope } = request;
        const newRunId = ids.next(RUN_PREFIX, clock.now());
        const retried = await retry(db, scope, runId, newRunId, key, request.cause());
        if (retried === "key_taken") return retried;
        const { run, region, shard } = retried;
        const { jobId, attempt, startedAt: dueAt } = run;
        bus.sendCommand({
          region,
          shard: shard ?? shardOf(scope.projectNo, shardsPerRegion),
          projectNo: scope.projectNo,
          owed: [{ ...scope, jobId, attempt, dueAt }],
        });
        return { status: 201, text: JSON.stringify(viewRun(run)) };
      },
      async replay(_request, { jobIds: [jobId], run, at }) {
        if (jobId === undefined || run === null) throw new Error("a manual retry has no run");
        return { status: 201, text: JSON.stringify(viewRun(startedRun({ ...run, jobId, startedAt: at }))) };
      },
    },
  ];
}

/** A job that could not be retried can have moved on before its error is told. */
const RETRY_TRIES_MAX = 5;

/** Throws ApiError for a run that is unknown or cannot be retried now. */
async function retry(
  db: Database,
  scope: ApiRequest["scope"],
  runId: string,
  newRunId: string,
  key: KeyToTake | null,
  cause: KeyCause,
): Promise<{ run: RunRow; region: Region; shard: number | null } | "key_taken"> {
  for (let attempt = 0; attempt < RETRY_TRIES_MAX; attempt++) {
    const retried = await retryRun(db, scope, runId, newRunId, key, cause);
    switch (retried.kind) {
      case "retried":
        return retried;
      case "key_taken":
        return "key_taken";
      case "quota_exceeded":
        throw quotaExceeded();
      case "not_found":
        throw resourceNotFound();
      case "conflict": {
        const run = await findRun(db, scope, runId);
        const job = run === null ? null : await findJob(db, scope, run.jobId);
        if (run === null || job === null) throw resourceNotFound();
        const decision = decideManualRetry(job, run);
        if (decision.kind === "refused") throw decision.error;
      }
    }
  }
  throw new StoreUnavailable(
    `the job of run ${runId} moved ${RETRY_TRIES_MAX} times while it was being retried`,
  );
}

function readRunId(text: string): string {
  const id = parseId(RUN_PREFIX, text);
  if (id === null) throw resourceNotFound();
  return id;
}

/** A run in progress is shown however long ago it began. */
function isRetained(run: RunRow, { project }: Caller, now: number): boolean {
  return run.status === "running" || run.startedAt >= retainedSince(project.plan, now);
}
