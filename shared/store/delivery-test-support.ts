import { randomBytes } from "node:crypto";
import { keyCause } from "../../test/support/cause.ts";
import { environmentOfClass, kindOf } from "../domain/flow-class.ts";
import { ATTEMPT_PREFIX, createIdSource, DELIVERY_PREFIX, WEBHOOK_PREFIX } from "../domain/ids.ts";
import type { Environment, ProjectNo, Region, Scope } from "../domain/scope.ts";
import { type EndpointFields, type EventType, JOB_END_TYPES } from "../domain/webhook.ts";
import { claimDeliveries, type DeliveryClaim, type GrantedDelivery } from "./queue/delivery-claim.ts";
import type { DeliverySettlement } from "./queue/delivery-settle.ts";
import { type Settled, settleAttempts } from "./queue/settle.ts";
import { changeWebhook, createWebhook, deleteWebhook } from "./resources/webhooks.ts";
import { failedWith, settlementOf, type TestStore } from "./test-support.ts";

/** The first steps of every test of webhook deliveries. */

const ids = createIdSource(randomBytes);
const newAttemptId = () => ids.next(ATTEMPT_PREFIX, Date.now());
export const newDeliveryId = () => ids.next(DELIVERY_PREFIX, Date.now());

export interface EndpointWish extends Partial<Omit<EndpointFields, "events">> {
  events?: EventType[];
  environment?: Environment;
}

/** Adds an endpoint, for both ends of jobs (JOB_END_TYPES) in production unless told otherwise. Answers its id. */
export async function addEndpoint(
  store: TestStore,
  projectNo: ProjectNo,
  { environment = "production", ...wish }: EndpointWish = {},
): Promise<string> {
  const id = ids.next(WEBHOOK_PREFIX, Date.now());
  const fields = {
    url: "https://endpoint.example/hook",
    events: [...JOB_END_TYPES],
    status: "enabled" as const,
  };
  const webhook = {
    id,
    projectNo,
    environment,
    sealedSecret: randomBytes(40),
    description: null,
    ...fields,
    ...wish,
  };
  const created = await createWebhook(store.db, webhook, keyCause(), null);
  if (created !== "created") throw new Error(created);
  return id;
}

export const setStatus = (
  store: TestStore,
  projectNo: ProjectNo,
  id: string,
  status: "enabled" | "disabled",
  environment: Environment = "production",
) =>
  changeWebhook(
    store.db,
    { projectNo, environment },
    id,
    (webhook) => ({ ...webhook, status }),
    keyCause(),
    0,
  );

export const removeEndpoint = (store: TestStore, projectNo: ProjectNo, id: string) =>
  deleteWebhook(store.db, { projectNo, environment: "production" }, id, keyCause());

/** Ends `count` jobs, as failed unless told otherwise. Answers the deliveries that are owed for them. */
export async function endJobs(
  store: TestStore,
  nodeId: number,
  projectNo: ProjectNo,
  {
    count = 1,
    type = "job.failed",
    environment = "production" as Environment,
  }: {
    count?: number;
    type?: EventType;
    environment?: Environment;
  } = {},
): Promise<OwedDelivery[]> {
  const jobs = await store.addJobs(projectNo, count, { environment });
  const started = [];
  for (const jobId of jobs) started.push(await store.start(nodeId, projectNo, jobId, { environment }));
  const wish = type === "job.failed" ? failedWith("over") : {};
  const settlements = started.map((attempt) => settlementOf(attempt, wish));
  return deliveriesOf(await settleAttempts(store.db, settlements));
}

/** A delivery that is owed, as a claim names it. */
export interface OwedDelivery extends Scope {
  region: Region;
  id: string;
}

/** The deliveries that settlements have made owed. */
export const deliveriesOf = ({ owed }: Settled): OwedDelivery[] =>
  owed
    .filter(({ flowClass }) => kindOf(flowClass) === "webhooks")
    .map(({ projectNo, flowClass, region, id }) => ({
      projectNo,
      environment: environmentOfClass(flowClass),
      region,
      id,
    }));

export const deliveryClaimOf = (
  { projectNo, environment, region, id }: OwedDelivery,
  wish: Partial<DeliveryClaim> = {},
): DeliveryClaim => ({
  projectNo,
  environment,
  region,
  deliveryId: id,
  attempt: 1,
  attemptId: newAttemptId(),
  ...wish,
});

export interface StartedDelivery {
  claim: DeliveryClaim;
  granted: GrantedDelivery;
}

/** Claims one attempt of a delivery and expects it to be granted. */
export async function startDelivery(
  store: TestStore,
  nodeId: number,
  owed: OwedDelivery,
  wish?: Partial<DeliveryClaim>,
): Promise<StartedDelivery> {
  const claim = deliveryClaimOf(owed, wish);
  const [answer] = await claimDeliveries(store.db, nodeId, [claim]);
  if (answer?.kind !== "granted") throw new Error(`not granted but ${JSON.stringify(answer)}`);
  return { claim, granted: answer.attempt };
}

/** The settlement of a granted attempt, succeeded unless told otherwise. */
export function deliverySettlementOf(
  { claim, granted }: StartedDelivery,
  wish: Partial<DeliverySettlement> = {},
): DeliverySettlement {
  const { projectNo, environment, region, deliveryId } = claim;
  return {
    projectNo,
    environment,
    region,
    shard: 0,
    deliveryId,
    attemptId: granted.attemptId,
    status: "succeeded",
    responseStatus: 200,
    error: null,
    isOurFault: false,
    durationMs: 5,
    next: { status: "succeeded" },
    ...wish,
  };
}

/** The parts of a settlement whose attempt failed: it is retried at `dueAt` (at once if that is past), or the delivery is over. */
export function failedDelivery(next: { dueAt: number } | "over"): Partial<DeliverySettlement> {
  return {
    status: "failed",
    responseStatus: 500,
    error: "no",
    next:
      next === "over"
        ? { status: "failed" }
        : { status: "pending", waitMs: Math.max(0, next.dueAt - Date.now()), waits: 1 },
  };
}

/** How many permits the project's deliveries hold, by environment. */
export async function permitsHeld(
  store: TestStore,
  projectNo: ProjectNo,
): Promise<{ development: number; production: number }> {
  const [row] = await store.query<{ development: number; production: number }>(
    `SELECT development_webhooks::int AS development, production_webhooks::int AS production
       FROM flows WHERE project_no = $1`,
    [projectNo],
  );
  if (row === undefined) throw new Error(`no project ${projectNo}`);
  return row;
}

/** The end statuses of the project's deliveries in the words of the API; "open" for open ones. */
export async function endsOf(store: TestStore, projectNo: ProjectNo): Promise<string[]> {
  const rows = await store.query<{ status: string }>(
    `SELECT 'open' AS status FROM open_deliveries WHERE project_no = $1
     UNION ALL
     SELECT (ARRAY['succeeded', 'failed', 'dropped'])[status + 1] FROM ended_deliveries WHERE project_no = $1
     ORDER BY status`,
    [projectNo],
  );
  return rows.map((row) => row.status);
}
