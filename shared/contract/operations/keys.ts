import type { Static } from "@sinclair/typebox";
import { KEYS_MAX } from "../../domain/key-life.ts";
import {
  type ApiKey,
  ApiKeyList,
  DeletedApiKey,
  KeyId,
  KeyListParameters,
  KeyRotationRequest,
  NewKeyRequest,
  RevealedApiKey,
} from "../key.ts";
import { NEXT_CURSOR_EXAMPLE } from "../list.ts";
import { operation } from "./operation.ts";

const KEY_EXAMPLE: Static<typeof ApiKey> = {
  id: "key_01m7ybr3kgsnpd4n830jn3f3ba",
  name: "deployments",
  scope: "jobs",
  created_at: "2026-11-21T06:12:25.328Z",
  last_used_at: "2026-11-22T17:01:44.090Z",
  expires_at: null,
};
const REVEALED_EXAMPLE: Static<typeof RevealedApiKey> = {
  ...KEY_EXAMPLE,
  last_used_at: null,
  key: `svc_live_${"0".repeat(38)}`,
};

export const KEY_OPERATIONS = {
  createKey: operation({
    method: "POST",
    path: "/v2/keys",
    resource: "keys",
    summary: "Create an API key",
    description:
      "A key of the project and environment of the key that asks, which must be of scope `full`, as for every operation here. The " +
      "answer shows the key, which no later answer does. It does not outlive the key that asks. An environment has at most " +
      `${KEYS_MAX} keys.`,
    body: {
      schema: NewKeyRequest,
      examples: {
        forJobs: { name: "deployments", scope: "jobs" },
        forDay: { scope: "read", expires_in_hours: 24 },
      },
    },
    status: 201,
    response: { schema: RevealedApiKey, examples: { made: REVEALED_EXAMPLE } },
    codes: ["plan_limit_exceeded"],
  }),
  listKeys: operation({
    method: "GET",
    path: "/v2/keys",
    resource: "keys",
    summary: "List API keys",
    description: "Newest first. Keys that were deleted, or have expired, are not listed.",
    query: KeyListParameters,
    response: {
      schema: ApiKeyList,
      examples: { firstPage: { data: [KEY_EXAMPLE], next_cursor: NEXT_CURSOR_EXAMPLE } },
    },
  }),
  rotateKey: operation({
    method: "POST",
    path: "/v2/keys/{key_id}/rotate",
    id: KeyId,
    resource: "keys",
    summary: "Replace an API key",
    description:
      "Makes a successor of the same name, scope and expiry, and shows it this once. The key itself expires after the overlap. A " +
      "key that outlives the one that asks is refused with `invalid_request`. The body may be left out.",
    body: {
      schema: KeyRotationRequest,
      examples: { atOnce: { overlap_hours: 0 }, threeDays: { overlap_hours: 72 } },
      isOptional: true,
    },
    status: 201,
    response: { schema: RevealedApiKey, examples: { successor: REVEALED_EXAMPLE } },
    codes: ["plan_limit_exceeded"],
  }),
  deleteKey: operation({
    method: "DELETE",
    path: "/v2/keys/{key_id}",
    id: KeyId,
    resource: "keys",
    summary: "Delete an API key",
    description:
      "It works no more after 5 seconds, whoever has it. The environment's last key of scope `full` is refused with " +
      "`invalid_request`: only an operator can revoke that one.",
    response: { schema: DeletedApiKey, examples: { deleted: { id: KEY_EXAMPLE.id, deleted: true } } },
  }),
};
