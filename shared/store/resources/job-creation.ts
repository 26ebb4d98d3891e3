import type { Flow } from "../../domain/flow-key.ts";
import { haveSameBits, idToUuid } from "../../domain/ids.ts";
import { type OwedAttempt, oweAttempt, type Placed } from "../../domain/owed.ts";
import type { ProjectNo, Scope } from "../../domain/scope.ts";
import type { TraceContext } from "../../domain/trace.ts";
import { environmentCode, regionCode } from "../database/codes.ts";
import { idColumn, instantColumn, int2Column, int4Column, textColumn } from "../database/columns.ts";
import { type Database, epochMs } from "../database/database.ts";
import { traceHex } from "../database/traces.ts";
import { giveFlows, IS_PARKED } from "../queue/given-flows.ts";
import { COUNTED_MONTH, clearsIn, HAS_QUOTA } from "../queue/month.ts";
import { DUE_AT, newJobs, type WithTags } from "../queue/new-jobs.ts";
import { FREE_FOR_ANY } from "../queue/permits.ts";
import type { KeyCause } from "./audit.ts";
import { type KeyToTake, ON_CONFLICT_TAKE_KEY } from "./idempotency.ts";
import type { AskedJob } from "./jobs.ts";
import { createOrdinaryJob, createOrdinaryJobs } from "./ordinary-creation.ts";

/** A job as it was asked for, and the shard that is to look after it. */
export interface JobToCreate extends Omit<AskedJob, "tags" | "flow">, Placed<Scope> {
  /** The same object for all jobs of one request: the key and these jobs are committed together or not at all. */
  key?: KeyToTake;
  /** Null for a job that no request asked for. */
  cause: KeyCause | null;
  tags?: string[] | null;
  flow?: Flow | null;
  /** The schedule of a job that a client runs outside the schedule's turn. */
  scheduleId?: string;
  /** The trace that its attempts belong to, if a request named one. */
  trace?: TraceContext | null;
}

export type Created =
  /**
   * The job was committed, and its first attempt is owed. `mayStart` tells whether the attempt is due, has no flow key, and its
   * project seemed to have a permit for it, by a look without a lock. An operator may hold its region nevertheless.
   */
  | { kind: "created"; owed: Placed<OwedAttempt>[]; mayStart: boolean }
  /** The project's month has no run left, and ends in so many milliseconds. */
  | { kind: "quota_exceeded"; clearsInMs: number }
  /** Another request has had the Idempotency-Key; findFirstAnswer tells what it made. */
  | { kind: "key_taken" };

const LARGE_BYTES = 1_048_576;

/**
 * Creates many jobs in one statement, or in two if the short way (ordinary-creation.ts) creates none. It creates all accepted
 * jobs, or none after an error. A job whose id exists already is left as it is and reported as created, so that a request of
 * unknown outcome can be sent again. An attempt is owed only if the job itself was inserted; otherwise a job that has run and
 * ended meanwhile would run once more.
 *
 * `knownLanes` is the caller's memory of lanes that have their row. New ones are added to it.
 */
export async function createJobs(
  db: Database,
  jobs: readonly JobToCreate[],
  knownLanes: Set<string>,
): Promise<Created[]> {
  const lanes = jobs.map((job) => `${job.projectNo}/${job.region}/${job.environment}/${job.shard}`);
  const hasKeys = jobs.some((job) => job.key !== undefined);
  const hasFlows = jobs.some((job) => job.flow != null);
  const isOfSchedule = jobs.some((job) => job.scheduleId !== undefined);
  const isOrdinary = !hasKeys && !hasFlows && !isOfSchedule && lanes.every((lane) => knownLanes.has(lane));
  const createdAs = creationsOf();
  const [only] = jobs;
  if (isOrdinary && jobs.length === 1 && only !== undefined && only.tags == null) {
    const created = await createOrdinaryJob(db, valuesOf(only));
    if (created !== null) return [createdAs(only, created.dueAt, created.permits)];
  }
  const payloads = textColumn(jobs.map((job) => job.payload));
  // Large payloads take tens of milliseconds to encode, and as many to send. Other requests have a turn in between.
  if (payloads !== null && payloads.length > LARGE_BYTES) await new Promise(setImmediate);
  const tags = textColumn(jobs.map((job) => arrayText(job.tags)));
  if (isOrdinary && (jobs.length > 1 || tags !== null)) {
    const uniform = areUniform(jobs);
    const columns = columnsOf(jobs, payloads, uniform);
    const projects = new Set(jobs.map((job) => job.projectNo));
    const created = await createOrdinaryJobs(db, columns, tags, projects, uniform);
    if (created !== null) {
      const { now, permitsOf } = created;
      return jobs.map((job) =>
        createdAs(job, Math.max(job.runAt, now), permitsOf.get(job.projectNo) ?? null),
      );
    }
  }
  const newShards = jobs.map((job, index) => (knownLanes.has(lanes[index] ?? "") ? null : job.shard));
  const keys = hasKeys
    ? [jobs.map((job) => job.key?.digest ?? null), jobs.map((job) => job.key?.requestHash ?? null)]
    : [];
  const more = hasFlows ? "_flowing" : tags === null ? "" : "_tagged";
  const name = `create_jobs${hasKeys ? "_keyed" : ""}${more}` as const;
  const words = hasFlows
    ? [
        jobs.map((job) => arrayText(job.tags)),
        jobs.map(({ flow }) => (flow == null ? null : JSON.stringify(flow))),
      ]
    : tags === null
      ? []
      : [tags];
  const schedules = idColumn(jobs.map((job) => job.scheduleId ?? null));
  const values = [...columnsOf(jobs, payloads, false), schedules, int2Column(newShards), ...keys, ...words];
  const rows = await db.run<CreatedRow>(name, CREATE[name], values);
  return rows.map((row, index): Created => {
    if (row.key_taken) return { kind: "key_taken" };
    if (row.clears_in_ms !== null) return { kind: "quota_exceeded", clearsInMs: row.clears_in_ms };
    knownLanes.add(lanes[index] ?? "");
    // A parked attempt is not announced.
    return row.is_parked
      ? { kind: "created", owed: [], mayStart: false }
      : createdAs(jobs[index] as JobToCreate, row.due_at, row.permits);
  });
}

/** Makes the answers of one statement, whose attempts share their projects' permits. */
function creationsOf() {
  const takenOf = new Map<ProjectNo, number>();
  return (job: JobToCreate, dueAt: number, permits: number | null): Created => {
    const isGated = job.flow == null ? undefined : true;
    const taken = takenOf.get(job.projectNo) ?? 0;
    // A job that asks for a later instant is due then, and any other at the statement's beginning.
    const mayStart = !isGated && dueAt > job.runAt && taken < (permits ?? 0);
    if (mayStart) takenOf.set(job.projectNo, taken + 1);
    return {
      ...{ kind: "created", mayStart },
      owed: oweAttempt("jobs", job, { id: job.id, attempt: 1, dueAt, isGated }),
    };
  };
}

/** Whether the jobs have one project, environment, region, retry policy and API key: all that columnsOf takes as a scalar. */
function areUniform([first, ...others]: readonly JobToCreate[]): boolean {
  return others.every(
    (job) =>
      job.projectNo === first?.projectNo &&
      job.environment === first.environment &&
      job.region === first.region &&
      job.maxAttempts === first.maxAttempts &&
      job.baseSeconds === first.baseSeconds &&
      job.capSeconds === first.capSeconds &&
      job.cause?.keyNo === first.cause?.keyNo,
  );
}

/** The first 13 parameters of each statement. Of uniform jobs, what they have in common is a scalar. Everything else is an array. */
function columnsOf(jobs: readonly JobToCreate[], payloads: Buffer | null, uniform: boolean): unknown[] {
  const example = uniform ? jobs[0] : undefined;
  function common<Value>(read: (job: JobToCreate) => Value, columnOf: (values: Value[]) => Buffer | null) {
    return example === undefined ? columnOf(jobs.map(read)) : read(example);
  }
  return [
    common((job) => job.projectNo, int4Column),
    common((job) => environmentCode(job.environment), int2Column),
    common((job) => regionCode(job.region), int2Column),
    idColumn(jobs.map((job) => job.id)),
    textColumn(jobs.map((job) => job.targetUrl)),
    payloads,
    instantColumn(jobs.map((job) => job.runAt)),
    common((job) => job.maxAttempts, int2Column),
    common((job) => job.baseSeconds, int4Column),
    common((job) => job.capSeconds, int4Column),
    common((job) => job.cause?.keyNo ?? null, int4Column),
    idColumn(jobs.map(requestIdOf)),
    textColumn(jobs.map((job) => traceHex(job.trace ?? null))),
  ];
}

/** The same parameters for one job, as scalars. */
function valuesOf(job: JobToCreate): unknown[] {
  const requestId = requestIdOf(job);
  return [
    ...[
      job.projectNo,
      environmentCode(job.environment),
      regionCode(job.region),
      idToUuid(job.id),
      job.targetUrl,
    ],
    ...[job.payload, new Date(job.runAt).toISOString(), job.maxAttempts, job.baseSeconds, job.capSeconds],
    ...[job.cause?.keyNo ?? null, requestId === null ? null : idToUuid(requestId)],
    traceHex(job.trace ?? null),
  ];
}

/** Tags as Postgres writes an array. No character of a tag has a special meaning within quotes. */
const arrayText = (tags: readonly string[] | null | undefined): string | null =>
  tags == null ? null : `{${tags.map((tag) => `"${tag}"`).join(",")}}`;

/** The id of the request that asked for the job; null where the job's own id tells it. */
function requestIdOf({ id, cause }: JobToCreate): string | null {
  return cause === null || haveSameBits(cause.requestId, id) ? null : cause.requestId;
}

interface CreatedRow {
  key_taken: boolean;
  /** Null for a job that was created. */
  clears_in_ms: number | null;
  due_at: number;
  /** FREE_FOR_ANY of its project, by a look without a lock. */
  permits: number | null;
  /** Whether the job's flow key keeps the first attempt back. */
  is_parked?: boolean;
}

/** The parameters after the first 15, each with the name of its column. */
type More = readonly (readonly [parameter: string, column: string])[];
const KEYS: More = [
  ["$16::bytea[]", "digest"],
  ["$17::bytea[]", "request_hash"],
];

// A scalar: in any other form the planner might read the whole table.
const JOB_EXISTS = `(SELECT true FROM jobs j WHERE j.project_no = i.project_no AND j.environment = i.environment
                                            AND j.region = i.region AND j.id = i.id) IS NOT NULL`;

const asked = (more: More, { tags, flow = false }: WithTags) => `
  SELECT i.*, ${tags ? "i.tag_list::text[] AS tags, " : ""}${flow ? `i.flow_text::json AS flow, NOT ${JOB_EXISTS} AS is_new, ` : ""}${COUNTED_MONTH} AS month, ${HAS_QUOTA}
              -- It was accepted before, although the quota has been used up since.
              OR ${JOB_EXISTS} AS accepted, ${FREE_FOR_ANY} AS permits
    FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::uuid[], $5::text[], $6::text[], $7::timestamptz[],
                $8::smallint[], $9::int[], $10::int[], $11::int[], $12::uuid[], $13::text[], $14::uuid[],
                $15::smallint[]${more.map(([parameter]) => `, ${parameter}`).join("")})
         WITH ORDINALITY AS i (project_no, environment, region, id, target_url, payload, run_at, max_attempts,
                               base_seconds, cap_seconds, key_no, request_id, trace, schedule_id, new_shard${more.map(([, column]) => `, ${column}`).join("")}, n)
    JOIN flows f USING (project_no)`;

const answer = ({ flow = false }: WithTags) =>
  `SELECT CASE WHEN NOT accepted THEN ${clearsIn("month", "now()")} END AS clears_in_ms, ${epochMs(DUE_AT)} AS due_at, permits${flow ? `, ${IS_PARKED} AS is_parked` : ""}`;
const ACCEPTED = "item WHERE accepted";
/** Only new jobs count: the flow key of a job that exists already has heard of it. */
const givesFlows = ({ flow = false }: WithTags) => (flow ? `${giveFlows(`${ACCEPTED} AND is_new`)}, ` : "");

const creationOf = (more: More, withTags: WithTags) => `
WITH item AS MATERIALIZED (${asked(more, withTags)}
), ${givesFlows(withTags)}${newJobs(ACCEPTED, withTags)}
${answer(withTags)}, false AS key_taken FROM item ORDER BY n`;

// Keys are taken first and in one order, so that two gateways whose requests have several keys in common wait for each
// other only one way round. All other parts read item, which waits for the keys.
const keyedCreationOf = (more: More, withTags: WithTags) => `
WITH asked AS MATERIALIZED (${asked(more, withTags)}
), key AS (
  INSERT INTO idempotency_keys AS k (created_at, project_no, environment, digest, request_hash, job_ids)
  SELECT now(), project_no, environment, digest, request_hash, array_agg(id ORDER BY n)
    FROM asked WHERE accepted AND digest IS NOT NULL
   GROUP BY project_no, environment, digest, request_hash
   ORDER BY project_no, environment, digest ${ON_CONFLICT_TAKE_KEY}
  RETURNING project_no, environment, digest
), item AS MATERIALIZED (
  SELECT project_no, environment, region, new_shard, id, target_url, payload, run_at, max_attempts, base_seconds,
         cap_seconds, key_no, request_id, schedule_id, trace${withTags.tags ? ", tags" : ""}${withTags.flow ? ", flow, is_new" : ""}, n, month, permits, accepted AND has_key AS accepted, accepted AND NOT has_key AS key_taken
    FROM (SELECT *, digest IS NULL OR (project_no, environment, digest) IN (TABLE key) AS has_key FROM asked) judged
), ${givesFlows(withTags)}${newJobs(ACCEPTED, withTags)}
${answer(withTags)}, key_taken FROM item ORDER BY n`;

const [PLAIN, TAGGED, FLOWING] = [{ tags: false }, { tags: true }, { tags: true, flow: true }];
const FLOW = ["tag_list", "flow_text"] as const;
const flowFrom = (place: number): More =>
  FLOW.map((name, index) => [`$${place + index}::text[]`, name] as const);
const CREATE = {
  create_jobs: creationOf([], PLAIN),
  create_jobs_tagged: creationOf([["$16::text[]", "tag_list"]], TAGGED),
  create_jobs_keyed: keyedCreationOf(KEYS, PLAIN),
  create_jobs_keyed_tagged: keyedCreationOf([...KEYS, ["$18::text[]", "tag_list"]], TAGGED),
  create_jobs_flowing: creationOf(flowFrom(16), FLOWING),
  create_jobs_keyed_flowing: keyedCreationOf([...KEYS, ...flowFrom(18)], FLOWING),
};
