import type { BodyOf, QueryOf, ResponseOf } from "../contract/operations/all.ts";
import { type Answered, type Call, callOf } from "./answer.ts";
import { ApiError } from "./errors.ts";
import { type List, walkList } from "./list.ts";
import type { PayloadWriter, RawJson } from "./payload.ts";
import type { CreationOptions, RequestOptions, Send } from "./send.ts";

export type Job = Omit<ResponseOf<"getJob">, "payload"> & { payload: Record<string, unknown> };
export type ListedJob = ResponseOf<"listJobs">["data"][number];
export type JobExplanation = ResponseOf<"explainJob">;
export type CanceledJob = ResponseOf<"cancelJob">;
export type JobListQuery = Omit<QueryOf<"listJobs">, "created_after" | "created_before"> & {
  /** Only jobs that were created later than this instant. */
  created_after?: string | Date;
  /** Only jobs that were created earlier than this instant. */
  created_before?: string | Date;
};
export interface JobBatch {
  data: Job[];
}

export type NewJob = Omit<BodyOf<"createJob">, "payload" | "run_at"> & {
  /** A JSON object. As RawJson its numbers stay as they are written. */
  payload?: object | RawJson;
  /** Omit to run at once. */
  run_at?: string | Date;
};

export interface Jobs {
  create(job: NewJob, options?: CreationOptions): Call<Job>;
  /** Up to 100 jobs, all or none, answered in their order. */
  createBatch(jobs: readonly NewJob[], options?: CreationOptions): Call<JobBatch>;
  get(id: string, options?: RequestOptions): Call<Job>;
  /** Tells why the job waits, and what has happened to it. */
  explain(id: string, options?: RequestOptions): Call<JobExplanation>;
  list(query?: JobListQuery, options?: RequestOptions): List<ListedJob>;
  /**
   * An attempt in progress runs to its end, and no other follows. A job that has succeeded or failed is refused as
   * invalid_request. A job that is canceled already counts as canceled by this call, although the API refuses: a try whose
   * answer was lost can have canceled it, and runtimes may send a DELETE again by themselves (RFC 9110, 9.2.2).
   */
  cancel(id: string, options?: RequestOptions): Call<CanceledJob>;
}

export function createJobs(send: Send, write: PayloadWriter): Jobs {
  const get = (id: string, options?: RequestOptions) =>
    send<Job>({ method: "GET", path: jobPath(id), options });

  async function cancel(id: string, options?: RequestOptions): Promise<Answered<CanceledJob>> {
    try {
      return await send<CanceledJob>({ method: "DELETE", path: jobPath(id), options }).withAnswer();
    } catch (error) {
      if (!(error instanceof ApiError) || error.code !== "invalid_request") throw error;
      const { result, answer } = await get(id, options).withAnswer();
      if (result.status !== "canceled") throw error;
      return { result: canceledJobOf(result), answer };
    }
  }

  async function writeBatch(jobs: readonly NewJob[], key: string | undefined): Promise<string> {
    const repeatable = (index: number) => (key === undefined ? undefined : `${index} ${key}`);
    const texts = await Promise.all(jobs.map((job, index) => write(job, { repeatable: repeatable(index) })));
    return `{"jobs":[${texts.join(",")}]}`;
  }

  return {
    get,
    create: (job, options) =>
      send({
        method: "POST",
        path: "/v2/jobs",
        body: () => write(job, { repeatable: options?.idempotencyKey }),
        options,
      }),
    createBatch: (jobs, options) =>
      send({
        method: "POST",
        path: "/v2/jobs/batch",
        body: () => writeBatch(jobs, options?.idempotencyKey),
        options,
      }),
    explain: (id, options) => send({ method: "GET", path: `${jobPath(id)}/explain`, options }),
    list: (query, options) => walkList(send, { method: "GET", path: "/v2/jobs", query, options }),
    cancel: (id, options) => callOf(cancel(id, options)),
  };
}

function jobPath(id: string): string {
  return `/v2/jobs/${encodeURIComponent(id)}`;
}

function canceledJobOf({
  id,
  status,
  target_url,
  region,
  attempts,
  created_at,
  tags,
  run_at,
}: Job): CanceledJob {
  const shown = { id, status, target_url, region, attempts, created_at, run_at };
  return tags === undefined ? shown : { ...shown, tags };
}
