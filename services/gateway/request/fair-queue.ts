import type { ProjectNo } from "../../../shared/domain/scope.ts";

/** A queue in which the projects take turns, however many items each of them has waiting. */
export interface FairQueue<Item> {
  add(projectNo: ProjectNo, item: Item): void;
  /** Takes out the first item of the next project that `mayGo`; undefined if there is none. */
  take(mayGo?: (projectNo: ProjectNo) => boolean): Item | undefined;
}

export function createFairQueue<Item>(): FairQueue<Item> {
  /** The projects with waiting items, in the order of their turns. */
  const rows = new Map<ProjectNo, Item[]>();
  return {
    add(projectNo, item) {
      const row = rows.get(projectNo);
      if (row === undefined) rows.set(projectNo, [item]);
      else row.push(item);
    },
    take(mayGo = () => true) {
      for (const [projectNo, row] of rows) {
        if (!mayGo(projectNo)) continue;
        rows.delete(projectNo);
        const item = row.shift();
        if (row.length > 0) rows.set(projectNo, row);
        return item;
      }
      return undefined;
    },
  };
}
