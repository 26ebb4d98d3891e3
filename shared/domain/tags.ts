import { invalidRequest } from "./errors.ts";

/** Tags: words by which customers find their jobs. A schedule gives its tags to the jobs that it creates. */

export const TAGS_MAX = 10;
export const TAG_CHARACTERS_MAX = 64;
export const TAG_PATTERN = new RegExp(`^[A-Za-z0-9_.:/@+-]{1,${TAG_CHARACTERS_MAX}}$`);

export const TAG_CHARACTERS = "letters (A-Z, a-z), digits and _ . : / @ + -";

/** Checks what the type leaves open: the characters of each tag, and that none is given twice. Throws invalid_request. */
export function checkTags(tags: readonly string[]): void {
  for (const [index, tag] of tags.entries()) {
    const param = `tags[${index}]`;
    if (!TAG_PATTERN.test(tag)) {
      throw invalidRequest(`${param} must be 1 to ${TAG_CHARACTERS_MAX} ${TAG_CHARACTERS}.`, param);
    }
    if (tags.indexOf(tag) !== index) throw invalidRequest(`${param} is given twice.`, param);
  }
}

/** The tag that a list is filtered by, null if it is absent. Throws invalid_request for a text that no job can have. */
export function tagFilterOf(tag: string | undefined): string | null {
  if (tag === undefined || TAG_PATTERN.test(tag)) return tag ?? null;
  throw invalidRequest(
    `tag must be 1 to ${TAG_CHARACTERS_MAX} ${TAG_CHARACTERS}. In a query string a + is written as %2B.`,
    "tag",
  );
}
