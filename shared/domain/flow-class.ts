import type { Environment } from "./scope.ts";

/**
 * Attempts of jobs and deliveries to webhook endpoints, each of one environment, are the four classes that share a project's
 * permits. They take turns: the next permit goes to the class that holds fewer (store/queue/permits.ts). Rows and messages
 * carry a class as its position.
 */
export const FLOW_CLASSES = [
  "development jobs",
  "production jobs",
  "development webhooks",
  "production webhooks",
] as const;
export type FlowClass = (typeof FLOW_CLASSES)[number];

/** Attempts of jobs, or of deliveries to endpoints. */
export type FlowKind = "jobs" | "webhooks";

export const flowClassOf = (kind: FlowKind, environment: Environment): FlowClass => `${environment} ${kind}`;
export const kindOf = (flowClass: FlowClass): FlowKind => (flowClass.endsWith("jobs") ? "jobs" : "webhooks");
export const environmentOfClass = (flowClass: FlowClass): Environment =>
  flowClass.startsWith("development") ? "development" : "production";
