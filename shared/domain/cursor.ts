import { invalidRequest } from "./errors.ts";
import type { Environment, ProjectNo } from "./scope.ts";

/**
 * Cursors: where the next page of a list begins, bound to the list it came from. The text is the base64url of
 * an authentication tag and the position; what it is bound to is not in it but under the tag, so that a cursor
 * used with another route, project, environment or filter fails exactly like an altered one.
 */

/** The list that a cursor belongs to. The page size is not part of it: it may change on the way. */
export interface CursorBinding {
  /** Method and path, such as `GET /v2/jobs`. */
  route: string;
  projectNo: ProjectNo;
  environment: Environment;
  /** The filters in force by name; absent ones left out. */
  filters: Readonly<Record<string, string>>;
}

/** A keyed authentication code of the bytes (HMAC-SHA256), of which the first TAG_BYTES are used. */
export type MakeTag = (bytes: Uint8Array) => Uint8Array;

const TAG_BYTES = 16;
const CURSOR_LENGTH_MAX = 512;
const BASE64URL_PATTERN = /^[A-Za-z0-9_-]+$/;

/** `position` is the id of the last item of the page. */
export function encodeCursor(position: string, binding: CursorBinding, makeTag: MakeTag): string {
  const tag = makeTag(boundBytes(position, binding)).subarray(0, TAG_BYTES);
  return Buffer.concat([tag, Buffer.from(position)]).toString("base64url");
}

/**
 * The position. Throws invalid_request for a cursor that this service did not make for exactly this list, with one of the
 * keys of the tags.
 */
export function decodeCursor(text: string, binding: CursorBinding, ...makeTags: MakeTag[]): string {
  if (text.length <= CURSOR_LENGTH_MAX && BASE64URL_PATTERN.test(text)) {
    const position = Buffer.from(text, "base64url").toString("utf8", TAG_BYTES);
    // To make it again and compare the whole text leaves an altered cursor no second spelling to hide in.
    const isMadeWith = (makeTag: MakeTag) => isEqual(text, encodeCursor(position, binding, makeTag));
    if (makeTags.some(isMadeWith)) return position;
  }
  throw invalidRequest("cursor must be the next_cursor of an answer of this same list, unaltered.", "cursor");
}

function boundBytes(position: string, { route, projectNo, environment, filters }: CursorBinding): Uint8Array {
  const named = Object.entries(filters).sort(([a], [b]) => (a < b ? -1 : 1));
  return Buffer.from(JSON.stringify([route, projectNo, environment, named, position]));
}

/** Looks at every character whatever it finds, so that the time it takes tells nothing about the tag. */
function isEqual(a: string, b: string): boolean {
  let difference = a.length ^ b.length;
  for (let i = 0; i < a.length; i++) difference |= a.charCodeAt(i) ^ b.charCodeAt(i);
  return difference === 0;
}
