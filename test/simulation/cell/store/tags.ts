import { START_SHIFT_MS } from "../../../../shared/domain/run.ts";
import { flowKeyWord, OPEN_STATE } from "../../../../shared/store/queue/job-tags.ts";
import { type Instant, toMs } from "./parameters.ts";
import { attemptKey, type JobRow, type OpenJobRow, type RunRow, type Tables } from "./tables.ts";

/** Tags of jobs and runs, and runs that started at another time than their ids tell (shared/store/queue/job-tags.ts). */

/** The words by which a job is found. */
const wordsOf = (tags: string[] | null, key: string | null): string[] =>
  key === null ? (tags ?? []) : [...(tags ?? []), flowKeyWord(key)];

export function tagJob(
  tables: Tables,
  { id, project_no, environment, region, schedule_id, tags, flow }: JobRow,
): void {
  for (const tag of wordsOf(tags, flow?.key ?? null)) {
    const row = { project_no, environment, region, job_id: id, tag };
    tables.job_tags.set(attemptKey(id, tag), { ...row, schedule_id });
    tables.job_tag_states.set(attemptKey(id, tag), { ...row, state: OPEN_STATE });
  }
}

/** Gives the job's words the status with which it ended; null if it is open again. */
export function moveTags(
  tables: Tables,
  { id, tags, flow_key }: Pick<OpenJobRow, "id" | "tags" | "flow_key">,
  status: number | null,
): void {
  for (const tag of wordsOf(tags, flow_key)) {
    const row = tables.job_tag_states.get(attemptKey(id, tag));
    if (row !== undefined) row.state = status ?? OPEN_STATE;
  }
}

export function tagRun(tables: Tables, run: RunRow, tags: string[] | null): void {
  const { id, project_no, environment, status, schedule_id } = run;
  for (const tag of tags ?? [])
    tables.run_tags.set(attemptKey(id, tag), { id, project_no, environment, status, schedule_id, tag });
}

/** How far a run's start is from the instant that its id tells. */
export const shiftMsOf = (runId: string, startedAt: Instant): number =>
  Math.abs(toMs(startedAt) - Number.parseInt(runId.replaceAll("-", "").slice(0, 12), 16));

export function noteShiftedRun(tables: Tables, run: RunRow, tags: string[] | null): void {
  const { id, project_no, environment, status, schedule_id, started_at } = run;
  if (shiftMsOf(id, started_at) <= START_SHIFT_MS) return;
  tables.shifted_runs.set(id, { id, project_no, environment, status, schedule_id, tags, started_at });
}
