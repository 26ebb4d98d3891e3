import { untilAllEnded } from "../flow/support.ts";
import { startCell } from "../support/cell.ts";

/**
 * A program that sends a job to each URL in its arguments, and prints the runs and the number of returned permits. It
 * is a process of its own because a process reads the authorities that it trusts at its start.
 */

export interface CertifiedRuns {
  /** The runs of each job, in the order of the URLs. */
  runs: {
    status: string;
    responseStatus: number | null;
    error: string | null;
    durationMs: number | null;
  }[][];
  permits: { in_use: number; returned: number } | undefined;
}

const urls = process.argv.slice(2);
const cell = await startCell();
await cell.startWorker();
await cell.startDelivery();
const project = await cell.addProject();
const ids = await cell.addJobs(
  project,
  urls.map((targetUrl) => ({ targetUrl, maxAttempts: 2 })),
);
await untilAllEnded(cell, project, ids);
const [permits] = await cell.db.run<{ in_use: number; returned: number }>(
  "permits_of_project",
  "SELECT production_jobs::int AS in_use, returned::int AS returned FROM flows WHERE project_no = $1",
  [project.no],
);
const runs = await Promise.all(ids.map((id) => cell.runs(project, id)));
console.log(JSON.stringify({ runs, permits } satisfies CertifiedRuns));
await cell.stop();
process.exit(0);
