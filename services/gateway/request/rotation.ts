import type { ProjectNo } from "../../../shared/domain/scope.ts";

/** What waits, in a row for each project. The projects take turns, however many each of them has waiting. */
export interface Rotation<Item> {
  add(projectNo: ProjectNo, item: Item): void;
  /** Takes out the first item of the next project that `mayGo`; undefined if there is none. */
  take(mayGo?: (projectNo: ProjectNo) => boolean): Item | undefined;
}

export function createRotation<Item>(): Rotation<Item> {
  /** In the order of their turns. A project that has nothing waiting is not in it. */
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
