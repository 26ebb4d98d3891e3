import { byProject, isLiving, judge, type Met, meet, readAsked } from "./claims.ts";
import { hasClockRunEvenly } from "./members.ts";
import { booleans, fromMs, type Instant, numbers, numbersOrNull, toMs, toMsOrNull } from "./parameters.ts";
import { takePermits } from "./permits.ts";
import { giveBack, type Outcome, readOutcomes } from "./settlements.ts";
import {
  attemptKey,
  findJob,
  type OpenDeliveryRow,
  rowAt,
  type Statement,
  type StatementTime,
  type Tables,
  type WebhookRow,
} from "./tables.ts";

/** claimDeliveries and settleDeliveries, with the health of endpoints (shared/store/queue). */

const WEBHOOKS = 2;
const PENDING = 0;
const SUCCEEDED_RUN = 1;
const DROPPED = 2;

/** Whether a delivery is still to be sent: its endpoint was neither disabled nor deleted since. */
const isStillOwed = (endpoint: WebhookRow | undefined, { generation }: OpenDeliveryRow): boolean =>
  endpoint?.enabled === true && endpoint.generation === generation;

export const claimDeliveries: Statement = (tables, time, values) => {
  const nodeId = Number(values[0]);
  if (!isLiving(tables, nodeId)) return [];
  const met = meet(tables, tables.open_deliveries, readAsked(values), nodeId, time);
  const owed = met.filter(({ row, again }) => {
    const isOwed = isStillOwed(tables.webhooks.get(row.webhook_id), row) && tables.events.has(row.event_id);
    const isDropped = !again && !isOwed;
    if (isDropped) end(tables, row, DROPPED, row.attempt - 1, time.now);
    return !isDropped;
  });
  return [{ n: 0 }, ...byProject(owed).flatMap((items) => claimOfProject(tables, time, nodeId, items))];
};

function claimOfProject(
  tables: Tables,
  time: StatementTime,
  nodeId: number,
  met: Met<OpenDeliveryRow>[],
): object[] {
  const verdicts = judge(met, WEBHOOKS, null, time);
  const answers = verdicts.map((verdict) => {
    const { row, asked, again } = verdict.met;
    const endpoint = tables.webhooks.get(row.webhook_id);
    return {
      ...{ n: asked.n, kind: verdict.kind, number: verdict.number, id: row.id, webhook_id: row.webhook_id },
      attempt_id: again ? row.attempt_id : asked.newId,
      ...{ by_hand: row.by_hand, waits: row.waits },
      started_at: toMsOrNull(again ? row.started_at : time.now),
      first_started_at: toMs(row.first_started_at ?? time.now),
      url: endpoint?.url ?? null,
      sealed_secret: endpoint?.sealed_secret ?? null,
      sealed_old_secret: null,
      ...(verdict.kind === "granted" ? eventColumns(tables, row) : {}),
    };
  });
  for (const { taken, met: item } of verdicts) {
    if (!taken) continue;
    const { row } = item;
    row.due_at = null;
    row.attempt_id = item.asked.newId;
    row.node_id = nodeId;
    row.started_at = time.now;
    row.first_started_at ??= time.now;
  }
  const [first] = met;
  if (first !== undefined) takePermits(first.flow, verdicts);
  return answers;
}

function eventColumns(tables: Tables, { event_id }: OpenDeliveryRow): object {
  const event = tables.events.get(event_id);
  if (event === undefined) throw new Error(`the event ${event_id} has no row`);
  const { type, environment, region, job_id, attempt, run_status, response_status, error } = event;
  const { target_url, schedule_id, tags } = findJob(tables, { id: job_id });
  return {
    ...{ event_id, type, environment, region, job_id, attempt, run_status, response_status, error },
    ...{ target_url, schedule_id, tags, trace: null, data: null },
    occurred_at: toMs(event.occurred_at),
    api_version: event.api_version,
    project_id: tables.projects.get(event.project_no)?.id,
    run_started_at: toMs(event.started_at),
    duration_ms: event.duration_ms,
  };
}

function end(tables: Tables, row: OpenDeliveryRow, status: number, attempts: number, now: Instant): void {
  const { project_no, environment, region, id, webhook_id, event_id, first_started_at } = row;
  tables.open_deliveries.delete(id);
  tables.ended_deliveries.set(id, {
    ...{ project_no, environment, region, id, webhook_id, event_id, status, attempts, first_started_at },
    ended_at: now,
  });
}

interface Ended {
  outcome: Outcome;
  row: OpenDeliveryRow;
  next: number;
  dueAt: Instant;
  waits: number;
  counts: boolean;
}

export const settleDeliveries: Statement = (tables, { now }, values) => {
  const nexts = numbers(values[9]);
  const pauses = numbersOrNull(values[10], nexts.length);
  const window = Number(values[11]) * 1_000;
  const [areOurFaults, waits] = [booleans(values[12]), numbers(values[13])];
  const attempts = readOutcomes(values).flatMap((outcome, index): Ended[] => {
    const row = rowAt(tables.open_deliveries, outcome, outcome.id);
    if (row === undefined || row.attempt_id !== outcome.attemptId || row.node_id === null) return [];
    const pause = pauses[index] ?? null;
    const lastAt = (row.first_started_at as Instant) + window;
    const dueAt = Math.max(now, pause === null ? lastAt : Math.min(now + fromMs(pause), lastAt));
    const counts = !row.by_hand && !areOurFaults[index];
    return [{ outcome, row, next: nexts[index] as number, dueAt, waits: waits[index] as number, counts }];
  });
  const disabled = judgeEndpoints(tables, attempts, window, now);
  const answers = attempts.map((attempt) => {
    const { outcome, row, next, dueAt } = attempt;
    const is_disabling = disabled.get(row.webhook_id) ?? false;
    const endpoint = tables.webhooks.get(row.webhook_id);
    const is_dropped = next === PENDING && (is_disabling || !isStillOwed(endpoint, row));
    const isOwedAgain = next === PENDING && !is_dropped;
    const answer = { kind: "attempt", n: outcome.n, project_no: row.project_no, region: row.region };
    const due_at = isOwedAgain ? toMs(dueAt) : null;
    const { attempt: number } = row;
    record(tables, attempt);
    if (isOwedAgain) oweAgain(attempt);
    else end(tables, row, is_dropped ? DROPPED : next - 1, number, now);
    return { ...answer, attempt: number, next, is_dropped, is_disabling, due_at };
  });
  const given = attempts.map(({ row }) => ({
    project_no: row.project_no,
    class: row.environment + WEBHOOKS,
  }));
  return [...answers, ...giveBack(tables, given, now)];
};

function record(tables: Tables, { outcome, row, counts }: Ended): void {
  const { id: delivery_id, attempt, webhook_id } = row;
  const { status, response_status, error, duration_ms } = outcome;
  tables.delivery_attempts.set(attemptKey(delivery_id, attempt), {
    ...{ delivery_id, attempt, webhook_id, status, response_status, error, duration_ms, counts },
    started_at: row.started_at as Instant,
  });
}

function oweAgain({ row, dueAt, waits }: Ended): void {
  row.attempt++;
  row.waits = waits;
  row.due_at = dueAt;
  row.attempt_id = null;
  row.node_id = null;
  row.started_at = null;
  row.parked_due_at = null;
}

/**
 * Judges the endpoints of attempts that have ended. Returns the endpoints that the attempts tell of, and whether each
 * is disabled by them.
 */
function judgeEndpoints(
  tables: Tables,
  attempts: readonly Ended[],
  window: Instant,
  now: Instant,
): Map<string, boolean> {
  const judged = new Map<string, boolean>();
  for (const [webhookId, ended] of Map.groupBy(attempts, ({ row }) => row.webhook_id)) {
    const endpoint = tables.webhooks.get(webhookId);
    const told = ended.filter(({ row }) => row.generation === endpoint?.generation);
    if (endpoint === undefined || told.length === 0) continue;
    judged.set(webhookId, judgeEndpoint(tables, endpoint, told, window, now));
  }
  return judged;
}

function judgeEndpoint(
  tables: Tables,
  endpoint: WebhookRow,
  told: readonly Ended[],
  window: Instant,
  now: Instant,
): boolean {
  const startedAt = ({ row }: Ended) => row.started_at as Instant;
  const succeeded = told.filter(({ outcome }) => outcome.status === SUCCEEDED_RUN).map(startedAt);
  const failed = told
    .filter(({ outcome, counts }) => outcome.status !== SUCCEEDED_RUN && counts)
    .map(startedAt);
  const latest = latestOf([endpoint.succeeded_at, ...succeeded]);
  const failingSince = endpoint.failing_since;
  const before =
    latest === null || (failingSince !== null && failingSince > latest)
      ? failingSince
      : failingSince === null
        ? null
        : firstFailure(tables, endpoint.id, latest);
  const nowFailed = failed.filter((at) => latest === null || at > latest);
  const failedSince = earliestOf([before, ...nowFailed]);
  const hasFailedForLong = failed.length > 0 && failedSince !== null && failedSince <= now - window;
  const isDisabling = endpoint.enabled && hasFailedForLong && hasClockRunEvenly(tables, window, now);
  endpoint.failing_since = failedSince;
  endpoint.succeeded_at = latest;
  endpoint.enabled &&= !isDisabling;
  if (isDisabling) endpoint.generation++;
  return isDisabling;
}

function firstFailure(tables: Tables, webhookId: string, after: Instant): Instant | null {
  const ats: Instant[] = [];
  for (const { webhook_id, status, counts, started_at } of tables.delivery_attempts.values())
    if (webhook_id === webhookId && status !== SUCCEEDED_RUN && counts && started_at > after)
      ats.push(started_at);
  return earliestOf(ats);
}

const present = (ats: readonly (Instant | null)[]) => ats.filter((at) => at !== null);
const earliestOf = (ats: readonly (Instant | null)[]) =>
  present(ats).length === 0 ? null : Math.min(...present(ats));
const latestOf = (ats: readonly (Instant | null)[]) =>
  present(ats).length === 0 ? null : Math.max(...present(ats));

/** Changes only whether an endpoint is enabled; the model leaves out its other fields. */
export const changeWebhook: Statement = (tables, _time, values) => {
  const [wasEnabled, enabled] = [values[10], Boolean(values[15])];
  const endpoint = tables.webhooks.get(String(values[2]));
  if (endpoint === undefined || endpoint.enabled !== wasEnabled) return [];
  if (endpoint.enabled && !enabled) endpoint.generation++;
  if (!endpoint.enabled && enabled) endpoint.failing_since = null;
  endpoint.enabled = enabled;
  return [{}];
};
