import type { Static } from "@sinclair/typebox";
import { FLOW_KEYS_KEPT_MAX } from "../../domain/flow-key.ts";
import { FlowKey, FlowKeyId, FlowKeyList, FlowKeyListParameters, FlowKeyUpdateRequest } from "../flow.ts";
import { NEXT_CURSOR_EXAMPLE } from "../list.ts";
import { operation } from "./operation.ts";

const FLOW_EXAMPLE: Static<typeof FlowKey> = {
  key: "account:4711",
  concurrency: 1,
  rate: { count: 50, per_seconds: 60 },
  paused: false,
  pinned: false,
  in_use: 1,
  waiting: 12,
  next_start_at: "2026-11-21T06:12:31.250Z",
};

export const FLOW_OPERATIONS = {
  listFlows: operation({
    method: "GET",
    path: "/v2/flows",
    resource: "flows",
    summary: "List flow keys",
    description:
      "By their keys, in ascending order of bytes. A key is known once a job or a schedule names it, or a request has changed it. It is forgotten " +
      "a day after its last use, unless it is pinned or paused, or named by a schedule or by a job that is not over.",
    query: FlowKeyListParameters,
    response: {
      schema: FlowKeyList,
      examples: { firstPage: { data: [FLOW_EXAMPLE], next_cursor: NEXT_CURSOR_EXAMPLE } },
    },
  }),
  getFlow: operation({
    method: "GET",
    path: "/v2/flows/{key}",
    id: FlowKeyId,
    resource: "flows",
    summary: "Get a flow key",
    description: "A key that is not known, or was forgotten, is not found.",
    response: { schema: FlowKey, examples: { limited: FLOW_EXAMPLE } },
  }),
  updateFlow: operation({
    method: "PATCH",
    path: "/v2/flows/{key}",
    id: FlowKeyId,
    resource: "flows",
    summary: "Limit, pause or pin a flow key",
    description:
      "A key that is not known is made. `rate` replaces the whole rate. A limit below what is in use stops nothing that has begun; nothing " +
      "starts until less is in use. While a key is paused nothing of it starts. An environment has at most " +
      `${FLOW_KEYS_KEPT_MAX.toLocaleString("en")} keys that are pinned or paused.`,
    body: {
      schema: FlowKeyUpdateRequest,
      examples: {
        limit: { concurrency: 1, rate: { count: 50, per_seconds: 60 }, pinned: true },
        unlimited: { concurrency: null, rate: null },
        pause: { paused: true },
      },
    },
    response: { schema: FlowKey, examples: { limited: FLOW_EXAMPLE } },
    codes: ["plan_limit_exceeded"],
  }),
};
