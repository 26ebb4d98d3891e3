import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { createRotation } from "./rotation.ts";

/**
 * Long work is done in slices, and each turn of the event loop has one of them, whosever it is: every request waits for
 * one slice at a time, however many large bodies are being read. The projects take turns, so that one with hundreds of
 * requests gets no more slices than one with a single request.
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

/** The event loop is one for the process, and so is this. Each request in progress waits here at most once. */
const waiting = createRotation<() => void>();
let isGiving = false;

function giveTurn(): void {
  const begin = waiting.take();
  isGiving = begin !== undefined;
  if (begin === undefined) return;
  begin();
  // The slice runs once this function has returned, so the next one begins in another turn.
  setImmediate(giveTurn);
}

/** Work of which each step is short, and of which there may be many. */
export interface SlicedWork {
  /** Called after each step. It waits for another turn where the slice has lasted long enough. */
  pause(): Promise<void> | undefined;
}

/** A neighbour's request takes several turns of the event loop, and waits for a slice in each of them. */
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
