import type { Static, TSchema } from "@sinclair/typebox";
import { BULK_OPERATIONS } from "./bulk.ts";
import { FLOW_OPERATIONS } from "./flows.ts";
import { HOST_OPERATIONS } from "./hosts.ts";
import { JOB_OPERATIONS } from "./jobs.ts";
import { KEY_OPERATIONS } from "./keys.ts";
import { PROJECT_OPERATIONS } from "./project.ts";
import { RUN_OPERATIONS } from "./runs.ts";
import { SCHEDULE_OPERATIONS } from "./schedules.ts";
import { WEBHOOK_OPERATIONS } from "./webhooks.ts";

/** All operations of the API by the names that programs know them by. */
export const OPERATIONS = {
  ...JOB_OPERATIONS,
  ...BULK_OPERATIONS,
  ...FLOW_OPERATIONS,
  ...SCHEDULE_OPERATIONS,
  ...RUN_OPERATIONS,
  ...PROJECT_OPERATIONS,
  ...HOST_OPERATIONS,
  ...WEBHOOK_OPERATIONS,
  ...KEY_OPERATIONS,
};

export type Operations = typeof OPERATIONS;
export type OperationId = keyof Operations;

export type QueryOf<Id extends OperationId> = Static<Operations[Id]["query"]>;
/** Never for an operation without a body. */
export type BodyOf<Id extends OperationId> = Operations[Id]["body"] extends {
  schema: infer Schema extends TSchema;
}
  ? Static<Schema>
  : never;
export type ResponseOf<Id extends OperationId> = Static<Operations[Id]["response"]["schema"]>;
