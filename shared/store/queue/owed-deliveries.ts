/** The parts of the statements that make deliveries: an event, and a delivery of it for each endpoint that hears of it. */

/**
 * Makes the deliveries of `heard`, and their events. `heard` has a row for each delivery with the columns of both; `status` is
 * that of the event's run. A delivery is due at `occurred_at`.
 */
export const oweDeliveries = (heard: string): string => `event AS (
  INSERT INTO events (id, project_no, environment, region, type, job_id, attempt, run_status, response_status, error,
                      started_at, duration_ms, occurred_at, api_version, trace)
  SELECT DISTINCT ON (event_id) event_id, project_no, environment, region, type, job_id, attempt, status, response_status,
         error, started_at, duration_ms, occurred_at, api_version, trace
    FROM ${heard}
), delivery AS (
  INSERT INTO open_deliveries (project_no, environment, region, id, webhook_id, event_id, generation, by_hand, due_at)
  SELECT project_no, environment, region, delivery_id, webhook_id, event_id, generation, by_hand, occurred_at FROM ${heard}
)`;

/** The id of an event or a delivery made at `at`. The text `seed` makes it differ from all others of that millisecond. */
const idOf = (seed: string, at = "now()"): string =>
  `(lpad(to_hex(floor(extract(epoch FROM ${at}) * 1000)::bigint), 12, '0') || left(md5(${seed}), 20))::uuid`;

/** The id of the delivery of an event to an endpoint that is told when it occurs. The two ids give it, without a look-up. */
export const deliveryIdOf = (event: string, endpoint: string, occurredAt?: string): string =>
  idOf(`${event}::text || ${endpoint}::text`, occurredAt);

/** The seed for the id of the event of a job's cancel. */
export const canceledSeed = (job: string): string => `'canceled ' || ${job}`;
export const canceledEventId = (job: string, canceledAt: string): string =>
  idOf(canceledSeed(job), canceledAt);

export const sameLane = (one: string, other: string): string =>
  ["project_no", "region", "environment"].map((name) => `${one}.${name} = ${other}.${name}`).join(" AND ");

/**
 * Tells endpoints of the events of `happened`, which are not the end of an attempt. `happened` has a row for each event: `seed`
 * (a text that no other event has, unless `eventId` takes its place), project_no, environment, region, shard (of a lane that
 * the project may not have yet), type (a code), job_id and trace (or null), and `data` (event-data.ts). The endpoints are
 * looked for without a look at the flow's `subscriptions`, since these events are rare. `heard` has a row for each delivery.
 * Lanes that another part of the statement makes (`madeLanes`) get their has_deliveries there. An endpoint (`w`) is not told of
 * an event (`e`) if `except` is true. `name` begins the names of these parts, for a statement that has them twice.
 */
export const tellOf = (
  happened: string,
  {
    eventId = idOf("h.seed"),
    madeLanes = null,
    except = "false",
    name = "",
  }: { eventId?: string; madeLanes?: string | null; except?: string; name?: string } = {},
): string => `${name}heard AS MATERIALIZED (
  SELECT e.*, w.id AS webhook_id, w.generation, now() AS occurred_at, p.api_version,
         ${deliveryIdOf("e.event_id", "w.id")} AS delivery_id
    FROM (SELECT h.*, ${eventId} AS event_id FROM ${happened} h) e
   CROSS JOIN LATERAL (
         SELECT w.id, w.generation FROM webhooks w
          WHERE w.project_no = e.project_no AND w.environment = e.environment
            AND w.enabled AND w.events & (1 << e.type) <> 0 AND NOT (${except}) OFFSET 0) w
    JOIN projects p ON p.no = e.project_no
), ${name}event AS (
  INSERT INTO events (id, project_no, environment, region, type, job_id, data, occurred_at, api_version, trace)
  SELECT DISTINCT ON (event_id) event_id, project_no, environment, region, type, job_id, data, occurred_at, api_version, trace
    FROM ${name}heard
), ${name}delivery AS (
  INSERT INTO open_deliveries (project_no, environment, region, id, webhook_id, event_id, generation, due_at)
  SELECT project_no, environment, region, delivery_id, webhook_id, event_id, generation, occurred_at FROM ${name}heard
), ${name}delivering AS (
  INSERT INTO lanes AS l (project_no, region, environment, shard, has_deliveries)
  -- One row for each lane: two of its events may name different shards, since a schedule's shard may be older than the lane's.
  SELECT DISTINCT ON (project_no, region, environment) project_no, region, environment, shard, true FROM ${name}heard h
   WHERE NOT EXISTS (SELECT FROM lanes k WHERE ${sameLane("k", "h")} AND k.has_deliveries)
     ${madeLanes === null ? "" : `AND NOT EXISTS (SELECT FROM ${madeLanes} m WHERE ${sameLane("m", "h")})`}
   ORDER BY 1, 2, 3
      ON CONFLICT (project_no, region, environment) DO UPDATE SET has_deliveries = true
)`;

/**
 * Makes a delivery of each job that has ended for each endpoint that is enabled and subscribed at the instant of the statement.
 * The job of an `attempt` has ended if `over` is true, and `type` is the type of its event. The `subscriptions` of its flow
 * tell whether the project may have such an endpoint.
 */
export const tellEndpoints = (over: string, type: string): string => `heard AS MATERIALIZED (
  SELECT t.*, w.id AS webhook_id, w.generation, false AS by_hand, now() AS occurred_at, p.api_version, t.run_id AS event_id,
         ${deliveryIdOf("t.run_id", "w.id")} AS delivery_id
    FROM (SELECT *, ${type} AS type FROM attempt
           WHERE ${over} AND subscriptions & (1 << (environment * 2 + ${type})) <> 0) t
   CROSS JOIN LATERAL (
         -- OFFSET 0 keeps the planner to the project's own endpoints, whatever it believes of the table.
         SELECT w.id, w.generation FROM webhooks w
          WHERE w.project_no = t.project_no AND w.environment = t.environment
            AND w.enabled AND w.events & (1 << t.type) <> 0 OFFSET 0) w
    JOIN projects p ON p.no = t.project_no
), ${oweDeliveries("heard")}, delivering AS (
  UPDATE lanes l SET has_deliveries = true
    FROM (SELECT DISTINCT project_no, region, environment FROM heard) h
   WHERE l.project_no = h.project_no AND l.region = h.region AND l.environment = h.environment AND NOT l.has_deliveries
)`;
