import type { Environment } from "./scope.ts";

/**
 * What waits for a project's permits is of one of four classes, which take turns (decisions.md, section 5): attempts of
 * jobs and deliveries to webhook endpoints, each of one environment. Rows and messages carry a class as its position.
 */
export const FLOW_CLASSES = [
  "development jobs",
  "production jobs",
  "development webhooks",
  "production webhooks",
] as const;
export type FlowClass = (typeof FLOW_CLASSES)[number];

/** What is owed: an attempt of a job, or a delivery to an endpoint. */
export type FlowKind = "jobs" | "webhooks";

export const flowClassOf = (kind: FlowKind, environment: Environment): FlowClass => `${environment} ${kind}`;
export const kindOf = (flowClass: FlowClass): FlowKind => (flowClass.endsWith("jobs") ? "jobs" : "webhooks");
export const environmentOfClass = (flowClass: FlowClass): Environment =>
  flowClass.startsWith("development") ? "development" : "production";
