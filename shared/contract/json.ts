import { ApiError, invalidRequest } from "../domain/errors.ts";
import { PAYLOAD_BYTES_MAX } from "../domain/job.ts";

/**
 * Request bodies. The value comes from JSON.parse; a scanner beside it finds what JSON.parse cannot tell: the
 * depth, duplicate members, and the text of the payload as it was written, which is what targets receive
 * (a number beyond double precision would not survive the way through a JavaScript number).
 */

/** Nested containers, the body's own included. */
export const DEPTH_MAX = 64;

/** Where payloads stand in a body: its own member, that of every entry of its member `jobs`, or nowhere. */
export type PayloadPlace = "member" | "each job" | "none";

export interface Body {
  value: unknown;
  /** The whole text, for `canonicalText`. */
  text: string;
  /**
   * The JSON texts of the payloads without insignificant white space, escapes and numbers as written: at index
   * 0 for "member", at the index of the entry for "each job". Where no payload was given there is none.
   */
  payloadTexts: readonly (string | undefined)[];
}

/**
 * Throws invalid_request for what is not JSON, too deep, or has duplicate members, and payload_too_large for a
 * payload of a single job or schedule; those of a batch are judged entry by entry (`checkPayloadSize`).
 */
export function parseBody(bytes: Uint8Array, place: PayloadPlace): Body {
  const text = decode(bytes);
  const scan = scanText(text, place);
  if (scan.depth > DEPTH_MAX) {
    throw invalidRequest(`The body has more than ${DEPTH_MAX} nested objects and arrays.`);
  }
  const value = parse(text);
  // Every colon outside strings is a member of the text; of duplicates only one is a member of the value.
  if (countMembers(value) !== scan.memberCount) {
    const path = findDuplicate(text);
    throw invalidRequest("An object in the body has two members of the same name.", path);
  }
  if (place === "member") checkPayloadSize(scan.payloadTexts[0]);
  return { value, text, payloadTexts: scan.payloadTexts };
}

export function checkPayloadSize(payloadText: string | undefined): void {
  if (payloadText !== undefined && Buffer.byteLength(payloadText) > PAYLOAD_BYTES_MAX) {
    throw new ApiError(
      "payload_too_large",
      `payload must have at most ${PAYLOAD_BYTES_MAX} bytes of JSON text, white space between tokens not counted.`,
      "payload",
    );
  }
}

/**
 * One spelling for all texts of the same JSON value: members sorted, no white space, strings escaped in one way.
 * Numbers keep their text (1.0 is not 1). `text` must have passed `parseBody`.
 */
export function canonicalText(text: string): string {
  return new Canonizer(text).value();
}

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function decode(bytes: Uint8Array): string {
  try {
    return decoder.decode(bytes);
  } catch {
    throw invalidRequest("The body is not valid UTF-8.");
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    // The engine's own message quotes the body, and payloads must not get into errors.
    throw invalidRequest(
      text === "" ? "The body is empty; JSON is expected." : "The body is not valid JSON.",
    );
  }
}

function countMembers(value: unknown): number {
  if (typeof value !== "object" || value === null) return 0;
  let count = 0;
  if (Array.isArray(value)) {
    for (const entry of value) {
      if (typeof entry === "object") count += countMembers(entry);
    }
    return count;
  }
  const members = value as Record<string, unknown>;
  for (const name in members) {
    count++;
    const member = members[name];
    if (typeof member === "object") count += countMembers(member);
  }
  return count;
}

const TAB = 9;
const LINE_FEED = 10;
const CARRIAGE_RETURN = 13;
const SPACE = 32;
const QUOTE = 34;
const COMMA = 44;
const COLON = 58;
const OPEN_BRACKET = 91;
const BACKSLASH = 92;
const CLOSE_BRACKET = 93;
const OPEN_BRACE = 123;
const CLOSE_BRACE = 125;

interface Scan {
  depth: number;
  memberCount: number;
  payloadTexts: (string | undefined)[];
}

/**
 * One pass over a text that need not be JSON: what it finds is used only if JSON.parse accepts the text. It
 * comes first all the same, because JSON.parse takes seconds for millions of brackets.
 */
function scanText(text: string, place: PayloadPlace): Scan {
  const payloadTexts: (string | undefined)[] = [];
  // The depth at which a member named `payload` is a payload: that of the body's own members, or of its jobs'.
  const payloadDepth = place === "member" ? 1 : place === "each job" ? 3 : -1;
  let depth = 0;
  let deepest = 0;
  let memberCount = 0;
  let isInJobs = place === "member";
  let entry = 0;
  let stringStart = 0;
  let stringEnd = 0;
  let payloadStart = -1;
  let hasSpace = false;

  for (let i = 0; i < text.length; i++) {
    switch (text.charCodeAt(i)) {
      case QUOTE:
        stringStart = i;
        i = endOfString(text, i);
        stringEnd = i + 1;
        break;
      case COLON:
        memberCount++;
        if (depth === payloadDepth && isInJobs && isNamed(text, stringStart, stringEnd, "payload")) {
          payloadStart = i + 1;
          hasSpace = false;
        } else if (depth === 1 && place === "each job") {
          isInJobs = isNamed(text, stringStart, stringEnd, "jobs");
        }
        break;
      case OPEN_BRACE:
      case OPEN_BRACKET:
        depth++;
        if (depth > deepest) {
          deepest = depth;
          if (depth > DEPTH_MAX) return { depth, memberCount, payloadTexts };
        }
        break;
      case COMMA:
        if (payloadStart >= 0 && depth === payloadDepth) {
          payloadTexts[entry] = minify(text, payloadStart, i, hasSpace);
          payloadStart = -1;
        } else if (depth === 2 && place === "each job" && isInJobs) {
          entry++;
        }
        break;
      case CLOSE_BRACE:
      case CLOSE_BRACKET:
        if (payloadStart >= 0 && depth === payloadDepth) {
          payloadTexts[entry] = minify(text, payloadStart, i, hasSpace);
          payloadStart = -1;
        }
        depth--;
        break;
      case SPACE:
      case TAB:
      case LINE_FEED:
      case CARRIAGE_RETURN:
        hasSpace = true;
        break;
    }
  }
  return { depth: deepest, memberCount, payloadTexts };
}

/** The index of the quote that ends the string which begins at `start`, or the last index of the text. */
function endOfString(text: string, start: number): number {
  for (let i = start + 1; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code === QUOTE) return i;
    if (code === BACKSLASH) i++;
  }
  return text.length - 1;
}

/** Whether the JSON string from `start` to `end` spells this name, with or without escapes. */
function isNamed(text: string, start: number, end: number, name: string): boolean {
  if (end - start === name.length + 2) return text.startsWith(name, start + 1);
  const spelling = text.slice(start, end);
  if (!spelling.includes("\\")) return false;
  try {
    return JSON.parse(spelling) === name;
  } catch {
    return false;
  }
}

function minify(text: string, start: number, end: number, hasSpace: boolean): string {
  if (!hasSpace) return text.slice(start, end);
  const pieces: string[] = [];
  let pieceStart = start;
  for (let i = start; i < end; i++) {
    const code = text.charCodeAt(i);
    if (code === QUOTE) {
      i = endOfString(text, i);
    } else if (isSpace(code)) {
      if (pieceStart < i) pieces.push(text.slice(pieceStart, i));
      pieceStart = i + 1;
    }
  }
  if (pieceStart < end) pieces.push(text.slice(pieceStart, end));
  return pieces.join("");
}

function isSpace(code: number): boolean {
  return code === SPACE || code === LINE_FEED || code === CARRIAGE_RETURN || code === TAB;
}

/**
 * The path of a duplicate member in a text that is JSON and has one, or that of the payload around it: names
 * inside a payload are the customer's own and do not get into errors.
 */
function findDuplicate(text: string): string {
  const names: (Set<string> | null)[] = [];
  const path: string[] = [];
  let last = "";
  for (let i = 0; i < text.length; i++) {
    switch (text.charCodeAt(i)) {
      case QUOTE: {
        const end = endOfString(text, i);
        last = text.slice(i, end + 1);
        i = end;
        break;
      }
      case OPEN_BRACE:
        names.push(new Set());
        break;
      case OPEN_BRACKET:
        names.push(null);
        path[names.length - 1] = "[0]";
        break;
      case COMMA: {
        const step = path[names.length - 1];
        // In an array the path counts on; in an object the next name will replace this one.
        if (names[names.length - 1] === null && step !== undefined) {
          path[names.length - 1] = `[${Number(step.slice(1, -1)) + 1}]`;
        }
        break;
      }
      case COLON: {
        const name: string = JSON.parse(last);
        path[names.length - 1] = name;
        const seen = names[names.length - 1];
        if (seen?.has(name)) return pathText(path.slice(0, names.length));
        seen?.add(name);
        break;
      }
      case CLOSE_BRACE:
      case CLOSE_BRACKET:
        names.pop();
        break;
    }
  }
  throw new Error("There is no duplicate member in this text.");
}

function pathText(path: readonly string[]): string {
  const payload = path.indexOf("payload");
  const shown = payload === -1 ? path : path.slice(0, payload + 1);
  return shown.reduce(
    (text, step) => (text === "" || step.startsWith("[") ? text + step : `${text}.${step}`),
    "",
  );
}

/** A reader of text that is known to be JSON. Its recursion is bounded by DEPTH_MAX. */
class Canonizer {
  private readonly text: string;
  private at = 0;

  constructor(text: string) {
    this.text = text;
  }

  value(): string {
    this.skipSpace();
    switch (this.text.charCodeAt(this.at)) {
      case OPEN_BRACE:
        return this.object();
      case OPEN_BRACKET:
        return this.array();
      case QUOTE:
        return this.string();
      default:
        return this.word();
    }
  }

  private object(): string {
    const members: { name: string; value: string }[] = [];
    this.at++;
    while (this.skipSpace() !== CLOSE_BRACE) {
      if (this.text.charCodeAt(this.at) === COMMA) {
        this.at++;
        this.skipSpace();
      }
      const name = this.string();
      this.skipSpace();
      this.at++;
      members.push({ name, value: this.value() });
    }
    this.at++;
    members.sort((a, b) => (a.name < b.name ? -1 : 1));
    return `{${members.map(({ name, value }) => `${name}:${value}`).join(",")}}`;
  }

  private array(): string {
    const values: string[] = [];
    this.at++;
    while (this.skipSpace() !== CLOSE_BRACKET) {
      if (this.text.charCodeAt(this.at) === COMMA) this.at++;
      values.push(this.value());
    }
    this.at++;
    return `[${values.join(",")}]`;
  }

  /** The text of a string with escapes only where they are needed, which is how it is without any. */
  private string(): string {
    const end = endOfString(this.text, this.at) + 1;
    const spelling = this.text.slice(this.at, end);
    this.at = end;
    return spelling.includes("\\") ? JSON.stringify(JSON.parse(spelling)) : spelling;
  }

  private word(): string {
    const start = this.at;
    while (this.at < this.text.length && !endsWord(this.text.charCodeAt(this.at))) this.at++;
    return this.text.slice(start, this.at);
  }

  /** Goes on to the next token and tells its first character. */
  private skipSpace(): number {
    while (isSpace(this.text.charCodeAt(this.at))) this.at++;
    return this.text.charCodeAt(this.at);
  }
}

function endsWord(code: number): boolean {
  return code === COMMA || code === CLOSE_BRACE || code === CLOSE_BRACKET || isSpace(code);
}
