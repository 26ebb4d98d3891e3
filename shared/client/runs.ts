import type { QueryOf, ResponseOf } from "../contract/operations/all.ts";
import type { Call } from "./answer.ts";
import { type List, walkList } from "./list.ts";
import type { CreationOptions, RequestOptions, Send } from "./send.ts";

export type Run = ResponseOf<"getRun">;
export type RunListQuery = Omit<QueryOf<"listRuns">, "started_after" | "started_before"> & {
  /** Only runs that started later than this instant. */
  started_after?: string | Date;
  /** Only runs that started earlier than this instant. */
  started_before?: string | Date;
};

export interface Runs {
  list(query?: RunListQuery, options?: RequestOptions): List<Run>;
  get(id: string, options?: RequestOptions): Call<Run>;
  /** Begins one more attempt of the run's job at once. The result is the new run. */
  retry(id: string, options?: CreationOptions): Call<Run>;
}

export function createRuns(send: Send): Runs {
  return {
    list: (query, options) => walkList(send, { method: "GET", path: "/v2/runs", query, options }),
    get: (id, options) => send({ method: "GET", path: runPath(id), options }),
    retry: (id, options) => send({ method: "POST", path: `${runPath(id)}/retry`, options }),
  };
}

function runPath(id: string): string {
  return `/v2/runs/${encodeURIComponent(id)}`;
}
