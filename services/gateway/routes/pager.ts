import { listParts } from "../../../shared/contract/list.ts";
import {
  type CursorBinding,
  decodeCursor,
  encodeCursor,
  type MakeTag,
} from "../../../shared/domain/cursor.ts";
import type { IdFilter } from "../../../shared/domain/page.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import type { Caller } from "../../../shared/store/resources/callers.ts";
import { startSlicedWork } from "../request/sliced-work.ts";

/** A list as one caller reads it page by page. Its cursors work in no other list. */
export interface Walk {
  /** The id before which the page begins; null for the first page. Throws invalid_request. */
  beforeId: string | null;
  /** How many rows to ask the store for: one more than the page holds, which tells whether another page follows. */
  rowsMax: number;
  /**
   * Cuts the rows to the page. `isCut` says that more follow although the page holds all rows given: after the last of them,
   * or from `endId` on.
   */
  page<Row extends { id: string }>(
    rows: readonly Row[],
    isCut?: boolean,
    endId?: string,
  ): { rows: Row[]; nextCursor: string | null };
}

export interface Pager {
  /** `filters` by name; null for one that is not given. */
  walk(
    route: string,
    caller: Caller,
    query: { pageSize: number; cursor: string | null },
    filters: Record<string, string | null>,
  ): Walk;
}

/** Makes cursors with the first tag, and accepts those made with any of them. */
export function createPager(...makeTags: [MakeTag, ...MakeTag[]]): Pager {
  return {
    walk(route, { project, environment }, { pageSize, cursor }, filters) {
      const inForce = Object.entries(filters).filter((entry): entry is [string, string] => entry[1] !== null);
      const binding: CursorBinding = {
        route,
        projectNo: project.no,
        environment,
        filters: Object.fromEntries(inForce),
      };
      return {
        beforeId: cursor === null ? null : decodeCursor(cursor, binding, ...makeTags),
        rowsMax: pageSize + 1,
        page(rows, isCut = false, endId) {
          const shown = rows.slice(0, pageSize);
          const lastId = shown.at(-1)?.id;
          const end = rows.length > pageSize ? lastId : isCut ? (endId ?? lastId) : undefined;
          return { rows: shown, nextCursor: end ? encodeCursor(end, binding, makeTags[0]) : null };
        },
      };
    },
  };
}

/** The rows of a list whose filters can match nothing. */
export const NOTHING = { rows: [], endId: null };

/** The smaller of two ids of one kind, where null is greater than any. */
export function earlierId(one: string | null, other: string | null): string | null {
  if (one === null || other === null) return one ?? other;
  return one < other ? one : other;
}

export const textOrNull = (number: number | null): string | null => (number === null ? null : String(number));

export const idOrNull = (filter: IdFilter): string | null => (filter.kind === "one" ? filter.id : null);

/** The text that binds cursors to an id filter. It is empty if no id fits, which keeps other lists' cursors out. */
export function filterText(filter: IdFilter): string | null {
  switch (filter.kind) {
    case "any":
      return null;
    case "none":
      return "";
    case "one":
      return filter.id;
  }
}

/** The JSON text of a page that may be long, in parts, made in slices. */
export async function pageText<Row>(
  { rows, nextCursor }: { rows: readonly Row[]; nextCursor: string | null },
  partsOf: (row: Row) => string[],
  projectNo: ProjectNo,
): Promise<string[]> {
  const work = startSlicedWork(projectNo);
  const items: string[][] = [];
  for (const row of rows) {
    items.push(partsOf(row));
    await work.pause();
  }
  return listParts(items, nextCursor);
}
