import { invalidRequest } from "./errors.ts";
import type { Environment, ProjectNo } from "./scope.ts";

/**
 * A cursor tells where the next page of a list begins, and works only with the list that it came from. Its text is the
 * base64url of an authentication tag and the position. The tag also covers the route, project, environment and filters, so
 * that a cursor fails with any others exactly like an altered one.
 */

/** The list that a cursor belongs to. The page size may change from page to page, so it is left out. */
export interface CursorBinding {
  /** Method and path, such as `GET /v2/jobs`. */
  route: string;
  projectNo: ProjectNo;
  environment: Environment;
  /** The filters in force, by name. */
  filters: Readonly<Record<string, string>>;
}

/** Makes a keyed authentication code of the bytes (HMAC-SHA256); the first TAG_BYTES of it are used. */
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
 * Returns the position. Throws invalid_request unless this service made the cursor for exactly this list, with one of the
 * keys behind `makeTags`.
 */
export function decodeCursor(text: string, binding: CursorBinding, ...makeTags: MakeTag[]): string {
  if (text.length <= CURSOR_LENGTH_MAX && BASE64URL_PATTERN.test(text)) {
    const position = Buffer.from(text, "base64url").toString("utf8", TAG_BYTES);
    // The cursor is made again and compared as a whole, because base64url can spell the same bytes in several ways.
    const isMadeWith = (makeTag: MakeTag) => isEqual(text, encodeCursor(position, binding, makeTag));
    if (makeTags.some(isMadeWith)) return position;
  }
  throw invalidRequest("cursor must be the next_cursor of an answer of this same list, unaltered.", "cursor");
}

function boundBytes(position: string, { route, projectNo, environment, filters }: CursorBinding): Uint8Array {
  const named = Object.entries(filters).sort(([a], [b]) => (a < b ? -1 : 1));
  return Buffer.from(JSON.stringify([route, projectNo, environment, named, position]));
}

/** Always compares all characters, so that the time tells nothing about the tag. */
function isEqual(a: string, b: string): boolean {
  let difference = a.length ^ b.length;
  for (let i = 0; i < a.length; i++) difference |= a.charCodeAt(i) ^ b.charCodeAt(i);
  return difference === 0;
}
