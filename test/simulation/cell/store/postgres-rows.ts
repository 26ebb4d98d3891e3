import type { TestStore } from "../../../../shared/store/test-support.ts";
import type { Tables } from "./tables.ts";

/** Brings the rows of a model into Postgres, and Postgres' rows into the form of the model. */

/** The function by which rows are read with their instants as microseconds since 1970. */
export const READS_INSTANTS = `
  CREATE SCHEMA simulated;
  CREATE FUNCTION simulated.us(at timestamptz) RETURNS float8 IMMUTABLE LANGUAGE sql AS
    $$ SELECT (extract(epoch FROM at) * 1000000)::float8 $$;`;

/**
 * Functions that come before the catalogue's in the search path tell every statement the time that stands in a table, in
 * all sessions that begin from now on. Instants are microseconds since 1970.
 */
export const SET_CLOCK = `${READS_INSTANTS}
  CREATE TABLE simulated.time (now float8 NOT NULL, clock float8 NOT NULL);
  INSERT INTO simulated.time VALUES (0, 0);
  CREATE FUNCTION simulated.now() RETURNS timestamptz STABLE LANGUAGE sql AS
    $$ SELECT to_timestamp(0) + (SELECT now FROM simulated.time) * interval '1 us' $$;
  CREATE FUNCTION simulated.transaction_timestamp() RETURNS timestamptz STABLE LANGUAGE sql AS $$ SELECT simulated.now() $$;
  CREATE FUNCTION simulated.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql AS
    $$ SELECT to_timestamp(0) + (SELECT clock FROM simulated.time) * interval '1 us' $$;
  ALTER TABLE nodes ALTER COLUMN seen_at SET DEFAULT simulated.now();
  DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET search_path = simulated, pg_catalog, public', current_database());
  END $$`;

const TABLES_IN_USE =
  "projects, flows, lanes, shards, nodes, jobs, open_jobs, ended_jobs, flow_keys, target_hosts, gate_calls, job_tags, job_tag_states, runs, run_tags, shifted_runs, usage_days, webhooks, events, open_deliveries, ended_deliveries, delivery_attempts, schedules, firings, held_regions, host_limits, clock_watch, signing_secrets, timetables, bulk_operations, bulk_members";

const instant = (us: number | null) =>
  us === null ? null : us === Number.NEGATIVE_INFINITY ? "-infinity" : new Date(us / 1_000).toISOString();

/** Replaces all rows by those with which a simulated cell begins. */
export async function insertRows({ query }: TestStore, tables: Tables): Promise<void> {
  await query(`TRUNCATE ${TABLES_IN_USE} RESTART IDENTITY CASCADE`);
  for (const row of tables.projects.values()) {
    await query(
      `INSERT INTO projects (no, id, name, plan, default_region, api_version, active_schedules, park_failing_hosts)
       OVERRIDING SYSTEM VALUE VALUES ($1, $2, 'model', $3, $4, $5, $6, $7)`,
      [
        ...[row.no, row.id, row.plan, row.default_region, row.api_version, row.active_schedules],
        row.park_failing_hosts,
      ],
    );
    for (const environment of [0, 1])
      await query(
        "INSERT INTO signing_secrets (id, project_no, environment, sealed) VALUES (gen_random_uuid(), $1, $2, $3)",
        [row.no, environment, tables.signing_secret],
      );
  }
  for (const row of tables.flows.values())
    await query(
      `INSERT INTO flows (project_no, concurrency, month, month_runs, month_runs_max, retention_class, subscriptions)
       VALUES ($1, $2, $3, $4, $5, $6, $7)`,
      [
        row.project_no,
        row.concurrency,
        row.month,
        row.month_runs,
        row.month_runs_max,
        row.retention_class,
        row.subscriptions,
      ],
    );
  for (const row of tables.webhooks.values())
    await query(
      "INSERT INTO webhooks (id, project_no, environment, url, events, sealed_secret) VALUES ($1, $2, $3, $4, $5, $6)",
      [row.id, row.project_no, row.environment, row.url, row.events, row.sealed_secret],
    );
  for (const row of tables.schedules.values())
    await query(
      `INSERT INTO schedules (id, project_no, environment, shard, name, cron, timezone, target_url, payload, max_attempts,
                              base_seconds, cap_seconds, overlap, spread_seconds, spread_ms, next_run_at, tags, flow)
       VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)`,
      [
        ...[row.id, row.project_no, row.environment, row.shard, row.name, row.cron, row.timezone],
        ...[row.target_url, row.payload, row.max_attempts, row.base_seconds, row.cap_seconds],
        ...[row.overlap, row.spread_seconds, row.spread_ms, instant(row.next_run_at)],
        ...[row.tags, row.flow === null ? null : JSON.stringify(row.flow)],
      ],
    );
  for (const row of tables.flow_keys.values())
    await query(
      `INSERT INTO flow_keys (project_no, environment, flow_key, concurrency, rate_count, rate_seconds, pinned)
       VALUES ($1, $2, $3, $4, $5, $6, $7)`,
      [
        ...[row.project_no, row.environment, row.flow_key, row.concurrency],
        ...[row.rate_count, row.rate_seconds, row.pinned],
      ],
    );
  for (const row of tables.target_hosts.values())
    await query(
      "INSERT INTO target_hosts (project_no, environment, host, since, failing_since, failures) VALUES ($1, $2, $3, $4, $5, $6)",
      [
        ...[row.project_no, row.environment, row.host],
        ...[instant(row.since), instant(row.failing_since), row.failures],
      ],
    );
  for (const row of tables.timetables.values())
    await query(
      "INSERT INTO timetables (schedule_id, since, paused, cron, timezone) VALUES ($1, $2, $3, $4, $5)",
      [row.schedule_id, instant(row.since), row.paused, row.cron, row.timezone],
    );
  if (tables.clock_watch !== null)
    await query("INSERT INTO clock_watch (seen_at, steady_since) VALUES ($1, $2)", [
      instant(tables.clock_watch.seen_at),
      instant(tables.clock_watch.steady_since),
    ]);
}

const us = (...names: string[]) => names.map((name) => `simulated.us(${name}) AS ${name}`).join(", ");

/** Each table's columns as the model has them, and their order. */
const READ: Record<string, string> = {
  projects: `SELECT no, id, plan, default_region, api_version, active_schedules, park_failing_hosts
               FROM projects ORDER BY no`,
  flows: `SELECT project_no, concurrency, ARRAY[development_jobs, production_jobs, development_webhooks, production_webhooks] AS in_use,
                 returned, month::text AS month, month_runs, month_runs_max, held, retention_class, subscriptions, waiting, last_class,
                 ARRAY(SELECT simulated.us(at) FROM unnest(called_at) WITH ORDINALITY AS c (at, n) ORDER BY n) AS called_at
            FROM flows ORDER BY project_no`,
  lanes:
    "SELECT project_no, region, environment, shard, has_deliveries FROM lanes ORDER BY project_no, region, environment",
  shards: `SELECT region, shard, epoch, owner, ${us("lease_until")} FROM shards ORDER BY region, shard`,
  nodes: `SELECT id, kind, name, regions, process, dead, ${us("seen_at")}, beats FROM nodes ORDER BY id`,
  jobs: `SELECT project_no, environment, region, id, target_url, payload, ${us("run_at")}, max_attempts, base_seconds, cap_seconds,
                schedule_id, tags, flow FROM jobs ORDER BY id`,
  open_jobs: `SELECT project_no, environment, region, job_id AS id, attempt, attempts_allowed, ${us("due_at", "started_at")}, canceled,
                     run_id, node_id, parked_host, ${us("parked_due_at")}, schedule_id, tags, flow_key, gate, has_place
                FROM open_jobs ORDER BY job_id`,
  ended_jobs: `SELECT project_no, environment, region, job_id AS id, status, attempts, ${us("ended_at")}, schedule_id
                 FROM ended_jobs ORDER BY job_id`,
  flow_keys: `SELECT project_no, environment, flow_key, concurrency, rate_count, rate_seconds, paused, pinned, in_use, waiting, started,
                     ARRAY(SELECT simulated.us(at) FROM unnest(started_at) WITH ORDINALITY AS s (at, n) ORDER BY n) AS started_at
                FROM flow_keys ORDER BY project_no, environment, flow_key`,
  target_hosts: `SELECT project_no, environment, host, ${us("since", "next_probe_at", "failing_since")}, parked, second, started, state, by,
                        failures, probe_seconds, probe FROM target_hosts ORDER BY project_no, environment, host`,
  gate_calls: `SELECT project_no, environment, gate, region, waiting_change, in_use_change FROM gate_calls
                ORDER BY project_no, environment, gate, region, waiting_change, in_use_change`,
  job_tags:
    "SELECT project_no, environment, region, job_id, tag, schedule_id FROM job_tags ORDER BY job_id, tag",
  job_tag_states:
    "SELECT project_no, environment, region, job_id, tag, state FROM job_tag_states ORDER BY job_id, tag",
  runs: `SELECT id, job_id, project_no, environment, retention_class, attempt, status, response_status, error,
                ${us("started_at")}, duration_ms, ${us("next_retry_at")}, schedule_id, late_ms, held_for FROM runs ORDER BY id`,
  run_tags: "SELECT id, project_no, environment, status, schedule_id, tag FROM run_tags ORDER BY id, tag",
  shifted_runs: `SELECT id, project_no, environment, status, schedule_id, tags, ${us("started_at")} FROM shifted_runs ORDER BY id`,
  usage_days: "SELECT project_no || '/' || day || '/' || region AS key, runs FROM usage_days ORDER BY 1",
  webhooks: `SELECT id, project_no, environment, url, events, enabled, generation, ${us("failing_since", "succeeded_at")}
               FROM webhooks ORDER BY id`,
  events: `SELECT id, project_no, environment, region, type, job_id, attempt, run_status, response_status, error,
                  ${us("started_at")}, duration_ms, ${us("occurred_at")}, api_version FROM events ORDER BY id`,
  open_deliveries: `SELECT project_no, environment, region, id, webhook_id, event_id, attempt, attempt_id, generation, waits, by_hand,
                           node_id, parked_host, ${us("due_at", "started_at", "first_started_at", "parked_due_at")}
                      FROM open_deliveries ORDER BY id`,
  ended_deliveries: `SELECT project_no, environment, region, id, webhook_id, event_id, status, attempts,
                            ${us("first_started_at", "ended_at")} FROM ended_deliveries ORDER BY id`,
  delivery_attempts: `SELECT delivery_id, attempt, webhook_id, status, response_status, error, ${us("started_at")}, duration_ms, counts
                        FROM delivery_attempts ORDER BY delivery_id, attempt`,
  schedules: `SELECT id, project_no, environment, shard, name, cron, timezone, target_url, payload, max_attempts, base_seconds,
                     cap_seconds, paused, tags, flow, revision, ${us("next_run_at")}, overlap, spread_seconds, spread_ms
                FROM schedules ORDER BY id`,
  firings: `SELECT schedule_id, ${us("fired_for")}, job_id, ${us("due_at")}, skipped_for, replaced, backfilled FROM firings ORDER BY schedule_id, fired_for`,
  timetables: `SELECT no, schedule_id, ${us("since", "superseded_at", "replaced_at")}, paused, cron, timezone FROM timetables ORDER BY no`,
  bulk_operations: `SELECT id, project_no, environment, shard, action, status, per_second, dry_run, filter, matched, counted, done, skipped,
                           failed, judged_to, counted_to, sample, leaves_members, ${us("started_at", "ended_at")}, judged_counts,
                           ARRAY(SELECT simulated.us(at) FROM unnest(judged_at) WITH ORDINALITY AS j (at, n) ORDER BY n) AS judged_at
                      FROM bulk_operations ORDER BY id`,
  bulk_members: "SELECT bulk_id, position, job_id, region FROM bulk_members ORDER BY bulk_id, position",
  held_regions: "SELECT region FROM held_regions ORDER BY region",
  host_limits: "SELECT host, requests FROM host_limits ORDER BY host",
  clock_watch: `SELECT ${us("seen_at", "steady_since")} FROM clock_watch`,
};

const READ_ALL = `SELECT ${Object.entries(READ)
  .map(([name, text]) => `coalesce((SELECT json_agg(t) FROM (${text}) t), '[]') AS ${name}`)
  .join(",\n       ")}`;

export async function readPostgres({ query }: Pick<TestStore, "query">): Promise<Record<string, unknown[]>> {
  const [row] = await query<Record<string, unknown[]>>(READ_ALL);
  return row ?? {};
}

/** The rows of a model in the same form and order. */
export function readModel(tables: Tables): Record<string, unknown[]> {
  const sorted = <Row>(rows: Iterable<Row>, ...keys: (keyof Row)[]) =>
    [...rows].sort((one, other) => {
      const key = keys.find((name) => one[name] !== other[name]);
      return key === undefined ? 0 : one[key] < other[key] ? -1 : 1;
    });
  const entries = <Value>(map: ReadonlyMap<string, Value>, name: string, value: string) =>
    [...map]
      .sort(([one], [other]) => (one < other ? -1 : 1))
      .map(([key, of]) => ({ [name]: key, [value]: of }));
  const rows = {
    projects: sorted(tables.projects.values(), "no"),
    flows: sorted(tables.flows.values(), "project_no"),
    lanes: sorted(tables.lanes.values(), "project_no", "region", "environment"),
    shards: sorted(tables.shards.values(), "region", "shard"),
    nodes: sorted(tables.nodes.values(), "id"),
    jobs: sorted(tables.jobs.values(), "id"),
    open_jobs: sorted(tables.open_jobs.values(), "id"),
    ended_jobs: sorted(tables.ended_jobs.values(), "id"),
    flow_keys: sorted(tables.flow_keys.values(), "project_no", "environment", "flow_key"),
    target_hosts: sorted(tables.target_hosts.values(), "project_no", "environment", "host"),
    gate_calls: sorted(
      tables.gate_calls,
      ...(["project_no", "environment", "gate", "region", "waiting_change", "in_use_change"] as const),
    ),
    job_tags: sorted(tables.job_tags.values(), "job_id", "tag"),
    job_tag_states: sorted(tables.job_tag_states.values(), "job_id", "tag"),
    runs: sorted(tables.runs.values(), "id"),
    run_tags: sorted(tables.run_tags.values(), "id", "tag"),
    shifted_runs: sorted(tables.shifted_runs.values(), "id"),
    usage_days: entries(tables.usage_days, "key", "runs"),
    webhooks: sorted(tables.webhooks.values(), "id").map(({ sealed_secret: _, ...row }) => row),
    events: sorted(tables.events.values(), "id"),
    open_deliveries: sorted(tables.open_deliveries.values(), "id"),
    ended_deliveries: sorted(tables.ended_deliveries.values(), "id"),
    delivery_attempts: sorted(tables.delivery_attempts.values(), "delivery_id", "attempt"),
    schedules: sorted(tables.schedules.values(), "id"),
    firings: sorted(tables.firings.values(), "schedule_id", "fired_for"),
    timetables: sorted(tables.timetables.values(), "no"),
    bulk_operations: sorted(tables.bulk_operations.values(), "id"),
    bulk_members: sorted(tables.bulk_members.values(), "bulk_id", "position"),
    held_regions: [...tables.held_regions].sort().map((region) => ({ region })),
    host_limits: entries(tables.host_limits, "host", "requests"),
    clock_watch: tables.clock_watch === null ? [] : [tables.clock_watch],
  };
  // JSON has no infinite numbers: Postgres writes them as texts.
  return JSON.parse(
    JSON.stringify(rows, (_key, value) => (value === Number.NEGATIVE_INFINITY ? "-Infinity" : value)),
  );
}
