import type { BodyOf, QueryOf, ResponseOf } from "../contract/operations/all.ts";
import type { Call } from "./answer.ts";
import { type List, walkList } from "./list.ts";
import type { CreationOptions, RequestOptions, Send } from "./send.ts";

export type Bulk = ResponseOf<"getBulk">;
export type NewBulk = BodyOf<"createBulk">;
export type BulkListQuery = QueryOf<"listBulk">;

/** One action on many jobs, or on many instants of a schedule. */
export interface BulkOperations {
  /** With `dry_run` it only counts the matches of the filter. */
  create(bulk: NewBulk, options?: CreationOptions): Call<Bulk>;
  get(id: string, options?: RequestOptions): Call<Bulk>;
  list(query?: BulkListQuery, options?: RequestOptions): List<Bulk>;
  /** Ends the operation, which does nothing after the answer. One that is over is refused as invalid_request. */
  abort(id: string, options?: CreationOptions): Call<Bulk>;
}

export function createBulkOperations(send: Send): BulkOperations {
  return {
    create: (bulk, options) =>
      send({ method: "POST", path: "/v2/bulk", body: () => JSON.stringify(bulk), options }),
    get: (id, options) => send({ method: "GET", path: bulkPath(id), options }),
    list: (query, options) => walkList(send, { method: "GET", path: "/v2/bulk", query, options }),
    abort: (id, options) => send({ method: "POST", path: `${bulkPath(id)}/abort`, options }),
  };
}

function bulkPath(id: string): string {
  return `/v2/bulk/${encodeURIComponent(id)}`;
}
