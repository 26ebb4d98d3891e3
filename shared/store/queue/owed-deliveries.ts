/**
 * How deliveries come into being, in the words of the statements that make them: an event, and a delivery of it for each
 * endpoint that hears of it.
 */

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

/** The id of the delivery of an event to an endpoint that is told of it when it occurs: nobody need look for it by its event. */
export const deliveryIdOf = (occurredAt: string, event: string, endpoint: string): string =>
  `(lpad(to_hex(floor(extract(epoch FROM ${occurredAt}) * 1000)::bigint), 12, '0')
          || left(md5(${event}::text || ${endpoint}::text), 20))::uuid`;

/**
 * Makes a delivery of each job that has ended for each endpoint that is enabled and subscribed at the instant of the statement.
 * The job of an `attempt` has ended if `over` is true, and `type` is the type of its event. The `subscriptions` of its flow
 * tell whether the project may have such an endpoint.
 */
export const tellEndpoints = (over: string, type: string): string => `heard AS MATERIALIZED (
  SELECT t.*, w.id AS webhook_id, w.generation, false AS by_hand, now() AS occurred_at, p.api_version, t.run_id AS event_id,
         ${deliveryIdOf("now()", "t.run_id", "w.id")} AS delivery_id
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
