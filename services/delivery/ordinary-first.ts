import type { ProjectNo } from "../../shared/domain/scope.ts";
import { type Gathering, inBatches } from "./attempt-kind.ts";

/**
 * If the short way has left all items of a project, the project goes the long way for this long. Otherwise a project at
 * its limit, or one with endpoints, would pay for both statements each time.
 */
export const LONG_WAY_MS = 1_000;
/**
 * On a busy node the items of the short way gather for this long. The long way gathers nothing: projects at their limit
 * go there, and they wait for the next settlement and the next claim.
 */
const GATHER_MS = 5;

/**
 * Asks the short way (store/queue/claim-ordinary.ts, settle-ordinary.ts), and the long way about the items that the
 * short way leaves. Each way has batches of its own: neither waits for the other, and a batch that fails has taken
 * effect for none of its items.
 */
export function ordinaryFirst<Item extends { projectNo: ProjectNo }, Answer>(ways: {
  /** The answer is null for an item that the short way leaves. */
  ordinary(items: Item[]): Promise<(Answer | null)[]>;
  long(item: Item): Promise<Answer>;
  gathering?: Gathering<NoInfer<Item>>;
}): { submit(item: Item): Promise<Answer> } {
  /** Until when a project goes the long way: one number for each project that was left and has not come again since. */
  const longWayUntil = new Map<ProjectNo, number>();

  function noteLeft(items: readonly Item[], answers: readonly unknown[]): void {
    const left = new Set(items.map(({ projectNo }) => projectNo));
    for (const [index, item] of items.entries()) if (answers[index] !== null) left.delete(item.projectNo);
    const now = performance.now();
    for (const projectNo of left) longWayUntil.set(projectNo, now + LONG_WAY_MS);
  }

  const ordinary = inBatches(
    async (items: Item[]) => {
      const answers = await ways.ordinary(items);
      noteLeft(items, answers);
      return answers;
    },
    { gatherMs: GATHER_MS, ...ways.gathering },
  );

  return {
    async submit(item) {
      const until = longWayUntil.get(item.projectNo);
      if (until !== undefined && until > performance.now()) return ways.long(item);
      if (until !== undefined) longWayUntil.delete(item.projectNo);
      return (await ordinary.submit(item)) ?? ways.long(item);
    },
  };
}
