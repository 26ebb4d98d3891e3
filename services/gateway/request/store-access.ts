import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { StoreUnavailable } from "../../../shared/store/database/database.ts";
import { createFairQueue } from "./fair-queue.ts";

/**
 * Admits a gateway's requests to its connections to Postgres, except those that share their statements. Each project has a
 * few requests there at once, its others wait, and the projects take turns: a project with expensive requests delays only
 * itself.
 */
export interface StoreAccess {
  /** Runs `act` when the turn has come, unless `isWanted` says that the request has its answer or its client has gone. */
  enter<Result>(projectNo: ProjectNo, isWanted: () => boolean, act: () => Promise<Result>): Promise<Result>;
  /** How many requests wait while all places are taken. Requests that wait only for their own project do not count. */
  crowdedOut(): number;
}

export function createStoreAccess(max: { ofProject: number; ofAll: number }): StoreAccess {
  const waiting = createFairQueue<() => void>();
  const counts = new Map<ProjectNo, number>();
  let count = 0;
  let waitingCount = 0;

  const hasPlace = (projectNo: ProjectNo) => (counts.get(projectNo) ?? 0) < max.ofProject;

  function admit(): void {
    while (count < max.ofAll) {
      const begin = waiting.take(hasPlace);
      if (begin === undefined) return;
      begin();
    }
  }

  function leave(projectNo: ProjectNo): void {
    count--;
    const left = (counts.get(projectNo) ?? 0) - 1;
    if (left > 0) counts.set(projectNo, left);
    else counts.delete(projectNo);
    admit();
  }

  return {
    crowdedOut: () => (count < max.ofAll ? 0 : waitingCount),
    async enter(projectNo, isWanted, act) {
      const { promise: admitted, resolve } = Promise.withResolvers<void>();
      waitingCount++;
      waiting.add(projectNo, () => {
        waitingCount--;
        count++;
        counts.set(projectNo, (counts.get(projectNo) ?? 0) + 1);
        resolve();
      });
      admit();
      await admitted;
      try {
        if (!isWanted()) throw new StoreUnavailable("nobody waits for the answer any more");
        return await act();
      } finally {
        leave(projectNo);
      }
    },
  };
}
