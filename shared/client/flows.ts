import type { BodyOf, QueryOf, ResponseOf } from "../contract/operations/all.ts";
import type { Call } from "./answer.ts";
import { type List, walkList } from "./list.ts";
import type { RequestOptions, Send } from "./send.ts";

export type FlowKey = ResponseOf<"getFlow">;
export type FlowKeyUpdate = BodyOf<"updateFlow">;
export type FlowKeyListQuery = QueryOf<"listFlows">;

/** Limits below the project's, for all jobs that name the same key. */
export interface Flows {
  /** Refused as resource_not_found if the key is not known, or was forgotten. */
  get(key: string, options?: RequestOptions): Call<FlowKey>;
  /** By key, in ascending order of bytes. */
  list(query?: FlowKeyListQuery, options?: RequestOptions): List<FlowKey>;
  /** A field that is left out keeps its value, and null takes a limit away. A key that is not known is made. */
  update(key: string, changes: FlowKeyUpdate, options?: RequestOptions): Call<FlowKey>;
  /** No attempt of the key starts until it is resumed. */
  pause(key: string, options?: RequestOptions): Call<FlowKey>;
  resume(key: string, options?: RequestOptions): Call<FlowKey>;
}

export function createFlows(send: Send): Flows {
  const update = (key: string, changes: FlowKeyUpdate, options?: RequestOptions) =>
    send<FlowKey>({ method: "PATCH", path: flowPath(key), body: () => JSON.stringify(changes), options });
  return {
    update,
    get: (key, options) => send({ method: "GET", path: flowPath(key), options }),
    list: (query, options) => walkList(send, { method: "GET", path: "/v2/flows", query, options }),
    pause: (key, options) => update(key, { paused: true }, options),
    resume: (key, options) => update(key, { paused: false }, options),
  };
}

function flowPath(key: string): string {
  return `/v2/flows/${encodeURIComponent(key)}`;
}
