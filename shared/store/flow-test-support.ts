import { randomBytes } from "node:crypto";
import { idToUuid, JOB_PREFIX, uuidToId } from "../domain/ids.ts";
import type { ProjectNo } from "../domain/scope.ts";
import type { Claim, Claimed, GrantedAttempt } from "./queue/claim.ts";
import type { Settled, Settlement } from "./queue/settle.ts";
import { claimShortFirst, settlementOf, settleShortFirst, type TestStore } from "./test-support.ts";

/** Jobs of flow keys as tests of the store claim and settle them, in the words of a node. */

export const scopeOf = (projectNo: ProjectNo) => ({ projectNo, environment: "production" as const });
/** The same with what a retry by hand asks for. */
export const retainedScopeOf = (projectNo: ProjectNo) => ({ ...scopeOf(projectNo), sinceAt: 0 });
export const newKey = () => `key-${randomBytes(6).toString("hex")}`;

export interface Running {
  claim: Claim;
  granted: GrantedAttempt;
}
export const idsOf = (running: readonly Running[]) => running.map(({ granted }) => granted.jobId);

export interface FlowSteps {
  /** The jobs of the project that are due in their lanes, the oldest first. */
  due(project: ProjectNo): Promise<string[]>;
  /** The jobs of the project that are parked, in the order of their gate. */
  parked(project: ProjectNo): Promise<string[]>;
  /** Claims these jobs, with the attempt that each owes. */
  claim(project: ProjectNo, jobs: readonly string[]): Promise<{ claims: Claim[]; answers: Claimed[] }>;
  /** Claims all due attempts, as workers do. Answers the granted ones. */
  start(project: ProjectNo): Promise<Running[]>;
  settle(running: Running, wish?: Partial<Settlement>): Promise<Settled>;
}

export function flowSteps(store: TestStore, nodeId: number): FlowSteps {
  const jobIds = async (text: string, project: ProjectNo) => {
    const rows = await store.query<{ job_id: string }>(text, [project]);
    return rows.map(({ job_id }) => uuidToId(JOB_PREFIX, job_id));
  };
  const steps: FlowSteps = {
    due: (project) =>
      jobIds(
        "SELECT job_id FROM open_jobs WHERE project_no = $1 AND due_at <= now() + interval '1 ms' ORDER BY due_at, job_id",
        project,
      ),
    parked: (project) =>
      jobIds(
        "SELECT job_id FROM open_jobs WHERE project_no = $1 AND due_at IS NULL AND node_id IS NULL ORDER BY parked_due_at, job_id",
        project,
      ),
    async claim(project, jobs) {
      const rows = await store.query<{ job_id: string; attempt: number }>(
        "SELECT job_id, attempt FROM open_jobs WHERE project_no = $1",
        [project],
      );
      const attempts = new Map(rows.map((row) => [row.job_id, row.attempt]));
      const claims = jobs.map((id) =>
        store.claimOf(project, id, { attempt: attempts.get(idToUuid(id)) ?? 1 }),
      );
      return { claims, answers: await claimShortFirst(store.db, nodeId, claims) };
    },
    async start(project) {
      const { claims, answers } = await steps.claim(project, await steps.due(project));
      return answers.flatMap((answer, index) =>
        answer.kind === "granted" ? [{ claim: claims[index] as Claim, granted: answer.attempt }] : [],
      );
    },
    settle: (running, wish = {}) => settleShortFirst(store.db, [settlementOf(running, wish)]),
  };
  return steps;
}
