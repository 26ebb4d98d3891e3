import type { Environment } from "./scope.ts";

/**
 * The four classes that take turns for a project's permits: attempts of jobs, and deliveries to webhook endpoints, each
 * of one environment. The next permit goes to the class that holds fewest (store/queue/permits.ts). Rows and messages
 * carry a class as its position in this list.
 */
export const FLOW_CLASSES = [
  "development jobs",
  "production jobs",
  "development webhooks",
  "production webhooks",
] as const;
export type FlowClass = (typeof FLOW_CLASSES)[number];

/** The two kinds of owed work: attempts of jobs, and deliveries to endpoints. */
export type FlowKind = "jobs" | "webhooks";

export const flowClassOf = (kind: FlowKind, environment: Environment): FlowClass => `${environment} ${kind}`;
export const kindOf = (flowClass: FlowClass): FlowKind => (flowClass.endsWith("jobs") ? "jobs" : "webhooks");
export const environmentOfClass = (flowClass: FlowClass): Environment =>
  flowClass.startsWith("development") ? "development" : "production";
