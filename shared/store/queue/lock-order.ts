import type { ProjectNo } from "../../domain/scope.ts";

/** Items in the order in which a statement locks their jobs, and the projects whose flows it locks before. */
export interface LockOrder<Item> {
  /** Each project once, in the order of its flow. */
  projects: { no: ProjectNo; itemCount: number }[];
  /** In the order of the jobs' ids. */
  ordered: OrderedItem<Item>[];
}

export interface OrderedItem<Item> {
  item: Item;
  /** Its place among the items as they came. */
  index: number;
  /** The place of its project among the projects, counted from 1 as Postgres does. */
  projectPlace: number;
}

/** Puts items in order here, since a statement that finds them in order needs to sort nothing. */
export function inLockOrder<Item extends { projectNo: ProjectNo; jobId: string }>(
  items: readonly Item[],
): LockOrder<Item> {
  const counts = new Map<ProjectNo, number>();
  for (const { projectNo } of items) counts.set(projectNo, (counts.get(projectNo) ?? 0) + 1);
  const projects = [...counts].map(([no, itemCount]) => ({ no, itemCount })).sort((a, b) => a.no - b.no);
  const places = new Map(projects.map(({ no }, place) => [no, place + 1]));
  const ordered = items
    .map((item, index) => ({
      item,
      index,
      projectPlace: places.get(item.projectNo) ?? 0,
    }))
    // The order of ids' texts is that of their bits.
    .sort((a, b) => (a.item.jobId < b.item.jobId ? -1 : 1));
  return { projects, ordered };
}
