import { JobPage } from "./job.tsx";
import { JobList } from "./list.tsx";
import { NewJobPage } from "./new.tsx";

/** `jobs`, `jobs/new` and `jobs/{id}`. */
export function JobsPage({ rest: [id] }: { rest: readonly string[] }) {
  if (id === undefined) return <JobList />;
  return id === "new" ? <NewJobPage /> : <JobPage id={id} />;
}
