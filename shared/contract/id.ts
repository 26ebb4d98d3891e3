import { type TString, Type } from "@sinclair/typebox";
import { ID_BODY_PATTERN } from "../domain/ids.ts";

/** An id as the service writes it. */
export function idOf(prefix: string, description: string): TString {
  return Type.String({
    pattern: `^${prefix}${ID_BODY_PATTERN.source.slice(1)}`,
    description,
    examples: [`${prefix}01arz3ndektsv4rrffq69g5fav`],
  });
}
