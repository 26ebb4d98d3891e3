import { START_SHIFT_MS } from "../../../../shared/domain/run.ts";
import { OPEN_STATE } from "../../../../shared/store/queue/job-tags.ts";
import { toMs } from "./parameters.ts";
import { attemptKey, type JobRow, type Place, type RunRow, type Tables } from "./tables.ts";

/** Tags of jobs and runs, and runs that started at another time than their ids tell (shared/store/queue/job-tags.ts). */

export function tagJob(
  tables: Tables,
  { id, project_no, environment, region, schedule_id, tags }: JobRow,
): void {
  for (const tag of tags ?? []) {
    const row = { project_no, environment, region, job_id: id, tag };
    tables.job_tags.set(attemptKey(id, tag), { ...row, schedule_id });
    tables.job_tag_states.set(attemptKey(id, tag), { ...row, state: OPEN_STATE });
  }
}

/** Gives the job's tags the state of how it ended; null if it is open again. */
export function moveTags(
  tables: Tables,
  { id, tags }: Place & { id: string; tags: string[] | null },
  status: number | null,
): void {
  for (const tag of tags ?? []) {
    const row = tables.job_tag_states.get(attemptKey(id, tag));
    if (row !== undefined) row.state = status ?? OPEN_STATE;
  }
}

export function tagRun(tables: Tables, run: RunRow, tags: string[] | null): void {
  const { id, project_no, environment, status, schedule_id } = run;
  for (const tag of tags ?? [])
    tables.run_tags.set(attemptKey(id, tag), { id, project_no, environment, status, schedule_id, tag });
}

export function noteShiftedRun(tables: Tables, run: RunRow, tags: string[] | null): void {
  const { id, project_no, environment, status, schedule_id, started_at } = run;
  const idMs = Number.parseInt(id.replaceAll("-", "").slice(0, 12), 16);
  if (Math.abs(toMs(started_at) - idMs) <= START_SHIFT_MS) return;
  tables.shifted_runs.set(id, { id, project_no, environment, status, schedule_id, tags, started_at });
}
