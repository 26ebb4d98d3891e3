import type { ProjectNo } from "../../shared/domain/scope.ts";

/** For how long at least, and twice as long at most, a project is known by the jobs that it had. */
const REMEMBERED_MS = 1_000;

const nothing = () => ({ keyed: new Set<ProjectNo>(), ordinary: new Set<ProjectNo>() });

/** The projects that have lately had jobs with a flow key as well as jobs without one. It remembers those of two seconds at most. */
export class MixedProjects {
  private seen = nothing();
  private seenBefore = this.seen;
  private since: number;

  constructor(private readonly steadyNow = () => performance.now()) {
    this.since = steadyNow();
  }

  /** The project has had a job, with a flow key or without one. */
  note(projectNo: ProjectNo, kind: "keyed" | "ordinary"): void {
    const now = this.steadyNow();
    if (now > this.since + REMEMBERED_MS) {
      this.seenBefore = now > this.since + 2 * REMEMBERED_MS ? nothing() : this.seen;
      this.seen = nothing();
      this.since = now;
    }
    this.seen[kind].add(projectNo);
  }

  has(projectNo: ProjectNo): boolean {
    return this.hasSeen(projectNo, "keyed") && this.hasSeen(projectNo, "ordinary");
  }

  private hasSeen(projectNo: ProjectNo, kind: "keyed" | "ordinary"): boolean {
    return this.seen[kind].has(projectNo) || this.seenBefore[kind].has(projectNo);
  }
}
