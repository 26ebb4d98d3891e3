import { HOSTS_WATCHED } from "../../../../shared/store/database/codes.ts";
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
  monthAt,
  placesOf,
  type Refusal,
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

/** Claims of attempts without a flow key (shared/store/queue/claim.ts, claim-ordinary.ts), and what all claims have in common. */

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

export const isWatched = (tables: Tables, projectNo: number): boolean =>
  ((tables.flows.get(projectNo)?.subscriptions ?? 0) & HOSTS_WATCHED) !== 0;

export const isLiving = (tables: Tables, nodeId: unknown): boolean =>
  tables.nodes.get(Number(nodeId))?.dead === false;

export interface Met<Row extends OwedRow> {
  asked: Asked;
  row: Row;
  flow: FlowRow;
  due: boolean;
  /** Whether the node has claimed the attempt before, and the answer was lost. */
  again: boolean;
  isHeld: boolean;
}

/** Those of the asked attempts that are still owed, or on the wire of this very node. */
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

/**
 * Judges the attempts that are asked of one project. `firstClass` is the first class of their kind; only jobs are held
 * to the quota. `refusalOf` tells how a gate refuses an attempt, null if it passes.
 */
export function judge<Row extends OwedRow>(
  met: readonly Met<Row>[],
  firstClass: 0 | 2,
  quota: { left: number | null; isCounted(row: Row): boolean; endsAt: Instant } | null,
  { now }: StatementTime,
  refusalOf: (item: Met<Row>) => Refusal | null = () => null,
): Verdict<Row>[] {
  const [first] = met;
  if (first === undefined) return [];
  const { flow } = first;
  const counts = { due: 0, later: 0 };
  const candidates = met.map((item) => {
    const refusal = refusalOf(item);
    let inQuota = true;
    if (quota !== null && quota.left !== null && quota.isCounted(item.row)) {
      const part = item.due ? "due" : "later";
      // An attempt on the wire has its run already, so it is never counted here.
      if (refusal === null) counts[part]++;
      inQuota = counts[part] <= quota.left;
    }
    const candidate: Candidate = {
      n: item.asked.n,
      class: item.asked.environment + firstClass,
      region: item.asked.region,
      wants: item.due && !item.isHeld && inQuota && refusal === null,
    };
    return { item, candidate, inQuota, refusal };
  });
  const places = placesOf(
    flow,
    candidates.map(({ candidate }) => candidate),
    now,
  );
  const free = freeOf(flow);
  let inQuotaCount = 0;
  return candidates.map(({ item, candidate, inQuota, refusal }) => {
    const placed = places.get(candidate.n) ?? { place: 0, placeKept: 0 };
    if (item.due && inQuota && refusal === null) inQuotaCount++;
    const kind = ((): Judged["kind"] => {
      if (item.again) return "granted";
      if (!item.due) return "early";
      if (item.isHeld) return "blocked";
      if (refusal !== null) return refusal.kind;
      if (!inQuota) return inQuotaCount > free ? "no_permit" : "blocked";
      return judgePlace(placed, free);
    })();
    const number = ((): number | null => {
      switch (kind) {
        case "granted":
        case "parked":
        case "host_parked":
          return null;
        case "put_off":
        case "host_put_off":
          return refusal !== null && "until" in refusal ? toMs(refusal.until - now) : null;
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

/** Leaves jobs with a flow key, and projects whose hosts are watched, to claim_whole. Tells whether there are any. */
export const claim: Statement = (tables, time, values) => {
  const nodeId = Number(values[0]);
  if (!isLiving(tables, nodeId)) return [];
  const asked = readAsked(values);
  const isLeft = (item: Asked) =>
    isWatched(tables, item.project_no) || rowAt(tables.open_jobs, item, item.id)?.flow_key != null;
  const others = asked.filter((item) => !isLeft(item));
  const answers = byProject(meet(tables, tables.open_jobs, others, nodeId, time)).flatMap((met) =>
    grant(tables, time, nodeId, judge(met, 0, quotaOf(met, time), time)),
  );
  return [{ n: 0, number: Number(others.length < asked.length) }, ...answers];
};

const isCounted = (row: OpenJobRow) => row.run_id === null;

/** The quota to which the claims of one project are held. */
export function quotaOf(met: readonly Met<OpenJobRow>[], { clock }: StatementTime) {
  const { flow } = met[0] as Met<OpenJobRow>;
  return { left: runsLeft(flow, monthOf(clock)), isCounted, endsAt: monthAfter(monthAt(flow, clock)) };
}

/** Takes the granted attempts of one project, and notes the verdicts in its flow. Returns the rows that answer them. */
export function grant(
  tables: Tables,
  { clock }: StatementTime,
  nodeId: number,
  verdicts: readonly Verdict<OpenJobRow>[],
): object[] {
  const { flow } = (verdicts[0] as Verdict<OpenJobRow>).met;
  const [month, clockMonth] = [monthAt(flow, clock), monthOf(clock)];
  const counted = verdicts.filter(({ kind, met: { row } }) => kind === "granted" && isCounted(row));
  for (const verdict of counted)
    countUsage(tables, verdict.met.row, clockMonth < month ? month : dayOf(clock));
  const answers = verdicts
    .filter(({ kind }) => kind !== "parked" && kind !== "host_parked")
    .map((verdict) => {
      const { row, asked, again } = verdict.met;
      const job = verdict.kind === "granted" ? findJob(tables, row) : null;
      const scheduledAt =
        row.attempt === 1 ? (job?.run_at ?? null) : (row.parked_due_at ?? row.due_at ?? row.started_at);
      return {
        n: asked.n,
        kind: verdict.kind.endsWith("put_off") ? "early" : verdict.kind,
        number: verdict.number,
        job_id: row.id,
        run_id: row.run_id ?? asked.newId,
        scheduled_at: toMsOrNull(scheduledAt),
        started_at: toMsOrNull(again ? row.started_at : clock),
        attempts_allowed: row.attempts_allowed,
        ...(job === null ? {} : grantedColumns(job, isWatched(tables, job.project_no))),
        waited_for: waitedByVerdict(verdict),
      };
    });
  for (const { taken, met: item } of verdicts) if (taken) take(item.row, nodeId, item.asked.newId, clock);
  takePermits(flow, verdicts);
  countRuns(flow, counted.length, clockMonth);
  return answers;
}

/** The kind of gate at which an attempt has waited or still waits. An early attempt that is due waits for a permit. */
function waitedByVerdict({ kind, met: { due, row } }: Verdict<OpenJobRow>) {
  if (kind === "put_off") return "flow";
  if (kind === "host_put_off") return "host";
  return kind === "early" && due ? null : waitedFor(row);
}

/** The kind of gate at which an attempt has waited: it was due before the instant at which the gate let it pass. */
function waitedFor({ parked_host, due_at, parked_due_at, flow_key, gate }: OpenJobRow) {
  const hasWaited = parked_host === null && due_at !== null && due_at > (parked_due_at ?? due_at);
  return !hasWaited ? null : gate?.startsWith("h") ? "host" : flow_key === null ? null : "flow";
}

/** `isSpecial`: an attempt whose project's hosts are watched is settled as one with tags is. */
export const grantedColumns = (
  { target_url, payload, schedule_id, max_attempts, base_seconds, cap_seconds, tags, flow }: JobRow,
  isSpecial = false,
) => ({
  ...{ target_url, payload, schedule_id, max_attempts, base_seconds, cap_seconds, trace: null },
  ...{ is_tagged: isSpecial || tags !== null || flow !== null, is_keyed: flow !== null },
});

export function take(row: OpenJobRow, nodeId: number, newRunId: string, at: Instant): void {
  row.parked_due_at ??= row.due_at;
  row.due_at = null;
  row.run_id ??= newRunId;
  row.node_id = nodeId;
  row.started_at = at;
  row.gate = null;
  if (row.flow_key !== null) row.has_place = true;
}

export function countUsage(tables: Tables, { project_no, region }: Place, day: string): void {
  const key = `${project_no}/${day}/${region}`;
  tables.usage_days.set(key, (tables.usage_days.get(key) ?? 0) + 1);
}

/**
 * Reads the parameters of the short ways: the attempts that are asked of ordinary projects. None for a dead node, after
 * the clock went back, or while a region is held.
 */
export function readOrdinary(tables: Tables, time: StatementTime, values: readonly unknown[]): Asked[] {
  if (!isLiving(tables, values[0]) || time.clock < time.now || tables.held_regions.size > 0) return [];
  const [projects, counts] = [numbers(values[1]), numbers(values[2])];
  const ordinary = new Set(
    projects.filter((no, index) => isOrdinary(tables.flows.get(no), counts[index] as number, time)),
  );
  const ofItems = numbers(values[3]).map((place) => projects[place - 1] as number);
  const items = readAsked([null, ofItems, ...values.slice(4)]);
  return items.filter(({ project_no }) => ordinary.has(project_no));
}

function isOrdinary(flow: FlowRow | undefined, count: number, { now }: StatementTime): boolean {
  if (flow === undefined || flow.month > dayOf(now)) return false;
  if ((flow.subscriptions & HOSTS_WATCHED) !== 0) return false;
  const left = flow.month_runs_max === null ? count : flow.month_runs_max - flow.month_runs;
  return (freeForAny(flow, now) ?? -1) >= count && left >= count;
}

/** Takes attempts of ordinary projects, and counts them. Returns the rows that answer them. */
export function takeOrdinary(
  tables: Tables,
  { clock }: StatementTime,
  nodeId: number,
  found: readonly { asked: Asked; row: OpenJobRow }[],
): object[] {
  const answers = found.map(({ asked, row }) => {
    const job = findJob(tables, row);
    const waited_for = waitedFor(row);
    take(row, nodeId, asked.newId, clock);
    countUsage(tables, row, dayOf(clock));
    return {
      n: asked.n,
      attempts_allowed: row.attempts_allowed,
      scheduled_at: toMsOrNull(row.attempt === 1 ? job.run_at : row.parked_due_at),
      started_at: toMs(clock),
      ...grantedColumns(job),
      waited_for,
    };
  });
  for (const [no, taken] of Map.groupBy(found, ({ row }) => row.project_no)) {
    const flow = tables.flows.get(no) as FlowRow;
    const production = taken.filter(({ row }) => row.environment === 1).length;
    takeFreePermits(flow, taken.length - production, production);
    countRuns(flow, taken.length, monthOf(clock));
  }
  return answers;
}

/** Whether an attempt is owed and due, and no retry by hand has counted its run. */
export const isOwed = (row: OpenJobRow, { attempt }: Asked, now: Instant): boolean =>
  row.attempt === attempt && row.run_id === null && row.due_at !== null && row.due_at <= now;

export const claimOrdinary: Statement = (tables, time, values) => {
  const found = readOrdinary(tables, time, values).flatMap((asked) => {
    const row = rowAt(tables.open_jobs, asked, asked.id);
    const isTaken = row !== undefined && row.flow_key === null && isOwed(row, asked, time.now);
    return isTaken ? [{ asked, row }] : [];
  });
  return takeOrdinary(tables, time, Number(values[0]), found);
};

/** The same for one attempt, by parameters that are no lists. */
export const claimOrdinaryOne: Statement = (tables, time, [nodeId, projectNo, ...item]) =>
  claimOrdinary(tables, time, [nodeId, ...[projectNo, 1, 1, ...item].map((value) => [value])]);
