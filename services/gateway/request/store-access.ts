import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { StoreUnavailable } from "../../../shared/store/database/database.ts";
import { createFairQueue, type FairQueue } from "./fair-queue.ts";

/**
 * Admits a gateway's requests to its connections to Postgres, except those that share their statements. Each project has a
 * few requests there at once, its others wait, and the projects take turns: a project with expensive requests delays only
 * itself.
 */
export interface StoreAccess {
  /**
   * Runs `act` when the turn has come, unless `isWanted` says that the request has its answer or its client has gone.
   * Large requests take turns of their own, and the others go past them.
   */
  enter<Result>(
    projectNo: ProjectNo,
    isWanted: () => boolean,
    act: () => Promise<Result>,
    isLarge?: boolean,
  ): Promise<Result>;
  /**
   * How many requests wait while all places are taken. Requests that wait only for their own project or for large ones do
   * not count.
   */
  crowdedOut(): number;
}

/** How many requests are in Postgres at once. */
export interface StoreRequestsMax {
  ofProject: number;
  ofAll: number;
  large: number;
}

/** Requests of one size that wait, and how many of them are in Postgres. */
interface Requests {
  waiting: FairQueue<() => void>;
  waitingCount: number;
  count: number;
}

export function createStoreAccess(max: StoreRequestsMax): StoreAccess {
  const large: Requests = { waiting: createFairQueue(), waitingCount: 0, count: 0 };
  const others: Requests = { waiting: createFairQueue(), waitingCount: 0, count: 0 };
  const counts = new Map<ProjectNo, number>();

  const hasPlace = (projectNo: ProjectNo) => (counts.get(projectNo) ?? 0) < max.ofProject;
  const isFull = () => large.count + others.count >= max.ofAll;

  function admit(): void {
    while (!isFull()) {
      // A large request takes its place only with the place of its project. If it took one and waited for the other, it
      // would keep the large requests of all projects waiting.
      const firstLarge = large.count < max.large ? large.waiting.take(hasPlace) : undefined;
      const begin = firstLarge ?? others.waiting.take(hasPlace);
      if (begin === undefined) return;
      begin();
    }
  }

  function leave(projectNo: ProjectNo, among: Requests): void {
    among.count--;
    const left = (counts.get(projectNo) ?? 0) - 1;
    if (left > 0) counts.set(projectNo, left);
    else counts.delete(projectNo);
    admit();
  }

  return {
    crowdedOut: () =>
      isFull() ? others.waitingCount + Math.min(large.waitingCount, max.large - large.count) : 0,
    async enter(projectNo, isWanted, act, isLarge = false) {
      const among = isLarge ? large : others;
      const { promise: admitted, resolve } = Promise.withResolvers<void>();
      among.waitingCount++;
      among.waiting.add(projectNo, () => {
        among.waitingCount--;
        among.count++;
        counts.set(projectNo, (counts.get(projectNo) ?? 0) + 1);
        resolve();
      });
      admit();
      await admitted;
      try {
        if (!isWanted()) throw new StoreUnavailable("nobody waits for the answer any more");
        return await act();
      } finally {
        leave(projectNo, among);
      }
    },
  };
}
