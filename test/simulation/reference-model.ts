/**
 * The API's documents as a small program, which shares no code with the service and has only the clock that it is
 * given. It answers what the gateway must answer, and remembers what a client could know.
 */

export type Env = "development" | "production";
export type JobStatus = "queued" | "running" | "succeeded" | "failed" | "canceled";
type RunStatus = "running" | "succeeded" | "failed" | "timed_out";

export interface ModelJob {
  id: string;
  env: Env;
  status: JobStatus;
  target_url: string;
  payload: unknown;
  run_at: string;
  region: string;
  retry_policy: { max_attempts: number; base_seconds: number; cap_seconds: number };
  attempts: number;
  created_at: string;
  tags?: string[];
  /** The number of the last attempt that may follow without a manual retry. */
  allowed: number;
  /** Null while no attempt is on the wire or owed with a run. */
  current: { runId: string; isSent: boolean } | null;
}

export interface ModelRun {
  id: string;
  env: Env;
  job_id: string;
  attempt: number;
  status: RunStatus;
  response_status: number | null;
  error: string | null;
  /** Null where only the service knows it. */
  started_at: string | null;
  duration_ms: number | null;
  next_retry_at: "none" | "some";
}

/** A first answer under an Idempotency-Key. */
interface FirstAnswer {
  body: string;
  text: string;
}

/** The filters of a list of jobs. Instants are written as the API writes them, which makes them comparable as texts. */
export interface JobFilters {
  status?: string;
  region?: string;
  tag?: string;
  created_after?: string;
  created_before?: string;
}

export type Refused = { status: number; code: string; param?: string };

export interface Terms {
  plan: "hobby" | "pro";
  /** Requests a minute of each environment. */
  rate: number;
  concurrency: number;
  runsCounted: number;
}

const HOBBY_RUNS_MAX = 10_000;

export class ReferenceModel {
  readonly jobs: ModelJob[] = [];
  readonly runs: ModelRun[] = [];
  readonly firstAnswers = new Map<string, FirstAnswer>();
  readonly requests: Record<Env, number> = { development: 0, production: 0 };
  name = "Test";
  defaultRegion = "us-east";
  runsCounted: number;
  runsHere = 0;

  constructor(readonly terms: Terms) {
    this.runsCounted = terms.runsCounted;
  }

  /** Counts a request. Answers the 429 that it must get, or null if it is within the rate. */
  countRequest(env: Env): Refused | null {
    if (this.requests[env] >= this.terms.rate) return { status: 429, code: "rate_limit_exceeded" };
    this.requests[env]++;
    return null;
  }

  get hasQuota(): boolean {
    return this.terms.plan !== "hobby" || this.runsCounted < HOBBY_RUNS_MAX;
  }

  /** The environments that were refused a permit, and those of them that were called when one came free. */
  readonly waiting = new Set<string>();
  readonly called = new Set<string>();

  isCalledBeside(environment: string): boolean {
    return [...this.called].some((called) => called !== environment);
  }

  get onWire(): number {
    return this.jobs.filter((job) => job.current?.isSent).length;
  }

  /** The jobs whose manual retry is not on the wire yet. */
  get owedByHand(): ModelJob[] {
    return this.jobs.filter(({ current }) => current?.isSent === false);
  }

  addJob(env: Env, view: Omit<ModelJob, "env" | "allowed" | "current">): void {
    this.jobs.push({ ...view, env, allowed: view.retry_policy.max_attempts, current: null });
  }

  job(env: Env, id: string): ModelJob | null {
    return this.jobs.find((job) => job.env === env && job.id === id) ?? null;
  }

  run(env: Env, id: string): ModelRun | null {
    return this.runs.find((run) => run.env === env && run.id === id) ?? null;
  }

  /** Newest first. */
  listJobs(env: Env, filters: JobFilters): ModelJob[] {
    const { status, region, tag, created_after: after, created_before: before } = filters;
    return this.jobs
      .filter(
        (job) =>
          job.env === env &&
          (status ?? job.status) === job.status &&
          (region ?? job.region) === job.region &&
          (tag === undefined || job.tags?.includes(tag) === true) &&
          (after === undefined || job.created_at > after) &&
          (before === undefined || job.created_at < before),
      )
      .sort(newestFirst);
  }

  listRuns(env: Env, filters: { status?: string; job_id?: string; tag?: string }): ModelRun[] {
    const { status, job_id, tag } = filters;
    return this.runs
      .filter(
        (run) =>
          run.env === env &&
          (status ?? run.status) === run.status &&
          (job_id ?? run.job_id) === run.job_id &&
          (tag === undefined || this.job(env, run.job_id)?.tags?.includes(tag) === true),
      )
      .sort(newestFirst);
  }

  cancel(env: Env, id: string): ModelJob | Refused {
    const job = this.job(env, id);
    if (job === null) return NOT_FOUND;
    if (job.status !== "queued" && job.status !== "running") return INVALID;
    job.status = "canceled";
    if (job.current !== null && !job.current.isSent) {
      const run = this.run(env, job.current.runId);
      if (run === null) throw new Error("the owed run is missing");
      Object.assign(run, { status: "failed", error: "canceled before it was sent", duration_ms: 0 });
      job.current = null;
    }
    if (job.current === null) this.forgetPlan(job);
    return job;
  }

  retry(env: Env, runId: string): { job: ModelJob; attempt: number } | Refused {
    const run = this.run(env, runId);
    if (run === null) return NOT_FOUND;
    const job = this.job(env, run.job_id);
    if (job === null) throw new Error("a run has no job");
    if (run.status === "running" || run.status === "succeeded") return INVALID;
    if (job.status !== "failed" && job.status !== "queued") return INVALID;
    if (!this.hasQuota) return QUOTA;
    if (job.status === "failed") job.allowed = Math.max(job.allowed, job.attempts + 1);
    this.forgetPlan(job);
    return { job, attempt: job.attempts + 1 };
  }

  /** Begins a run, sent or owed, which is counted now. */
  begin(job: ModelJob, run: { id: string; started_at: string | null }, isSent: boolean): void {
    job.status = "running";
    job.attempts++;
    job.current = { runId: run.id, isSent };
    this.runsCounted++;
    this.runsHere++;
    this.runs.push({
      ...run,
      env: job.env,
      job_id: job.id,
      attempt: job.attempts,
      status: "running",
      response_status: null,
      error: null,
      duration_ms: null,
      next_retry_at: "none",
    });
  }

  /** Ends a sent attempt. Answers whether another one follows. */
  end(job: ModelJob, outcome: { status: Exclude<RunStatus, "running">; responseStatus: number | null }) {
    const run = job.current && this.run(job.env, job.current.runId);
    if (!run) throw new Error("nothing is on the wire");
    const succeeded = outcome.status === "succeeded";
    const leaves = succeeded ? "succeeded" : job.attempts < job.allowed ? "queued" : "failed";
    const follows = leaves === "queued" && job.status !== "canceled";
    Object.assign(run, {
      status: outcome.status,
      response_status: outcome.responseStatus,
      error: succeeded ? null : "it broke",
      duration_ms: 12,
      next_retry_at: follows ? "some" : "none",
    });
    if (job.status !== "canceled") job.status = leaves;
    job.current = null;
    return leaves;
  }

  /** Cancels the planned retry. */
  private forgetPlan(job: ModelJob): void {
    const last = this.runs.find((run) => run.job_id === job.id && run.attempt === job.attempts);
    if (last !== undefined) last.next_retry_at = "none";
  }
}

export const NOT_FOUND: Refused = { status: 404, code: "resource_not_found" };
export const INVALID: Refused = { status: 400, code: "invalid_request" };
export const QUOTA: Refused = { status: 429, code: "quota_exceeded" };
export const CONFLICT: Refused = {
  status: 409,
  code: "idempotency_conflict",
  param: "Idempotency-Key",
};

export const isRefused = (answer: object): answer is Refused => "code" in answer;

function newestFirst(one: { id: string }, other: { id: string }): number {
  return one.id < other.id ? 1 : -1;
}
