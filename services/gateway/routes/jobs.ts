import type { Bus } from "../../../shared/bus/bus.ts";
import { sendCommands } from "../../../shared/bus/hints.ts";
import { viewExplanation } from "../../../shared/contract/explanation.ts";
import {
  type AcceptedJob,
  type JobFacts,
  jobBatchParts,
  jobText,
  readJobListQuery,
  readNewJob,
  readNewJobBatch,
  viewCanceledJob,
  viewListedJob,
} from "../../../shared/contract/job.ts";
import { viewList } from "../../../shared/contract/list.ts";
import { resourceNotFound } from "../../../shared/domain/errors.ts";
import { explainWait } from "../../../shared/domain/explain.ts";
import { type IdSource, idTimeMs, JOB_PREFIX, retypeId } from "../../../shared/domain/ids.ts";
import { type JobContext, PAYLOAD_BYTES_MAX } from "../../../shared/domain/job.ts";
import { PAGE_SIZE_MAX, parseQuery } from "../../../shared/domain/page.ts";
import { retainedSince } from "../../../shared/domain/plan.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import { TAG_CHARACTERS_MAX, TAGS_MAX } from "../../../shared/domain/tags.ts";
import type { TargetRules } from "../../../shared/domain/target.ts";
import { TIMELINE_ENTRIES_MAX, timelineOf } from "../../../shared/domain/timeline.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { findExplained } from "../../../shared/store/resources/explain.ts";
import type { KeyToTake } from "../../../shared/store/resources/idempotency.ts";
import type { JobToCreate } from "../../../shared/store/resources/job-creation.ts";
import { listJobs } from "../../../shared/store/resources/job-list.ts";
import {
  type AskedJob,
  findAskedJobs,
  findJob,
  type JobRow,
  type JobSummary,
} from "../../../shared/store/resources/jobs.ts";
import { cancelJob } from "../../../shared/store/resources/jobs-by-hand.ts";
import { BATCH_BODY_BYTES_MAX, BODY_BYTES_MAX } from "../request/body.ts";
import { QuotaExceeded } from "../request/errors.ts";
import type { JobCreation } from "./job-creation.ts";
import { earlierId, filterText, idOrNull, NOTHING, type Pager, textOrNull } from "./pager.ts";
import { readPathId } from "./path-id.ts";
import type { ApiRequest, RoutesOf } from "./route.ts";

export function jobRoutes(options: {
  db: Database;
  bus: Bus;
  clock: Clock;
  ids: IdSource;
  pager: Pager;
  creation: JobCreation;
  shardsPerRegion: number;
  targets: TargetRules;
}): RoutesOf<"jobs"> {
  const { db, bus, clock, ids, pager, creation, shardsPerRegion, targets } = options;

  const contextOf = ({ caller }: ApiRequest): JobContext => {
    const { plan, defaultRegion } = caller.project;
    return { plan, defaultRegion, now: clock.now(), targets };
  };

  /** Creates all jobs, or none if the key is taken. Throws ApiError. */
  async function create(
    request: ApiRequest,
    accepted: readonly AcceptedJob[],
    key: KeyToTake | null,
  ): Promise<JobToCreate[] | "key_taken"> {
    const { scope } = request;
    const shard = shardOf(scope.projectNo, shardsPerRegion);
    const cause = request.cause();
    const trace = request.trace();
    const now = clock.now();
    const jobs = accepted.map((asked, index): JobToCreate => {
      // The first job has the 128 bits of its request's id, so that most jobs need not store that id.
      const id = index === 0 ? retypeId(cause.requestId, JOB_PREFIX) : ids.next(JOB_PREFIX, now);
      const { maxAttempts, baseSeconds, capSeconds } = asked.retryPolicy;
      return {
        id,
        projectNo: scope.projectNo,
        environment: scope.environment,
        region: asked.region,
        shard,
        targetUrl: asked.targetUrl,
        payload: asked.payloadText,
        runAt: asked.runAt ?? idTimeMs(id),
        maxAttempts,
        baseSeconds,
        capSeconds,
        tags: asked.tags,
        flow: asked.flow,
        cause,
        trace,
        ...(key !== null && { key }),
      };
    });
    const [created] = await creation.submit(jobs);
    if (created?.kind === "quota_exceeded") throw new QuotaExceeded(created.clearsInMs);
    return created?.kind === "key_taken" ? "key_taken" : jobs;
  }

  return {
    createJob: {
      isShared: true,
      body: { payload: "member", bytesMax: BODY_BYTES_MAX },
      async create(request, key, body) {
        parseQuery(request.query, []);
        const accepted = readNewJob(body, contextOf(request));
        const jobs = await create(request, [accepted], key);
        return jobs === "key_taken" ? jobs : { status: 201, text: oneText(jobs) };
      },
      async replay({ scope }, { jobIds }) {
        return { status: 201, text: oneText(await findAskedJobs(db, scope, jobIds)) };
      },
    },
    createJobBatch: {
      isShared: true,
      body: { payload: "each job", bytesMax: BATCH_BODY_BYTES_MAX },
      async create(request, key, body) {
        parseQuery(request.query, []);
        const accepted = readNewJobBatch(body, contextOf(request));
        const jobs = await create(request, accepted, key);
        return jobs === "key_taken" ? jobs : { status: 201, text: jobBatchParts(jobs.map(newJobFacts)) };
      },
      async replay({ scope }, { jobIds }) {
        const jobs = await findAskedJobs(db, scope, jobIds);
        return { status: 201, text: jobBatchParts(jobs.map(newJobFacts)) };
      },
    },
    listJobs: {
      body: null,
      answerBytesMax: JOB_PAGE_BYTES_MAX,
      async answer({ caller, scope, query }) {
        const asked = readJobListQuery(query);
        const { status, region, tag, flowKey, schedule, created, ids: between } = asked;
        const walk = pager.walk("GET /v2/jobs", caller, asked, {
          status,
          region,
          tag,
          flow_key: flowKey,
          schedule_id: filterText(schedule),
          created_after: textOrNull(created.after),
          created_before: textOrNull(created.before),
        });
        const filters = { status, region, tag, flowKey, scheduleId: idOrNull(schedule) };
        const place = { fromId: between.fromId, beforeId: earlierId(walk.beforeId, between.beforeId) };
        const found =
          schedule.kind === "none"
            ? NOTHING
            : await listJobs(db, { ...scope, ...filters, ...place, limit: walk.rowsMax });
        const { rows, nextCursor } = walk.page(found.rows, found.endId !== null, found.endId ?? undefined);
        const view = viewList(
          rows.map((job) => viewListedJob(summaryFacts(job))),
          nextCursor,
        );
        return { status: 200, text: JSON.stringify(view) };
      },
    },
    getJob: {
      body: null,
      answerBytesMax: PAYLOAD_ANSWER_BYTES_MAX,
      async answer({ scope, id, query }) {
        const jobId = readPathId(JOB_PREFIX, id);
        parseQuery(query, []);
        const job = await findJob(db, scope, jobId);
        if (job === null) throw resourceNotFound();
        return { status: 200, text: jobText(jobFacts(job)) };
      },
    },
    explainJob: {
      body: null,
      answerBytesMax: EXPLANATION_BYTES_MAX,
      async answer({ caller, scope, id, query }) {
        const jobId = readPathId(JOB_PREFIX, id);
        parseQuery(query, []);
        const sinceAt = retainedSince(caller.project.plan, clock.now());
        const job = await findExplained(db, { ...scope, sinceAt }, jobId);
        if (job === null) throw resourceNotFound();
        const { asOf, status, owed, around } = job;
        const createdAt = idTimeMs(jobId);
        const waiting = owed === null ? null : explainWait(owed, around, { now: asOf, createdAt });
        const timeline = timelineOf({ ...job, createdAt }, asOf);
        const view = viewExplanation({ jobId, status, asOf, waiting, timeline });
        return { status: 200, text: JSON.stringify(view) };
      },
    },
    cancelJob: {
      body: null,
      async answer({ scope, id, query, cause }) {
        const jobId = readPathId(JOB_PREFIX, id);
        parseQuery(query, []);
        const canceled = await cancelJob(db, scope, jobId, cause());
        if (canceled.kind === "not_found") throw resourceNotFound();
        sendCommands(bus, canceled.owed, clock.now());
        return { status: 200, text: JSON.stringify(viewCanceledJob(summaryFacts(canceled.job))) };
      },
    },
  };
}

/**
 * A job without its payload: a URL of 2,048 characters, each of which JSON may write as two, tags, none of whose characters
 * JSON writes as two, and some short fields.
 */
const JOB_BYTES_MAX = 4_608 + TAGS_MAX * (TAG_CHARACTERS_MAX + 3);
const JOB_PAGE_BYTES_MAX = PAGE_SIZE_MAX * JOB_BYTES_MAX;
/** The answer with one job. An answer with one schedule is no larger. */
export const PAYLOAD_ANSWER_BYTES_MAX = PAYLOAD_BYTES_MAX + 2 * JOB_BYTES_MAX;

/** No entry of a timeline is longer than 256 bytes. */
const EXPLANATION_BYTES_MAX = 4_096 + TIMELINE_ENTRIES_MAX * 256;

function summaryFacts({ id, status, targetUrl, region, attempts, runAt, tags }: JobSummary) {
  return { id, status, targetUrl, region, attempts, runAt, createdAt: idTimeMs(id), tags };
}

function jobFacts(job: JobRow): JobFacts {
  return { ...summaryFacts(job), ...askedFacts(job) };
}

type NewJobRow = AskedJob | JobToCreate;

/** A job as the answer to its creation shows it, whatever its state is now. */
function newJobFacts(job: NewJobRow): JobFacts {
  const { tags = null, flow = null, ...asked } = job;
  const summary = summaryFacts({ ...asked, tags, status: "queued", attempts: 0 });
  return { ...summary, ...askedFacts({ ...asked, flow }) };
}

function oneText(jobs: readonly NewJobRow[]): string {
  const [job] = jobs;
  if (job === undefined) throw new Error("a created job is missing");
  return newJobText(job);
}

/** The JSON text of a job as the answer to its creation shows it. */
export function newJobText(job: NewJobRow): string {
  return jobText(newJobFacts(job));
}

function askedFacts({ payload, maxAttempts, baseSeconds, capSeconds, flow }: Omit<AskedJob, "tags">) {
  return { payloadText: payload, retryPolicy: { maxAttempts, baseSeconds, capSeconds }, flow };
}
