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

/** The decision on a claim. Instants are milliseconds since 1970 by the database's clock. */
export type Claimed<Granted = GrantedAttempt> =
  | { kind: "granted"; attempt: Granted }
  /** Not owed any more: sent, canceled or over. */
  | { kind: "gone" }
  /** Not due yet, or put off by a gate, or the free permits are kept for a class that has been called. */
  | { kind: "early"; waitMs: number; putOffFor?: WaitReason | undefined }
  /** All permits of the project are in use, and its flow notes that this region waits. `returned` permits have ever come back. */
  | { kind: "no_permit"; returned: number }
  /** The month's quota is used up, or an operator holds the project. */
  | { kind: "blocked"; untilAt: number };

/** Everything that sending needs, so that the claim is the only query before dialling. */
export interface GrantedAttempt {
  jobId: string;
  /** The claim's run id, or the one that a manual retry had already been answered with. */
  runId: string;
  attemptsAllowed: number;
  /** When the attempt was due, for `Service-Scheduled-At`. */
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
  /** The places of its flow key, if the key has a limit and the statement tells. */
  key?: KeyPlaces;
  /** The kind of gate at which the attempt waited last; left out if it did not wait. */
  waitedFor?: WaitReason | undefined;
  /** The trace that the attempt belongs to, null for none. */
  trace: TraceContext | null;
}

/** How many attempts of a flow key may be in flight at once. The key is known by a hash of it (keyHashOf). */
export interface KeyPlaces {
  hash: number;
  count: number;
}

/** Thrown to a node that was declared dead: this claim and all later ones of the node are refused. */
export class NodeDeclaredDead extends Error {}

/**
 * Claims many attempts in one self-committing statement (claim-statement.ts): permit, quota, run and start, all or nothing for each.
 *
 * A claim whose answer was lost is made again. An attempt that this node has taken already is granted once more, and still
 * counts once; parked_due_at keeps its due time until it is over. So the caller asks only for jobs of which the node has
 * nothing on the wire, and for each job once in a statement. Answers come in the order of the claims.
 *
 * A second statement claims in projects with endpoints that hear of the quota (quota-events.ts) or with watched hosts
 * (host-gates.ts), and for jobs with a flow key (flow-gates.ts). It tells the endpoints if a run reaches a threshold of the
 * quota; the sweeps find these deliveries. `onCalled` gets the attempts that it let start next; the sweeps find these as well.
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

/** The first statement alone. A claim that it leaves to the second has null. */
export async function claimMost(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
): Promise<(Claimed | null)[]> {
  const { answers, isLeft } = await ask(db, "claim", CLAIM, nodeId, claims);
  return isLeft ? answers : answers.map((answer) => answer ?? { kind: "gone" });
}

/** Gets the attempts at the gates of flow keys and hosts that a statement made due. */
export type OnCalled = (owed: Placed<OwedAttempt>[]) => void;

/** The second statement alone. It decides any claims, at more cost. */
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

// Few projects have hosts that are not well, and each has few. A host that goes down after this query lets the attempt pass, as
// if it had been claimed before.
const FIND_WATCHED = `
SELECT CASE WHEN EXISTS (SELECT FROM target_hosts t WHERE t.project_no = i.project_no AND t.environment = i.environment AND t.state IS NOT NULL)
            THEN (SELECT j.target_url FROM jobs j
                   WHERE j.project_no = i.project_no AND j.environment = i.environment AND j.region = i.region AND j.id = i.job_id) END AS target_url
  FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::uuid[])
       WITH ORDINALITY AS i (project_no, environment, region, job_id, n)
 ORDER BY i.n`;

/** The answers in the order of the claims, null for none. `isLeft`: CLAIM_WHOLE may answer some of those with null. */
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
  // A node that lives gets one row more than there are verdicts. A dead node gets no row.
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
   * By kind: milliseconds to wait, permits returned, or an instant. In the node's row: 1 if claims were left for CLAIM_WHOLE,
   * otherwise 0.
   */
  number: number | null;
  job_id: string;
  run_id: string;
  /** In the node's row: the attempts that flow keys and hosts let start next. */
  called?: CalledRow[] | null;
}

/** Everything that sending needs, as a statement answers it. */
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
  key_hash?: number | null;
  key_places?: number | null;
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
      return { kind: "early", waitMs: row.number ?? 0, ...(row.waited_for && { putOffFor: row.waited_for }) };
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
  ...(row.key_hash == null || row.key_places == null
    ? {}
    : { key: { hash: row.key_hash, count: row.key_places } }),
  ...(row.waited_for == null ? {} : { waitedFor: row.waited_for }),
  trace: readTrace(row.trace),
});
