import type { ProjectNo } from "../../shared/domain/scope.ts";
import { Lately } from "./lately.ts";

/** For how long at least, and twice as long at most, a project is known by the jobs that it had. */
const REMEMBERED_MS = 1_000;

/** The projects that have lately had jobs with a flow key as well as jobs without one. */
export class MixedProjects {
  private readonly seen: Record<"keyed" | "ordinary", Lately<ProjectNo>>;

  constructor(steadyNow?: () => number) {
    this.seen = {
      keyed: new Lately(REMEMBERED_MS, steadyNow),
      ordinary: new Lately(REMEMBERED_MS, steadyNow),
    };
  }

  /** The project has had a job, with a flow key or without one. */
  note(projectNo: ProjectNo, kind: "keyed" | "ordinary"): void {
    this.seen[kind].note(projectNo);
  }

  has(projectNo: ProjectNo): boolean {
    return this.seen.keyed.has(projectNo) && this.seen.ordinary.has(projectNo);
  }
}
