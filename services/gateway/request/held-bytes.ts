import { ApiError } from "../../../shared/domain/errors.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import type { PacedAnswer } from "./errors.ts";

/** Counts the bytes that are in memory for clients, of each project and of all together. */
export interface HeldBytes {
  /**
   * Does something that holds up to so many bytes, and then those of its answer, but at least `leastBytes`, until the client
   * has taken it. Throws service_unavailable where so many are not to be had.
   */
  hold(
    projectNo: ProjectNo,
    bytes: number,
    act: () => Promise<PacedAnswer>,
    leastBytes?: number,
  ): Promise<PacedAnswer>;
}

/** So many of one project, and of all together; `always` a project may have, whatever the others hold. */
interface HeldBytesMax {
  ofProject: number;
  ofAll: number;
  always: number;
}

export function createHeldBytes(max: HeldBytesMax): HeldBytes {
  const ofProjects = new Map<ProjectNo, number>();
  let ofAll = 0;

  function add(projectNo: ProjectNo, bytes: number): void {
    ofAll += bytes;
    const sum = (ofProjects.get(projectNo) ?? 0) + bytes;
    if (sum > 0) ofProjects.set(projectNo, sum);
    else ofProjects.delete(projectNo);
  }

  return {
    async hold(projectNo, bytes, act, leastBytes = 0) {
      const ofProject = (ofProjects.get(projectNo) ?? 0) + bytes;
      // What needs none is not refused, although a correction may have gone beyond.
      if (bytes > 0 && ofProject > (ofAll + bytes > max.ofAll ? max.always : max.ofProject)) {
        throw new ApiError("service_unavailable", "The service is overloaded.");
      }
      let held = bytes;
      const holdNow = (now: number) => {
        add(projectNo, now - held);
        held = now;
      };
      add(projectNo, bytes);
      try {
        const answer = await act();
        const { large } = answer;
        holdNow(large === undefined ? 0 : Math.max(large.byteCount, leastBytes));
        void large?.taken.then(() => holdNow(0));
        return answer;
      } catch (error) {
        holdNow(0);
        throw error;
      }
    },
  };
}
