import { type TObject, type TSchema, Type } from "@sinclair/typebox";

/** The envelope of every list, newest first. */
export function listOf<Item extends TSchema>(item: Item): TObject {
  return Type.Object(
    { data: Type.Array(item), next_cursor: Type.Union([Type.String(), Type.Null()]) },
    { additionalProperties: false },
  );
}

export interface ListView<Item> {
  data: Item[];
  next_cursor: string | null;
}

/** `nextCursor` is null at the end of the results. */
export function viewList<Item>(data: Item[], nextCursor: string | null): ListView<Item> {
  return { data, next_cursor: nextCursor };
}
