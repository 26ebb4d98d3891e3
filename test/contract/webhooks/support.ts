import type { NewWebhook } from "../../../shared/client/index.ts";
import {
  createIdSource,
  DELIVERY_PREFIX,
  EVENT_PREFIX,
  idToUuid,
  JOB_PREFIX,
  retypeId,
} from "../../../shared/domain/ids.ts";
import { ENDED_DELIVERY_STATUSES } from "../../../shared/store/database/codes.ts";
import type { TestGateway, TestProject } from "../../support/gateway.ts";

export const ENDPOINT_URL = "https://example.com/events";

export function newWebhook(wish: Partial<NewWebhook> = {}): NewWebhook {
  return { url: ENDPOINT_URL, events: ["job.succeeded", "job.failed"], ...wish };
}

export interface DeliveryWish {
  /** An open delivery waits, or has an attempt in progress. */
  state: "waiting" | "in progress" | (typeof ENDED_DELIVERY_STATUSES)[number];
  /** The number of its attempts. */
  attempts?: number;
  /** The error of each attempt. */
  error?: string;
  /** The delivery's age, in milliseconds before now. */
  age?: number;
  region?: number;
}

const ids = createIdSource((count) => crypto.getRandomValues(new Uint8Array(count)));

/**
 * Writes the rows that a failed job, its event and its delivery to a production endpoint leave in the tables. Answers
 * the delivery's id.
 */
export async function addDelivery(
  gateway: TestGateway,
  project: TestProject,
  webhookId: string,
  { state, attempts = 0, error = "no", age = 0, region = 0 }: DeliveryWish,
): Promise<string> {
  const createdAt = Date.now() - age;
  const id = idAt(createdAt);
  const uuid = idToUuid(id);
  const at = new Date(createdAt).toISOString();
  await gateway.query(
    `INSERT INTO lanes (project_no, region, environment, shard, has_deliveries) VALUES ($1, $2, 1, 0, true)
         ON CONFLICT DO NOTHING`,
    [project.no, region],
  );
  await gateway.query(
    `INSERT INTO events (project_no, environment, region, id, job_id, type, attempt, run_status, response_status, error,
                         occurred_at, started_at, duration_ms, api_version)
     VALUES ($1, 1, $2, $3, $3, 1, 1, 2, 500, 'broken', $4, $4, 5, '2026-11-01')`,
    [project.no, region, uuid, at],
  );
  await gateway.query(
    `INSERT INTO delivery_attempts (delivery_id, webhook_id, attempt, status, response_status, error, started_at, duration_ms)
     SELECT $1, $2, n, CASE WHEN n = $3 AND $4 THEN 1 ELSE 2 END, 500, $5, $6::timestamptz + n * interval '1 s', 7
       FROM generate_series(1, $3::int) AS n`,
    [uuid, idToUuid(webhookId), attempts, state === "succeeded", error, at],
  );
  const codes: readonly string[] = ENDED_DELIVERY_STATUSES;
  const ended = codes.indexOf(state);
  const place = [project.no, region, uuid, idToUuid(webhookId), attempts];
  if (ended === -1) {
    await gateway.query(
      `INSERT INTO open_deliveries (project_no, environment, region, id, webhook_id, event_id, attempt, generation,
                                    due_at, node_id, attempt_id, started_at, first_started_at)
       SELECT $1, 1, $2, $3, $4, $3, $5::int + 1, generation,
              CASE WHEN $6 THEN NULL ELSE now() + interval '1 h' END, CASE WHEN $6 THEN 1 END, CASE WHEN $6 THEN $3::uuid END,
              CASE WHEN $6 THEN now() END, $7::timestamptz
         FROM webhooks WHERE id = $4`,
      [...place, state === "in progress", at],
    );
  } else {
    await gateway.query(
      `INSERT INTO ended_deliveries (project_no, environment, region, id, webhook_id, event_id, attempts, status, ended_at,
                                     first_started_at)
       VALUES ($1, 1, $2, $3, $4, $3, $5, $6, now(), $7)`,
      [...place, ended, at],
    );
  }
  return id;
}

/** Makes an id of any time: `ids` never goes back, and some deliveries are old. */
function idAt(at: number): string {
  const fresh = ids.next(DELIVERY_PREFIX, at);
  if (at > Date.now() - 1_000) return fresh;
  return createIdSource((count) => crypto.getRandomValues(new Uint8Array(count))).next(DELIVERY_PREFIX, at);
}

/** The ids that a delivery of this id shows. */
export const eventOf = (deliveryId: string) => ({
  event_id: retypeId(deliveryId, EVENT_PREFIX),
  job_id: retypeId(deliveryId, JOB_PREFIX),
});
