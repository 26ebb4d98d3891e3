import type { ProjectNo } from "../../shared/domain/scope.ts";
import { inBatches } from "./attempt-kind.ts";

/**
 * A project of which the statement for what is ordinary left everything is not asked about there for so long: a project at its
 * limit, or one with endpoints, would pay for both statements each time.
 */
export const APART_MS = 1_000;
/**
 * On a busy node ordinary items gather for so long. The other way gathers nothing: projects at their limit go there, and
 * what they wait for is the next settlement and the next claim.
 */
const GATHER_MS = 5;

/**
 * Asks the statement for what is ordinary (store/queue/claim-ordinary.ts, settle-ordinary.ts) and, for what it leaves, the one
 * for all. Each has batches of its own: neither waits for the other, and one that fails has taken effect for none of its items.
 */
export function ordinaryFirst<Item extends { projectNo: ProjectNo }, Answer>(ways: {
  /** Null is what is left. */
  ordinary(items: Item[]): Promise<(Answer | null)[]>;
  any(item: Item): Promise<Answer>;
}): { submit(item: Item): Promise<Answer> } {
  /** Until when a project goes the other way: one number for each project that was left and has not come again since. */
  const apartUntil = new Map<ProjectNo, number>();

  function noteApart(items: readonly Item[], answers: readonly unknown[]): void {
    const left = new Set(items.map(({ projectNo }) => projectNo));
    for (const [index, item] of items.entries()) if (answers[index] !== null) left.delete(item.projectNo);
    const now = performance.now();
    for (const projectNo of left) apartUntil.set(projectNo, now + APART_MS);
  }

  const ordinary = inBatches(async (items: Item[]) => {
    const answers = await ways.ordinary(items);
    noteApart(items, answers);
    return answers;
  }, GATHER_MS);

  return {
    async submit(item) {
      const until = apartUntil.get(item.projectNo);
      if (until !== undefined && until > performance.now()) return ways.any(item);
      if (until !== undefined) apartUntil.delete(item.projectNo);
      return (await ordinary.submit(item)) ?? ways.any(item);
    },
  };
}
