import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { createFairQueue } from "./fair-queue.ts";

/**
 * Waits for a turn of the event loop in which no other long work runs. Long work is done in slices, one slice in each turn,
 * so that every request waits for one slice at a time, however many large bodies are being read. The projects take turns: a
 * project with hundreds of requests gets no more slices than one with a single request.
 */
export function nextTurn(projectNo: ProjectNo): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  waiting.add(projectNo, resolve);
  if (!isGiving) {
    isGiving = true;
    setImmediate(giveTurn);
  }
  return promise;
}

/** A process has one event loop and so one queue for it. Each request in progress waits here at most once. */
const waiting = createFairQueue<() => void>();
let isGiving = false;

function giveTurn(): void {
  const begin = waiting.take();
  isGiving = begin !== undefined;
  if (begin === undefined) return;
  begin();
  // The slice runs once this function has returned, so the next one begins in another turn.
  setImmediate(giveTurn);
}

/** Work with many short steps. */
export interface SlicedWork {
  /** Call it after each step. It waits for another turn if the slice has lasted long enough. */
  pause(): Promise<void> | undefined;
}

/** Short, because a request of another project takes several turns and waits for a slice in each of them. */
const SLICE_MS_MAX = 1;

export function startSlicedWork(projectNo: ProjectNo): SlicedWork {
  let begunAt = performance.now();
  return {
    pause() {
      if (performance.now() - begunAt < SLICE_MS_MAX) return undefined;
      return nextTurn(projectNo).then(() => {
        begunAt = performance.now();
      });
    },
  };
}
