import { idToUuid, JOB_PREFIX, RUN_PREFIX, SCHEDULE_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { OwedAttempt, Placed } from "../../domain/owed.ts";
import type { Environment, ProjectNo, Region } from "../../domain/scope.ts";
import { hostOfTarget } from "../../domain/target.ts";
import type { TraceContext } from "../../domain/trace.ts";
import type { WaitReason } from "../../domain/wait.ts";
import { environmentCode, regionCode } from "../database/codes.ts";
import { column, type Database } from "../database/database.ts";
import { readTrace } from "../database/traces.ts";
import { type CalledRow, readCalled } from "./called.ts";
import { CLAIM, CLAIM_WHOLE } from "./claim-statement.ts";

/** An owed attempt that a delivery node wants to send, with the run id to record it under. */
export interface Claim {
  projectNo: ProjectNo;
  environment: Environment;
  region: Region;
  jobId: string;
  attempt: number;
  runId: string;
}

/** What the claim decided. Instants are milliseconds since 1970 by the database's clock. */
export type Claimed<Granted = GrantedAttempt> =
  | { kind: "granted"; attempt: Granted }
  /** Not owed any more: sent, canceled or over. */
  | { kind: "gone" }
  /** Not due yet, or the free permits are kept for a class that has been called. */
  | { kind: "early"; waitMs: number }
  /** All permits of the project are in use, and its flow notes that this region waits. `returned` of them ever came back. */
  | { kind: "no_permit"; returned: number }
  /** The month's quota is used up, or an operator holds the project. */
  | { kind: "blocked"; untilAt: number };

/** All that sending takes, so that the claim is the only question asked before dialling. */
export interface GrantedAttempt {
  jobId: string;
  /** The claim's run id, or the one that a manual retry had already been answered with. */
  runId: string;
  attemptsAllowed: number;
  /** When it was due, for `Service-Scheduled-At`. */
  scheduledAt: number;
  startedAt: number;
  targetUrl: string;
  payload: string;
  scheduleId: string | null;
  maxAttempts: number;
  baseSeconds: number;
  capSeconds: number;
  /** Whether the job has tags or a flow key, or its project's hosts are watched. */
  isTagged: boolean;
  /** True if the job has a flow key. */
  isKeyed?: true;
  /** The gate at which it waited last, if it did. */
  waitedFor?: WaitReason | undefined;
  /** The trace that the attempt belongs to, null for none. */
  trace: TraceContext | null;
}

/** Thrown to a node that was declared dead: nothing was claimed, and nothing will be. */
export class NodeDeclaredDead extends Error {}

/**
 * Claims many attempts in one self-committing statement (claim-statement.ts): permit, quota, run and start, all or nothing for each.
 *
 * A claim whose answer was lost is made again. An attempt that this node has taken already is granted once more, and nothing
 * is counted twice; parked_due_at keeps when it was due until the attempt is over. So the caller asks only for jobs of which
 * the node has nothing on the wire, and for each job once in a statement. Answers come in the order of the claims.
 *
 * In a project with endpoints that hear of the quota (quota-events.ts) a second statement claims, and tells them where a run
 * reaches a part of it. The sweeps find these deliveries. The same statement claims for jobs with a flow key (flow-gates.ts).
 * `onCalled` hears of what it let start next; the sweeps find that as well.
 */
export async function claimAttempts(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
  onCalled: OnCalled = () => undefined,
): Promise<Claimed[]> {
  const answers = await claimMost(db, nodeId, claims);
  const left = claims.filter((_, index) => answers[index] === null);
  if (left.length === 0) return answers.map((answer) => answer ?? { kind: "gone" });
  const others = await claimWhole(db, nodeId, left, onCalled);
  return answers.map((answer) => answer ?? others.shift() ?? { kind: "gone" });
}

/** The first statement alone: null is what it leaves to the second. */
export async function claimMost(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
): Promise<(Claimed | null)[]> {
  const { answers, isLeft } = await ask(db, "claim", CLAIM, nodeId, claims);
  return isLeft ? answers : answers.map((answer) => answer ?? { kind: "gone" });
}

/** Hears of attempts of flow keys that a statement made due. */
export type OnCalled = (owed: Placed<OwedAttempt>[]) => void;

/** The second statement alone, which leaves nothing. It is asked about any claims, at more cost. */
export async function claimWhole(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
  onCalled: OnCalled = () => undefined,
): Promise<Claimed[]> {
  const hosts = await findWatchedHosts(db, claims);
  const { answers, called } = await ask(db, "claim_whole", CLAIM_WHOLE, nodeId, claims, [hosts]);
  if (called.length > 0) onCalled(called);
  return answers.map((answer) => answer ?? { kind: "gone" });
}

/** The hosts of jobs whose projects have hosts that are not well, in the order of the claims; null for others. */
async function findWatchedHosts(db: Database, claims: readonly Claim[]): Promise<(string | null)[]> {
  const rows = await db.run<{ target_url: string | null }>("find_watched_targets", FIND_WATCHED, [
    column(claims.map((claim) => claim.projectNo)),
    column(claims.map((claim) => environmentCode(claim.environment))),
    column(claims.map((claim) => regionCode(claim.region))),
    column(claims.map((claim) => idToUuid(claim.jobId))),
  ]);
  return rows.map((row) => (row.target_url === null ? null : hostOfTarget(row.target_url)));
}

// Few projects have such hosts, and they have few. A host that comes to be so meanwhile lets this attempt pass, as one that was
// claimed before.
const FIND_WATCHED = `
SELECT CASE WHEN EXISTS (SELECT FROM target_hosts t WHERE t.project_no = i.project_no AND t.environment = i.environment AND t.state IS NOT NULL)
            THEN (SELECT j.target_url FROM jobs j
                   WHERE j.project_no = i.project_no AND j.environment = i.environment AND j.region = i.region AND j.id = i.job_id) END AS target_url
  FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::uuid[])
       WITH ORDINALITY AS i (project_no, environment, region, job_id, n)
 ORDER BY i.n`;

/** The answers in the order of the claims, null for none; `isLeft` if some of these may be had by CLAIM_WHOLE. */
async function ask(
  db: Database,
  name: string,
  text: string,
  nodeId: number,
  claims: readonly Claim[],
  more: unknown[] = [],
): Promise<{ answers: (Claimed | null)[]; isLeft: boolean; called: Placed<OwedAttempt>[] }> {
  const rows = await db.run<ClaimRow>(name, text, [
    nodeId,
    column(claims.map((claim) => claim.projectNo)),
    column(claims.map((claim) => environmentCode(claim.environment))),
    column(claims.map((claim) => regionCode(claim.region))),
    column(claims.map((claim) => idToUuid(claim.jobId))),
    column(claims.map((claim) => claim.attempt)),
    column(claims.map((claim) => idToUuid(claim.runId))),
    ...more,
  ]);
  // The statement answers one row more than there are verdicts to a node that lives, and none to another.
  if (rows.length === 0) throw new NodeDeclaredDead(`node ${nodeId} was declared dead`);
  const answers = claims.map((): Claimed | null => null);
  let isLeft = false;
  let called: Placed<OwedAttempt>[] = [];
  for (const row of rows) {
    if (row.n > 0) answers[row.n - 1] = readClaimed(row);
    else {
      isLeft = row.number === 1;
      called = (row.called ?? []).flatMap(readCalled);
    }
  }
  return { answers, isLeft, called };
}

interface ClaimRow extends GrantedRow {
  /** The claim's place, from 1; 0 in the row that stands for the living node. */
  n: number;
  kind: Exclude<Claimed["kind"], "gone">;
  /**
   * What the kind comes with: milliseconds to wait, permits returned, or an instant. In the row of the node 1 if claims were left
   * for CLAIM_WHOLE, and else 0.
   */
  number: number | null;
  job_id: string;
  run_id: string;
  /** In the row of the node: what flow keys have let start next. */
  called?: CalledRow[] | null;
}

/** What sending takes, as a statement answers it. */
export interface GrantedRow {
  attempts_allowed: number;
  scheduled_at: number;
  started_at: number;
  target_url: string;
  payload: string;
  schedule_id: string | null;
  max_attempts: number;
  base_seconds: number;
  cap_seconds: number;
  is_tagged: boolean;
  is_keyed?: boolean | null;
  trace: Buffer | null;
  waited_for?: "flow" | "host" | null;
}

function readClaimed(row: ClaimRow): Claimed {
  switch (row.kind) {
    case "granted":
      return {
        kind: "granted",
        attempt: readGranted(row, {
          jobId: uuidToId(JOB_PREFIX, row.job_id),
          runId: uuidToId(RUN_PREFIX, row.run_id),
        }),
      };
    case "early":
      return { kind: "early", waitMs: row.number ?? 0 };
    case "blocked":
      return { kind: "blocked", untilAt: row.number ?? 0 };
    case "no_permit":
      return { kind: "no_permit", returned: row.number ?? 0 };
  }
}

export const readGranted = (
  row: GrantedRow,
  ids: Pick<GrantedAttempt, "jobId" | "runId">,
): GrantedAttempt => ({
  ...ids,
  attemptsAllowed: row.attempts_allowed,
  scheduledAt: row.scheduled_at,
  startedAt: row.started_at,
  targetUrl: row.target_url,
  payload: row.payload,
  scheduleId: row.schedule_id === null ? null : uuidToId(SCHEDULE_PREFIX, row.schedule_id),
  maxAttempts: row.max_attempts,
  baseSeconds: row.base_seconds,
  capSeconds: row.cap_seconds,
  isTagged: row.is_tagged,
  ...(row.is_keyed ? { isKeyed: true } : {}),
  ...(row.waited_for == null ? {} : { waitedFor: row.waited_for }),
  trace: readTrace(row.trace),
});
