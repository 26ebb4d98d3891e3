import { ApiError } from "../../../shared/domain/errors.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import type { ReadyAnswer } from "./answer.ts";

/** Counts the bytes that requests hold in memory, for each project and for all together. */
export interface HeldBytes {
  /**
   * Runs `act`, which holds up to `bytes`. Then the bytes of a large answer are held until its client has taken it, or
   * `leastBytes` if those are more. Throws service_unavailable if so many bytes are not free.
   */
  hold(
    projectNo: ProjectNo,
    bytes: number,
    act: () => Promise<ReadyAnswer>,
    leastBytes?: number,
  ): Promise<ReadyAnswer>;
}

/** The most bytes of one project, and of all together. A project may always have `always`, whatever the others hold. */
interface HeldBytesMax {
  ofProject: number;
  ofAll: number;
  always: number;
}

export function createHeldBytes(max: HeldBytesMax): HeldBytes {
  const ofProjects = new Map<ProjectNo, number>();
  let ofAll = 0;

  function add(projectNo: ProjectNo, bytes: number): void {
    if (bytes === 0) return;
    ofAll += bytes;
    const sum = (ofProjects.get(projectNo) ?? 0) + bytes;
    if (sum > 0) ofProjects.set(projectNo, sum);
    else ofProjects.delete(projectNo);
  }

  return {
    async hold(projectNo, bytes, act, leastBytes = 0) {
      const ofProject = (ofProjects.get(projectNo) ?? 0) + bytes;
      // A request that needs no bytes is never refused, although an answer larger than expected may have used up the limit.
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
