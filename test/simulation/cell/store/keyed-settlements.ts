import { START_SHIFT_MS } from "../../../../shared/domain/run.ts";
import { HOSTS_WATCHED } from "../../../../shared/store/database/codes.ts";
import { ENDS_HEARD } from "../../../../shared/store/queue/settle-ordinary.ts";
import { countUsage, grantedColumns, isLiving, take } from "./claims.ts";
import { byTurn, calledColumns, callGate, gateOf, headsOf, leaveQueue, roomOf, rowsAtGate } from "./gates.ts";
import { dayOf, type Instant, monthOf, numbers, texts, textsOrNull, toMs } from "./parameters.ts";
import { countRuns, freeForAny } from "./permits.ts";
import { endLast, keyOfJob, type LastAttempt, readLast } from "./settlements.ts";
import {
  type FlowKeyRow,
  type FlowRow,
  findJob,
  type OpenJobRow,
  type Statement,
  type StatementTime,
  type Tables,
} from "./tables.ts";
import { shiftMsOf } from "./tags.ts";

/** settleKeyed and findStarted (shared/store/queue/settle-keyed.ts). */

interface KeyedAttempt extends LastAttempt {
  key: FlowKeyRow;
  /** Whether the job has a place at its key. */
  frees: boolean;
  nextRunId: string | null;
}

export const settleKeyed: Statement = (tables, time, values) => {
  const nodeId = Number(values[14]);
  const nextRunIds = textsOrNull(values[15], numbers(values[1]).length);
  const mayStart = readMayStart(tables, time, nodeId, values);
  const found = readLast(tables, values, ENDS_HEARD | HOSTS_WATCHED).flatMap((attempt): KeyedAttempt[] => {
    const key = keyOfJob(tables, attempt.row);
    const isInTime =
      shiftMsOf(attempt.outcome.attemptId, attempt.row.started_at as Instant) <= START_SHIFT_MS;
    if (key?.rate_count !== null || !isInTime) return [];
    const nextRunId = nextRunIds[attempt.outcome.n - 1] ?? null;
    return [{ ...attempt, key, frees: attempt.row.has_place === true, nextRunId }];
  });
  const answers = endLast(tables, time.now, values, found);
  const started: OpenJobRow[] = [];
  const called: OpenJobRow[] = [];
  for (const [key, attempts] of Map.groupBy(found, (attempt) => attempt.key)) {
    const freed = attempts.filter(({ frees }) => frees);
    const waitsIn = key.waiting.map((count) => count > 0);
    const next = mayStart.has(key.project_no) ? startNext(tables, time, nodeId, key, attempts) : [];
    started.push(...next);
    const inUse = key.in_use - freed.length + next.length;
    const heads = headsOf(tables, key, gateOf(key.flow_key), roomOf(key, inUse));
    const calledOfKey = callGate(
      time.now,
      heads.filter(({ region }) => waitsIn[region]),
    );
    key.in_use = Math.max(inUse, 0);
    leaveQueue(key, calledOfKey);
    called.push(...calledOfKey);
  }
  for (const no of new Set(found.map(({ row }) => row.project_no)))
    noteNext(
      tables.flows.get(no) as FlowRow,
      started.filter((row) => row.project_no === no),
      time,
    );
  return [
    ...answers.map((answer) => ({ kind: "settled", ...answer })),
    ...calledColumns(tables, called).map(({ id, ...row }) => ({ kind: "called", job_id: id, ...row })),
    ...started.map((row) => startedColumns(tables, row)),
  ];
};

/** The projects in which a settlement may start another attempt on the node. */
function readMayStart(
  tables: Tables,
  { now, clock }: StatementTime,
  nodeId: number,
  values: readonly unknown[],
): ReadonlySet<number> {
  if (!isLiving(tables, nodeId) || tables.held_regions.size > 0 || clock < now) return new Set();
  const counts = numbers(values[16]);
  return new Set(
    numbers(values[0]).filter((no, index) => {
      const flow = tables.flows.get(no);
      if (flow === undefined || flow.month > dayOf(now)) return false;
      const left = flow.month_runs_max === null ? null : flow.month_runs_max - flow.month_runs;
      return (freeForAny(flow, now) ?? -1) >= 0 && (left === null || (counts[index] ?? 0) <= left);
    }),
  );
}

/** Starts the next attempts of a key's queue in the places that were freed, until one may not be started on the node. */
function startNext(
  tables: Tables,
  { now, clock }: StatementTime,
  nodeId: number,
  key: FlowKeyRow,
  attempts: readonly KeyedAttempt[],
): OpenJobRow[] {
  const freed = attempts.filter(({ frees }) => frees);
  const runIds = freed.flatMap(({ nextRunId }) => nextRunId ?? []);
  const regions = new Set(attempts.map(({ row }) => row.region));
  if (key.paused || key.concurrency === null || regions.size !== 1) return [];
  const room = Math.min(runIds.length, key.concurrency - key.in_use + freed.length);
  const queue = rowsAtGate(tables, key, gateOf(key.flow_key)).sort(byTurn).slice(0, Math.max(room, 0));
  const mayStart = ({ region, due_at, parked_due_at, run_id, parked_host }: OpenJobRow) =>
    regions.has(region) && (due_at ?? parked_due_at ?? 0) <= now && run_id === null && parked_host === null;
  const end = queue.findIndex((row) => !mayStart(row));
  const next = end === -1 ? queue : queue.slice(0, end);
  leaveQueue(
    key,
    next.filter(({ due_at }) => due_at === null),
  );
  for (const [index, row] of next.entries()) {
    take(row, nodeId, runIds[index] as string, clock);
    countUsage(tables, row, dayOf(clock));
  }
  return next;
}

/** Notes the attempts that were started with the permits of ended ones. */
function noteNext(flow: FlowRow, started: readonly OpenJobRow[], { clock }: StatementTime): void {
  for (const environment of [0, 1]) {
    const count = started.filter((row) => row.environment === environment).length;
    if (count === 0) continue;
    flow.in_use[environment] = (flow.in_use[environment] ?? 0) + count;
    flow.called_at[environment] = Number.NEGATIVE_INFINITY;
    flow.last_class = environment;
  }
  countRuns(flow, started.length, monthOf(clock));
}

function startedColumns(tables: Tables, row: OpenJobRow) {
  const job = findJob(tables, row);
  return {
    kind: "started",
    attempt: row.attempt,
    job_id: row.id,
    run_id: row.run_id,
    attempts_allowed: row.attempts_allowed,
    scheduled_at: toMs((row.attempt === 1 ? job.run_at : row.parked_due_at) as Instant),
    started_at: toMs(row.started_at as Instant),
    ...grantedColumns(job),
    waited_for: "flow",
  };
}

export const findStarted: Statement = (tables, _time, values) => {
  const nodeId = Number(values[0]);
  const runIds = new Set(isLiving(tables, nodeId) ? texts(values[3]) : []);
  return [...tables.open_jobs.values()]
    .filter((row) => row.run_id !== null && runIds.has(row.run_id) && row.node_id === nodeId)
    .map((row) => startedColumns(tables, row));
};
