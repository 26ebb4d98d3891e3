import type { BodyOf, QueryOf, ResponseOf } from "../contract/operations/all.ts";
import type { Call } from "./answer.ts";
import type { RequestOptions, Send } from "./send.ts";

export type Project = ResponseOf<"getProject">;
export type ProjectUpdate = BodyOf<"updateProject">;
export type UsageQuery = QueryOf<"getUsage">;
export type UsageReport = ResponseOf<"getUsage">;

/** The project to which the client's key belongs. */
export interface Projects {
  get(options?: RequestOptions): Call<Project>;
  update(fields: ProjectUpdate, options?: RequestOptions): Call<Project>;
  usage(query?: UsageQuery, options?: RequestOptions): Call<UsageReport>;
}

export function createProject(send: Send): Projects {
  return {
    get: (options) => send({ method: "GET", path: "/v2/project", options }),
    update: (fields, options) =>
      send({ method: "PATCH", path: "/v2/project", body: () => JSON.stringify(fields), options }),
    usage: (query, options) => send({ method: "GET", path: "/v2/project/usage", query, options }),
  };
}
