import type { Static, TSchema } from "@sinclair/typebox";
import { JOB_OPERATIONS } from "./operations/jobs.ts";
import { PROJECT_OPERATIONS } from "./operations/project.ts";
import { RUN_OPERATIONS } from "./operations/runs.ts";
import { SCHEDULE_OPERATIONS } from "./operations/schedules.ts";
import { WEBHOOK_OPERATIONS } from "./operations/webhooks.ts";

/** All operations of the API by the names that programs know them by. */
export const OPERATIONS = {
  ...JOB_OPERATIONS,
  ...SCHEDULE_OPERATIONS,
  ...RUN_OPERATIONS,
  ...PROJECT_OPERATIONS,
  ...WEBHOOK_OPERATIONS,
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
