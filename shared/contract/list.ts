import { type TSchema, Type } from "@sinclair/typebox";
import { PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX } from "../domain/page.ts";

/** The envelope of every list, newest first. */
export function listOf<Item extends TSchema>(item: Item, title?: string) {
  return Type.Object(
    {
      data: Type.Array(item),
      next_cursor: Type.Union([Type.String(), Type.Null()], {
        description: "Opaque: the `cursor` of the next page. Null at the end of the results.",
        examples: [NEXT_CURSOR_EXAMPLE],
      }),
    },
    { additionalProperties: false, ...(title === undefined ? {} : { title }) },
  );
}

export const NEXT_CURSOR_EXAMPLE = "AZ8xyz3k1p9Tn0v2m4q6sB8d";

/** The query parameters of every list. */
export const pageParameters = {
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: PAGE_SIZE_MAX,
      default: PAGE_SIZE_DEFAULT,
      description: "How many resources a page holds.",
    }),
  ),
  cursor: Type.Optional(
    Type.String({
      description:
        "The `next_cursor` of the page before, asked for with the same filters. Absent for the first page.",
    }),
  ),
};

export interface ListView<Item> {
  data: Item[];
  next_cursor: string | null;
}

/** `nextCursor` is null at the end of the results. */
export function viewList<Item>(data: Item[], nextCursor: string | null): ListView<Item> {
  return { data, next_cursor: nextCursor };
}

/** The JSON text of a page, in parts. Each item is given as the parts of its own JSON text. */
export function listParts(items: readonly (readonly string[])[], nextCursor: string | null): string[] {
  return ['{"data":[', ...separated(items), `],"next_cursor":${JSON.stringify(nextCursor)}}`];
}

/** The parts of a JSON array's items, with the commas between the items. */
export function separated(items: readonly (readonly string[])[]): string[] {
  return items.flatMap((parts, index) => (index === 0 ? parts : [",", ...parts]));
}
