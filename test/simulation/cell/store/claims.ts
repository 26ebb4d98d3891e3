import {
  dayOf,
  type Instant,
  monthAfter,
  monthOf,
  numbers,
  SECOND,
  texts,
  toMs,
  toMsOrNull,
} from "./parameters.ts";
import {
  type Candidate,
  countRuns,
  freeForAny,
  freeOf,
  type Judged,
  judgePlace,
  keptMsOf,
  placesOf,
  runsLeft,
  takeFreePermits,
  takePermits,
} from "./permits.ts";
import {
  type FlowRow,
  findJob,
  type JobRow,
  type OpenJobRow,
  type OwedRow,
  type Place,
  rowAt,
  type Statement,
  type StatementTime,
  type Tables,
} from "./tables.ts";

/** claimAttempts and claimOrdinary (shared/store/queue). */

const HELD_PAUSE: Instant = 2 * SECOND;

/** An attempt that a node asks for, with the id to record it under. */
export interface Asked extends Place {
  n: number;
  id: string;
  attempt: number;
  newId: string;
}

/** The parameters 2 to 7 of both kinds of claims. */
export function readAsked(values: readonly unknown[]): Asked[] {
  const [projects, environments, regions, ids, attempts, newIds] = [
    numbers(values[1]),
    numbers(values[2]),
    numbers(values[3]),
    texts(values[4]),
    numbers(values[5]),
    texts(values[6]),
  ];
  return ids.map((id, index) => ({
    n: index + 1,
    project_no: projects[index] as number,
    environment: environments[index] as number,
    region: regions[index] as number,
    id,
    attempt: attempts[index] as number,
    newId: newIds[index] as string,
  }));
}

export const isLiving = (tables: Tables, nodeId: unknown): boolean =>
  tables.nodes.get(Number(nodeId))?.dead === false;

export interface Met<Row extends OwedRow> {
  asked: Asked;
  row: Row;
  flow: FlowRow;
  due: boolean;
  /** The node has claimed it before, and its answer was lost. */
  again: boolean;
  isHeld: boolean;
}

/** What of the asked attempts is still owed, or on the wire of this very node. */
export function meet<Row extends OwedRow>(
  tables: Tables,
  rows: ReadonlyMap<string, Row>,
  asked: readonly Asked[],
  nodeId: number,
  { now }: StatementTime,
): Met<Row>[] {
  return asked.flatMap((item) => {
    const flow = tables.flows.get(item.project_no);
    const row = rowAt(rows, item, item.id);
    if (flow === undefined || row === undefined || row.attempt !== item.attempt) return [];
    if (row.due_at === null && row.node_id !== nodeId) return [];
    const due = row.due_at !== null && row.due_at <= now;
    const isHeld = flow.held || tables.held_regions.has(item.region);
    return [{ asked: item, row, flow, due, again: row.due_at === null, isHeld }];
  });
}

export const byProject = <Row extends OwedRow>(met: readonly Met<Row>[]): Met<Row>[][] => [
  ...Map.groupBy(met, ({ asked }) => asked.project_no).values(),
];

export interface Verdict<Row extends OwedRow> extends Judged {
  met: Met<Row>;
  number: number | null;
}

/** Judges what is asked of one project. `firstClass` is that of the kind; jobs are held to the quota. */
export function judge<Row extends OwedRow>(
  met: readonly Met<Row>[],
  firstClass: 0 | 2,
  quota: { left: number | null; isCounted(row: Row): boolean; endsAt: Instant } | null,
  { now }: StatementTime,
): Verdict<Row>[] {
  const [first] = met;
  if (first === undefined) return [];
  const { flow } = first;
  const counts = { due: 0, later: 0 };
  const candidates = met.map((item) => {
    let inQuota = true;
    if (quota !== null && quota.left !== null && quota.isCounted(item.row)) {
      const part = item.due ? "due" : "later";
      // What is on the wire already has its run, so that it is never counted here.
      counts[part]++;
      inQuota = counts[part] <= quota.left;
    }
    const candidate: Candidate = {
      n: item.asked.n,
      class: item.asked.environment + firstClass,
      region: item.asked.region,
      wants: item.due && !item.isHeld && inQuota,
    };
    return { item, candidate, inQuota };
  });
  const places = placesOf(
    flow,
    candidates.map(({ candidate }) => candidate),
    now,
  );
  const free = freeOf(flow);
  let inQuotaCount = 0;
  return candidates.map(({ item, candidate, inQuota }) => {
    const placed = places.get(candidate.n) ?? { place: 0, placeKept: 0 };
    if (item.due && inQuota) inQuotaCount++;
    const kind = ((): Judged["kind"] => {
      if (item.again) return "granted";
      if (!item.due) return "early";
      if (item.isHeld) return "blocked";
      if (!inQuota) return inQuotaCount > free ? "no_permit" : "blocked";
      return judgePlace(placed, free);
    })();
    const number = ((): number | null => {
      switch (kind) {
        case "granted":
          return null;
        case "early":
          return item.due ? keptMsOf(flow, now) : toMs((item.row.due_at ?? 0) - now);
        case "no_permit":
          return flow.returned;
        case "blocked":
          return toMs(item.isHeld ? now + HELD_PAUSE : (quota?.endsAt ?? 0));
      }
    })();
    return { ...candidate, ...placed, kind, taken: kind === "granted" && !item.again, met: item, number };
  });
}

export const claim: Statement = (tables, time, values) => {
  const nodeId = Number(values[0]);
  if (!isLiving(tables, nodeId)) return [];
  const met = meet(tables, tables.open_jobs, readAsked(values), nodeId, time);
  const answers = byProject(met).flatMap((items) => claimOfProject(tables, time, nodeId, items));
  return [{ n: 0 }, ...answers];
};

function claimOfProject(
  tables: Tables,
  time: StatementTime,
  nodeId: number,
  met: Met<OpenJobRow>[],
): object[] {
  const { flow } = met[0] as Met<OpenJobRow>;
  const clockMonth = monthOf(time.clock);
  const month = laterMonth(flow.month, clockMonth);
  const isCounted = (row: OpenJobRow) => row.run_id === null;
  const quota = { left: runsLeft(flow, clockMonth), isCounted, endsAt: monthAfter(month) };
  const verdicts = judge(met, 0, quota, time);
  const counted = verdicts.filter(({ kind, met: { row } }) => kind === "granted" && isCounted(row));
  for (const verdict of counted)
    countUsage(tables, verdict.met.row, clockMonth < month ? month : dayOf(time.clock));
  const answers = verdicts.map((verdict) => {
    const { row, asked, again } = verdict.met;
    const job = verdict.kind === "granted" ? findJob(tables, row) : null;
    const scheduledAt =
      row.attempt === 1 ? (job?.run_at ?? null) : (row.parked_due_at ?? row.due_at ?? row.started_at);
    return {
      n: asked.n,
      kind: verdict.kind,
      number: verdict.number,
      job_id: row.id,
      run_id: row.run_id ?? asked.newId,
      scheduled_at: toMsOrNull(scheduledAt),
      started_at: toMsOrNull(again ? row.started_at : time.clock),
      attempts_allowed: row.attempts_allowed,
      ...(job === null ? {} : grantedColumns(job)),
    };
  });
  for (const { taken, met: item } of verdicts)
    if (taken) take(item.row, nodeId, item.asked.newId, time.clock);
  takePermits(flow, verdicts);
  countRuns(flow, counted.length, clockMonth);
  return answers;
}

/** Of two first days of months, in the form YYYY-MM-DD. */
const laterMonth = (one: string, other: string): string => [one, other].sort()[1] ?? one;

const grantedColumns = ({
  target_url,
  payload,
  schedule_id,
  max_attempts,
  base_seconds,
  cap_seconds,
  tags,
}: JobRow) => ({
  ...{ target_url, payload, schedule_id, max_attempts, base_seconds, cap_seconds, trace: null },
  is_tagged: tags !== null,
});

function take(row: OpenJobRow, nodeId: number, newRunId: string, at: Instant): void {
  row.parked_due_at ??= row.due_at;
  row.due_at = null;
  row.run_id ??= newRunId;
  row.node_id = nodeId;
  row.started_at = at;
}

export function countUsage(tables: Tables, { project_no, region }: Place, day: string): void {
  const key = `${project_no}/${day}/${region}`;
  tables.usage_days.set(key, (tables.usage_days.get(key) ?? 0) + 1);
}

export const claimOrdinary: Statement = (tables, time, values) => {
  const nodeId = Number(values[0]);
  if (!isLiving(tables, nodeId) || time.clock < time.now || tables.held_regions.size > 0) return [];
  const [projects, counts] = [numbers(values[1]), numbers(values[2])];
  const ordinary = projects.map((no, index) =>
    isOrdinary(tables.flows.get(no), counts[index] as number, time) ? no : null,
  );
  const [places, environments, regions, ids, attempts, runIds] = [
    numbers(values[3]),
    numbers(values[4]),
    numbers(values[5]),
    texts(values[6]),
    numbers(values[7]),
    texts(values[8]),
  ];
  const taken: OpenJobRow[] = [];
  const answers = ids.flatMap((id, index) => {
    const project_no = ordinary[(places[index] as number) - 1] ?? null;
    if (project_no === null) return [];
    const place = {
      project_no,
      environment: environments[index] as number,
      region: regions[index] as number,
    };
    const row = rowAt(tables.open_jobs, place, id);
    if (row === undefined || row.attempt !== attempts[index] || row.run_id !== null) return [];
    if (row.due_at === null || row.due_at > time.now) return [];
    take(row, nodeId, runIds[index] as string, time.clock);
    taken.push(row);
    const job = findJob(tables, row);
    return [
      {
        n: index + 1,
        attempts_allowed: row.attempts_allowed,
        scheduled_at: toMsOrNull(row.attempt === 1 ? job.run_at : row.parked_due_at),
        started_at: toMs(time.clock),
        ...grantedColumns(job),
      },
    ];
  });
  for (const row of taken) countUsage(tables, row, dayOf(time.clock));
  for (const [no, rows] of Map.groupBy(taken, ({ project_no }) => project_no)) {
    const flow = tables.flows.get(no) as FlowRow;
    const production = rows.filter(({ environment }) => environment === 1).length;
    takeFreePermits(flow, rows.length - production, production);
    countRuns(flow, rows.length, monthOf(time.clock));
  }
  return answers;
};

function isOrdinary(flow: FlowRow | undefined, count: number, { now }: StatementTime): boolean {
  if (flow === undefined || flow.month > dayOf(now)) return false;
  const left = flow.month_runs_max === null ? count : flow.month_runs_max - flow.month_runs;
  return (freeForAny(flow, now) ?? -1) >= count && left >= count;
}
