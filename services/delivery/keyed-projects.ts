import type { ProjectNo } from "../../shared/domain/scope.ts";

/** A project counts as one that uses flow keys for so long after an attempt of a job with a key was claimed. */
const KEPT_MS = 60_000;

/** Which projects use flow keys, as far as this node has met their jobs: one number for each. Others are never asked for keys. */
export function createKeyedProjects() {
  const until = new Map<ProjectNo, number>();
  return {
    note(project: ProjectNo): void {
      until.set(project, performance.now() + KEPT_MS);
    },
    has(project: ProjectNo): boolean {
      const end = until.get(project);
      if (end === undefined) return false;
      if (end > performance.now()) return true;
      until.delete(project);
      return false;
    },
  };
}
