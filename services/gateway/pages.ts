import { type CursorBinding, decodeCursor, encodeCursor, type MakeTag } from "../../shared/domain/cursor.ts";
import type { Caller } from "../../shared/store/keys.ts";

/** A list as one caller walks it: its cursors work nowhere else. */
export interface Walk {
  /** The id before which the page begins; null for the first page. Throws invalid_request. */
  beforeId: string | null;
  /** How many rows to ask the store for: one more than the page holds tells whether another follows. */
  rowsMax: number;
  /** Cuts the rows to the page. With `isCut` others follow although there are no more rows than the page holds. */
  page<Row extends { id: string }>(
    rows: readonly Row[],
    isCut?: boolean,
  ): { rows: Row[]; nextCursor: string | null };
}

export interface Pager {
  /** `filters` by name; null where there is none. */
  walk(
    route: string,
    caller: Caller,
    query: { pageSize: number; cursor: string | null },
    filters: Record<string, string | null>,
  ): Walk;
}

/** Cursors are made with the first tag, and taken with each of them. */
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
        page(rows, isCut = false) {
          const shown = rows.slice(0, pageSize);
          const last = isCut || rows.length > pageSize ? shown.at(-1) : undefined;
          return { rows: shown, nextCursor: last ? encodeCursor(last.id, binding, makeTags[0]) : null };
        },
      };
    },
  };
}
