import type { BodyOf, QueryOf, ResponseOf } from "../contract/operations/all.ts";
import type { Call } from "./answer.ts";
import type { CreationOptions, RequestOptions, Send } from "./send.ts";

export type Project = ResponseOf<"getProject">;
export type ProjectUpdate = BodyOf<"updateProject">;
export type UsageQuery = QueryOf<"getUsage">;
export type UsageReport = ResponseOf<"getUsage">;

export type InsightQuery = QueryOf<"getInsights">;
export type Insights = ResponseOf<"getInsights">;

export type SigningSecret = ResponseOf<"getSigningSecret">;

/** The project to which the client's key belongs. */
export interface Projects {
  get(options?: RequestOptions): Call<Project>;
  update(fields: ProjectUpdate, options?: RequestOptions): Call<Project>;
  usage(query?: UsageQuery, options?: RequestOptions): Call<UsageReport>;
  /** The figures of a period: its runs and how late they were, and what waits. */
  insights(query?: InsightQuery, options?: RequestOptions): Call<Insights>;
  /** The secret is masked. */
  signingSecret(options?: RequestOptions): Call<SigningSecret>;
  /** Only this answer shows the new secret. For 24 hours attempts are signed with the old one, too. */
  rotateSigningSecret(options?: CreationOptions): Call<SigningSecret>;
}

export function createProject(send: Send): Projects {
  return {
    get: (options) => send({ method: "GET", path: "/v2/project", options }),
    update: (fields, options) =>
      send({ method: "PATCH", path: "/v2/project", body: () => JSON.stringify(fields), options }),
    usage: (query, options) => send({ method: "GET", path: "/v2/project/usage", query, options }),
    insights: (query, options) => send({ method: "GET", path: "/v2/project/insights", query, options }),
    signingSecret: (options) => send({ method: "GET", path: "/v2/project/signing-secret", options }),
    rotateSigningSecret: (options) =>
      send({ method: "POST", path: "/v2/project/signing-secret/rotate", options }),
  };
}
