import { resourceNotFound } from "../../../shared/domain/errors.ts";
import { parseId } from "../../../shared/domain/ids.ts";

/** Reads an id in a path. Throws resource_not_found for a text that cannot be an id of this kind. */
export function readPathId(prefix: string, text: string): string {
  const id = parseId(prefix, text);
  if (id === null) throw resourceNotFound();
  return id;
}
