import { BULK_ACTIONS, BULK_STATUSES, type BulkAction, type BulkStatus } from "../../domain/bulk.ts";
import { FLOW_CLASSES, type FlowClass } from "../../domain/flow-class.ts";
import { HOST_CAUSES, HOST_STATES, type HostCause, type HostState } from "../../domain/host-state.ts";
import type { TerminalStatus } from "../../domain/job.ts";
import { PLANS, type Plan } from "../../domain/plan.ts";
import { RUN_STATUSES, type RunStatus } from "../../domain/run.ts";
import { OVERLAPS, type Overlap } from "../../domain/schedule.ts";
import { ENVIRONMENTS, type Environment, REGIONS, type Region } from "../../domain/scope.ts";
import { WAIT_REASONS, type WaitReason } from "../../domain/wait.ts";
import { type DeliveryStatus, EVENT_TYPES, type EventType, JOB_END_TYPES } from "../../domain/webhook.ts";

/** The hot tables store the API's words as small numbers. A number that was used once keeps its meaning. */

export const ENDED_STATUSES: readonly TerminalStatus[] = ["succeeded", "failed", "canceled"];
/** The end statuses of a delivery. */
export type EndedDeliveryStatus = Exclude<DeliveryStatus, "pending">;
export const ENDED_DELIVERY_STATUSES: readonly EndedDeliveryStatus[] = ["succeeded", "failed", "dropped"];

export const regionCode = (region: Region): number => REGIONS.indexOf(region);
export const environmentCode = (environment: Environment): number => ENVIRONMENTS.indexOf(environment);
export const flowClassCode = (flowClass: FlowClass): number => FLOW_CLASSES.indexOf(flowClass);
export const runStatusCode = (status: RunStatus): number => RUN_STATUSES.indexOf(status);
export const endedStatusCode = (status: TerminalStatus): number => ENDED_STATUSES.indexOf(status);
export const endedDeliveryStatusCode = (status: EndedDeliveryStatus): number =>
  ENDED_DELIVERY_STATUSES.indexOf(status);
const EVENT_TYPE_CODES: Readonly<Record<EventType, number>> = {
  "job.succeeded": 0,
  "job.failed": 1,
  "job.canceled": 2,
  "schedule.firing_missed": 3,
  "schedule.firing_skipped": 4,
  "webhook.disabled": 5,
  "quota.reached": 6,
  "host.down": 7,
  // The bits from 8 to 11 hold the first type (FIRST_TYPE_SHIFT).
  "host.up": 12,
};
export const eventTypeCode = (type: EventType): number => EVENT_TYPE_CODES[type];
export const overlapCode = (overlap: Overlap): number => OVERLAPS.indexOf(overlap);
export const bulkActionCode = (action: BulkAction): number => BULK_ACTIONS.indexOf(action);
export const bulkStatusCode = (status: BulkStatus): number => BULK_STATUSES.indexOf(status);
export const waitReasonCode = (reason: WaitReason): number => WAIT_REASONS.indexOf(reason);
/** A set of event types, one bit for each. */
export const eventTypesMask = (types: readonly EventType[]): number =>
  types.reduce((mask, type) => mask | (1 << eventTypeCode(type)), 0);
/**
 * The bits that an endpoint with these types sets in `subscriptions` of its project's flow. Each end of a job
 * (JOB_END_TYPES) has a bit in each environment, and the quota has one bit for both environments.
 */
export const subscriptionsOf = (environment: Environment, types: readonly EventType[]): number => {
  const ends = types.filter((type) => (JOB_END_TYPES as readonly EventType[]).includes(type));
  return (
    (eventTypesMask(ends) << (JOB_END_TYPES.length * environmentCode(environment))) |
    (types.includes("quota.reached") ? QUOTA_HEARD : 0)
  );
};
export const QUOTA_HEARD = 1 << (JOB_END_TYPES.length * ENVIRONMENTS.length);
/** The next bit: the project parks what is due at hosts that are down, or has parked a host by hand. The bit stays. */
export const HOSTS_WATCHED = QUOTA_HEARD << 1;
/** The bits from 8 to 11 of an endpoint's types: the place of its first type among them, in the order of EVENT_TYPES. */
const FIRST_TYPE_SHIFT = 8;
const FIRST_TYPE_MASK = 15;
/** The event types of an endpoint, and its first type, which tells the order of two. eventOrder tells that of more. */
export const eventListCode = (types: readonly EventType[]): number => {
  const inOrder: readonly (EventType | undefined)[] = EVENT_TYPES.filter((type) => types.includes(type));
  return eventTypesMask(types) | (inOrder.indexOf(types[0]) << FIRST_TYPE_SHIFT);
};
/** The codes of the types in the order given; null for up to two types, whose order eventListCode tells. */
export const eventOrder = (types: readonly EventType[]): number[] | null =>
  types.length > 2 ? types.map(eventTypeCode) : null;
/** The retention class of a plan's runs. A greater class is kept longer; a test checks that. */
export const retentionClassOf = (plan: Plan): number => PLANS.indexOf(plan);

/** Arrays of all codes, for statements that look into an index once for each code. */
export const ALL_REGIONS = codeArray(REGIONS.map(regionCode));
export const ALL_ENVIRONMENTS = codeArray(ENVIRONMENTS.map(environmentCode));
export const ALL_ENDED_STATUSES = codeArray(ENDED_STATUSES.map(endedStatusCode));
export const ALL_ENDED_DELIVERY_STATUSES = codeArray(ENDED_DELIVERY_STATUSES.map(endedDeliveryStatusCode));
export const ALL_ENDED_RUN_STATUSES = codeArray(
  RUN_STATUSES.filter((status) => status !== "running").map(runStatusCode),
);

export const regionOf = (code: number): Region => named(REGIONS, code);
export const environmentOf = (code: number): Environment => named(ENVIRONMENTS, code);
export const flowClassNamed = (code: number): FlowClass => named(FLOW_CLASSES, code);
export const runStatusOf = (code: number): RunStatus => named(RUN_STATUSES, code);
export const endedStatusOf = (code: number): TerminalStatus => named(ENDED_STATUSES, code);
export const eventTypeOf = (code: number): EventType => {
  const type = EVENT_TYPES.find((known) => EVENT_TYPE_CODES[known] === code);
  if (type === undefined) throw new Error(`unknown code ${code} in a row`);
  return type;
};
export const overlapOf = (code: number): Overlap => named(OVERLAPS, code);
export const bulkActionOf = (code: number): BulkAction => named(BULK_ACTIONS, code);
export const bulkStatusOf = (code: number): BulkStatus => named(BULK_STATUSES, code);
export const hostStateOf = (code: number): HostState => named(HOST_STATES, code);
export const hostCauseOf = (code: number): HostCause => named(HOST_CAUSES, code);
export const waitReasonOf = (code: number): WaitReason => named(WAIT_REASONS, code);
export const eventListOf = (code: number, order: readonly number[] | null): EventType[] => {
  if (order !== null) return order.map(eventTypeOf);
  const types = EVENT_TYPES.filter((type) => (code & (1 << eventTypeCode(type))) !== 0);
  const first = named(types, (code >> FIRST_TYPE_SHIFT) & FIRST_TYPE_MASK);
  return [first, ...types.filter((type) => type !== first)];
};

function codeArray(codes: readonly number[]): string {
  return `'{${codes.join(",")}}'`;
}

function named<T>(names: readonly T[], code: number): T {
  const name = names[code];
  if (name === undefined) throw new Error(`unknown code ${code} in a row`);
  return name;
}
