import {
  jobText,
  readJobListQuery,
  readNewJob,
  viewCanceledJob,
  viewListedJob,
} from "../../../shared/contract/job.ts";
import { viewList } from "../../../shared/contract/list.ts";
import { resourceNotFound } from "../../../shared/domain/errors.ts";
import { type IdSource, idTimeMs, JOB_PREFIX, parseId } from "../../../shared/domain/ids.ts";
import { decideCancel } from "../../../shared/domain/job.ts";
import { parseQuery } from "../../../shared/domain/page.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import type { TargetRules } from "../../../shared/domain/target.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Batcher } from "../../../shared/store/batch.ts";
import { type Database, StoreUnavailable } from "../../../shared/store/database.ts";
import {
  type Created,
  cancelJob,
  findJob,
  type JobRow,
  type JobSummary,
  type JobToCreate,
  listJobs,
} from "../../../shared/store/jobs.ts";
import type { ApiRequest, Route } from "../app.ts";
import { BODY_BYTES_MAX } from "../body.ts";
import { quotaExceeded } from "../errors.ts";
import type { Pager } from "../pages.ts";

export function jobRoutes(options: {
  db: Database;
  clock: Clock;
  ids: IdSource;
  pager: Pager;
  creation: Batcher<JobToCreate, Created>;
  shardsPerRegion: number;
  targets: TargetRules;
}): Route[] {
  const { db, clock, ids, pager, creation, shardsPerRegion, targets } = options;
  return [
    {
      method: "POST",
      path: "/v2/jobs",
      resource: "jobs",
      body: { payload: "member", bytesMax: BODY_BYTES_MAX },
      async answer({ caller, scope, query }, body) {
        parseQuery(query, []);
        const { plan, defaultRegion } = caller.project;
        const now = clock.now();
        const accepted = readNewJob(body, { plan, defaultRegion, now, targets });
        const { targetUrl, region, retryPolicy, payloadText } = accepted;
        const id = ids.next(JOB_PREFIX, now);
        const createdAt = idTimeMs(id);
        const runAt = accepted.runAt ?? createdAt;
        const created = await creation.submit({
          id,
          ...scope,
          region,
          shard: shardOf(scope.projectNo, shardsPerRegion),
          targetUrl,
          payload: payloadText,
          runAt,
          ...retryPolicy,
        });
        if (created.kind === "quota_exceeded") throw quotaExceeded();
        const text = jobText({
          id,
          status: "queued",
          targetUrl,
          payloadText,
          runAt,
          region,
          retryPolicy,
          attempts: 0,
          createdAt,
        });
        return { status: 201, text };
      },
    },
    {
      method: "GET",
      path: "/v2/jobs",
      resource: "jobs",
      body: null,
      async answer({ caller, scope, query }) {
        const asked = readJobListQuery(query);
        const { status, region } = asked;
        const walk = pager.walk("GET /v2/jobs", caller, asked, { status, region });
        const { beforeId, rowsMax } = walk;
        const found = await listJobs(db, { ...scope, status, region, beforeId, limit: rowsMax });
        const { rows, nextCursor } = walk.page(found);
        const view = viewList(
          rows.map((job) => viewListedJob(summaryFacts(job))),
          nextCursor,
        );
        return { status: 200, text: JSON.stringify(view) };
      },
    },
    {
      method: "GET",
      path: "/v2/jobs/:id",
      resource: "jobs",
      body: null,
      async answer({ scope, id, query }) {
        const jobId = readJobId(id);
        parseQuery(query, []);
        const job = await findJob(db, scope, jobId);
        if (job === null) throw resourceNotFound();
        return { status: 200, text: jobText(jobFacts(job)) };
      },
    },
    {
      method: "DELETE",
      path: "/v2/jobs/:id",
      resource: "jobs",
      body: null,
      async answer({ scope, id, query }) {
        const jobId = readJobId(id);
        parseQuery(query, []);
        const job = await cancel(db, scope, jobId);
        return { status: 200, text: JSON.stringify(viewCanceledJob(summaryFacts(job))) };
      },
    },
  ];
}

/** A job that had ended when it was to be canceled can be reopened by a manual retry before its error is told. */
const CANCEL_TRIES_MAX = 5;

/** Throws ApiError for a job that is unknown or has ended. */
async function cancel(db: Database, scope: ApiRequest["scope"], id: string): Promise<JobSummary> {
  for (let attempt = 0; attempt < CANCEL_TRIES_MAX; attempt++) {
    const canceled = await cancelJob(db, scope, id);
    if (canceled.kind === "canceled") return canceled.job;
    const job = canceled.kind === "conflict" ? await findJob(db, scope, id) : null;
    if (job === null) throw resourceNotFound();
    // Whether its attempt has been sent matters only to a job that has not ended, and that one is tried again.
    const decision = decideCancel({ status: job.status, isSent: true });
    if (decision.kind === "refused") throw decision.error;
  }
  throw new StoreUnavailable(`job ${id} moved ${CANCEL_TRIES_MAX} times while it was being canceled`);
}

function readJobId(text: string): string {
  const id = parseId(JOB_PREFIX, text);
  if (id === null) throw resourceNotFound();
  return id;
}

function summaryFacts({ id, status, targetUrl, region, attempts, runAt }: JobSummary) {
  return { id, status, targetUrl, region, attempts, runAt, createdAt: idTimeMs(id) };
}

function jobFacts(job: JobRow) {
  const { payload, maxAttempts, baseSeconds, capSeconds } = job;
  return {
    ...summaryFacts(job),
    payloadText: payload,
    retryPolicy: { maxAttempts, baseSeconds, capSeconds },
  };
}
