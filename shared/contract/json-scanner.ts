import { ApiError, invalidRequest } from "../domain/errors.ts";
import { PAYLOAD_BYTES_MAX } from "../domain/job.ts";

/** Nested containers, the body's own included. */
export const DEPTH_MAX = 64;

/** Where payloads stand in a body: its own member, that of every entry of its member `jobs`, or nowhere. */
export type PayloadPlace = "member" | "each job" | "none";

/** What a body is made of. All texts are without insignificant white space, escapes and numbers as written. */
export interface Scan {
  /** The body; where a payload is an object or an array, an empty one stands in its place. */
  shellText: string;
  /** At index 0 for "member", at the index of the entry for "each job"; where no payload was given there is none. */
  payloadTexts: (string | undefined)[];
  /** The indexes of payloads of more than PAYLOAD_BYTES_MAX, whose texts are not kept. */
  largePayloads: Set<number>;
}

/**
 * Bounds of what stands outside of payloads. A batch of 100 jobs with every field in each has 902 values, and all its
 * fields together are far shorter: what has more is no valid request, and is not read to its end.
 */
export const SHELL_VALUES_MAX = 2_000;
const SHELL_CHARACTERS_MAX = 4_194_304;

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

/** What comes next. */
const VALUE = 0;
const VALUE_OR_END = 1;
const NAME = 2;
const NAME_OR_END = 3;
const NAME_END = 4;
const COMMA_OR_END = 5;
/** Where it is within a string, or within one that is a name. */
const STRING = 6;
const NAME_STRING = 7;

/**
 * Reads JSON text (RFC 8259) in slices, so that a large body holds up no other request for as long as it takes to read.
 *
 * Payloads are judged and not made into values: the engine keeps names in tables under a hash that everybody can compute,
 * so a payload of names that all have the same one would keep JSON.parse, or any Set or Map of them, busy for seconds.
 */
export class JsonScanner {
  private readonly text: string;
  private readonly place: PayloadPlace;
  /** The depth at which a member named `payload` is one: that of the body's own members, or of its jobs'. */
  private readonly payloadDepth: number;

  private at = 0;
  private state = VALUE;
  private depth = 0;
  /** Of what is open at each depth: whether it is an object, and the commas that it has had. */
  private readonly isObject: boolean[] = [];
  private readonly commaCounts: number[] = [];
  /** The names of all open objects, the outermost's first; `nameStarts` tells where those of each depth begin. */
  private readonly names: string[] = [];
  private readonly nameStarts: number[] = [];
  private stringStart = 0;
  private hasEscape = false;

  /** What has been read of the shell, or of the payload that is open, cut at white space. The last piece is open. */
  private pieces: string[] = [];
  private pieceStart = 0;
  private length = 0;
  private lengthMax = SHELL_CHARACTERS_MAX;
  /** The shell, while a payload is open. */
  private shell: { pieces: string[]; length: number } | null = null;
  private shellValueCount = 0;
  private isTooLarge = false;
  private readonly payloadTexts: (string | undefined)[] = [];
  private readonly largePayloads = new Set<number>();

  constructor(text: string, place: PayloadPlace) {
    this.text = text;
    this.place = place;
    this.payloadDepth = place === "member" ? 1 : place === "each job" ? 3 : -1;
  }

  /**
   * Reads about so many characters on. Answers with what was found once all is read, before that with null. Throws
   * invalid_request for what is not JSON, is too deep, has duplicate members or more than the shell may have, and
   * payload_too_large for a "member" at the first character too much.
   */
  read(charactersMax: number): Scan | null {
    const { text } = this;
    const until = Math.min(text.length, this.at + charactersMax);
    while (this.at < until) {
      if (this.state >= STRING) this.readString(until);
      else this.readToken(text.charCodeAt(this.at));
    }
    if (this.at < text.length) return null;
    if (this.state !== COMMA_OR_END || this.depth > 0) throw notJson(text);
    this.endPiece();
    const { payloadTexts, largePayloads } = this;
    return { shellText: this.pieces.join(""), payloadTexts, largePayloads };
  }

  private readToken(code: number): void {
    this.checkLength();
    const { state, depth } = this;
    switch (code) {
      case SPACE:
      case TAB:
      case LINE_FEED:
      case CARRIAGE_RETURN:
        this.endPiece();
        this.pieceStart = this.at + 1;
        break;
      case QUOTE:
        this.beginString();
        break;
      case OPEN_BRACE:
      case OPEN_BRACKET:
        this.open(code === OPEN_BRACE);
        break;
      case CLOSE_BRACE:
        if (state !== COMMA_OR_END && state !== NAME_OR_END) throw notJson(this.text);
        this.close(true);
        break;
      case CLOSE_BRACKET:
        if (state !== COMMA_OR_END && state !== VALUE_OR_END) throw notJson(this.text);
        this.close(false);
        break;
      case COMMA:
        if (state !== COMMA_OR_END || depth === 0) throw notJson(this.text);
        if (depth === this.payloadDepth && this.shell !== null) this.endPayload(this.shell);
        this.commaCounts[depth] = (this.commaCounts[depth] ?? 0) + 1;
        this.state = this.isObject[depth] ? NAME : VALUE;
        break;
      case COLON:
        if (state !== NAME_END) throw notJson(this.text);
        this.state = VALUE;
        if (depth === this.payloadDepth && this.isAtPayload()) this.beginPayload();
        break;
      default:
        this.beginValue();
        this.at = endOfMatch(WORD, this.text, this.at);
        this.state = COMMA_OR_END;
        return;
    }
    this.at++;
  }

  private beginString(): void {
    this.stringStart = this.at;
    this.hasEscape = false;
    if (this.state === NAME || this.state === NAME_OR_END) {
      this.state = NAME_STRING;
    } else {
      this.beginValue();
      this.state = STRING;
    }
  }

  private readString(until: number): void {
    const { text } = this;
    let at = this.at;
    while (at < until) {
      const code = text.charCodeAt(at);
      if (code === QUOTE) {
        this.at = at + 1;
        this.endString();
        return;
      }
      if (code === BACKSLASH) {
        at = endOfMatch(ESCAPE, text, at);
        this.hasEscape = true;
      } else if (code < SPACE) {
        throw notJson(text);
      } else {
        at++;
      }
    }
    this.at = at;
    this.checkLength();
  }

  private endString(): void {
    this.checkLength();
    const isName = this.state === NAME_STRING;
    this.state = isName ? NAME_END : COMMA_OR_END;
    if (!isName || this.isTooLarge) return;
    const name = this.text.slice(this.stringStart + 1, this.at - 1);
    this.names.push(this.hasEscape ? unescapeString(name) : name);
  }

  private beginValue(): void {
    if (this.state !== VALUE && this.state !== VALUE_OR_END) throw notJson(this.text);
    if (this.shell !== null) return;
    this.shellValueCount++;
    if (this.shellValueCount > SHELL_VALUES_MAX) {
      const message = `The body has more than ${SHELL_VALUES_MAX} values outside of payloads.`;
      throw invalidRequest(message, this.path(this.depth - 1) || undefined);
    }
  }

  private open(isObject: boolean): void {
    this.beginValue();
    const depth = ++this.depth;
    if (depth > DEPTH_MAX) {
      throw invalidRequest(`The body has more than ${DEPTH_MAX} nested objects and arrays.`);
    }
    this.isObject[depth] = isObject;
    this.commaCounts[depth] = 0;
    this.nameStarts[depth] = this.names.length;
    this.state = isObject ? NAME_OR_END : VALUE_OR_END;
  }

  private close(isObject: boolean): void {
    const { depth, names } = this;
    if (depth === 0 || this.isObject[depth] !== isObject) throw notJson(this.text);
    if (depth === this.payloadDepth && this.shell !== null) this.endPayload(this.shell);
    const start = this.nameStarts[depth] ?? 0;
    const repeated = findRepeated(names, start);
    if (repeated !== null) {
      names.push(repeated);
      throw invalidRequest("An object in the body has two members of the same name.", this.path(depth));
    }
    names.length = start;
    this.depth--;
    this.state = COMMA_OR_END;
  }

  private isAtPayload(): boolean {
    if (this.shell !== null || this.names[this.names.length - 1] !== "payload") return false;
    return this.place === "member" || (this.nameAt(1) === "jobs" && !this.isObject[2]);
  }

  private beginPayload(): void {
    this.length += this.at + 1 - this.pieceStart;
    this.pieces.push(this.text.slice(this.pieceStart, this.at + 1));
    this.pieceStart = this.at + 1;
    this.shell = { pieces: this.pieces, length: this.length };
    this.pieces = [];
    this.length = 0;
    this.lengthMax = PAYLOAD_BYTES_MAX;
  }

  private endPayload(shell: { pieces: string[]; length: number }): void {
    this.endPiece();
    this.pieceStart = this.at;
    const text = this.pieces.join("");
    // Up to here characters were counted, of which each has a byte or more.
    if (Buffer.byteLength(text) > PAYLOAD_BYTES_MAX) this.refuseLength();
    if (!this.isTooLarge) this.payloadTexts[this.entry()] = text;
    shell.pieces.push(this.isTooLarge || text.startsWith("{") ? "{}" : text.startsWith("[") ? "[]" : text);
    this.pieces = shell.pieces;
    this.length = shell.length;
    this.lengthMax = SHELL_CHARACTERS_MAX;
    this.shell = null;
    this.isTooLarge = false;
  }

  /** The index that the payload which is open has among all. */
  private entry(): number {
    return this.place === "member" ? 0 : (this.commaCounts[2] ?? 0);
  }

  private endPiece(): void {
    const { pieceStart, at } = this;
    if (pieceStart === at) return;
    this.length += at - pieceStart;
    if (!this.isTooLarge) this.pieces.push(this.text.slice(pieceStart, at));
  }

  private checkLength(): void {
    if (this.length + this.at - this.pieceStart > this.lengthMax) this.refuseLength();
  }

  /** Of a batch every entry is judged, so what follows is read, but nothing more is kept of this payload. */
  private refuseLength(): void {
    if (this.shell === null) {
      throw invalidRequest(`The body has more than ${SHELL_CHARACTERS_MAX} characters outside of payloads.`);
    }
    if (this.place === "member") throw payloadTooLarge();
    this.largePayloads.add(this.entry());
    this.isTooLarge = true;
    this.pieces = [];
    this.lengthMax = Number.POSITIVE_INFINITY;
  }

  /** The last name that the object open at this depth has had. */
  private nameAt(depth: number): string {
    const end = depth < this.depth ? this.nameStarts[depth + 1] : this.names.length;
    return this.names[(end ?? 0) - 1] ?? "";
  }

  /** The path to what is being read at this depth, or to the payload around it: names in there are the customer's own. */
  private path(depthMax: number): string {
    const last = this.shell === null ? depthMax : Math.min(depthMax, this.payloadDepth);
    let path = "";
    for (let depth = 1; depth <= last; depth++) {
      if (!this.isObject[depth]) path += `[${this.commaCounts[depth]}]`;
      else path += path === "" ? this.nameAt(depth) : `.${this.nameAt(depth)}`;
    }
    return path;
  }
}

const WORD = /true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const ESCAPE = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;

/** Where the match that begins at `start` ends. Throws invalid_request if there is none. */
function endOfMatch(pattern: RegExp, text: string, start: number): number {
  pattern.lastIndex = start;
  if (!pattern.test(text)) throw notJson(text);
  return pattern.lastIndex;
}

/** Strings that are longer than these are not entered into any table. */
const TABLED_CHARACTERS_MAX = 256;

/**
 * What stands between the quotes of a JSON string, without its escapes. JSON.parse enters short strings into the table of
 * all names, where thousands of the same hash would wait for each other.
 */
export function unescapeString(text: string): string {
  if (text.length > TABLED_CHARACTERS_MAX) return JSON.parse(`"${text}"`);
  return text.replaceAll(/\\(?:u(....)|(.))/g, (_escape, hex: string | undefined, letter: string) =>
    hex === undefined ? (CONTROLS[letter] ?? letter) : String.fromCharCode(Number.parseInt(hex, 16)),
  );
}

const CONTROLS: Readonly<Record<string, string>> = { b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };

/** To compare each with each takes less than to sort, where there are no more than these. */
const COMPARED_EACH_MAX = 8;

/** A name that comes twice from `start` on. */
function findRepeated(names: readonly string[], start: number): string | null {
  if (names.length - start <= COMPARED_EACH_MAX) {
    for (let one = start + 1; one < names.length; one++) {
      for (let other = start; other < one; other++) {
        if (names[one] === names[other]) return names[one] ?? null;
      }
    }
    return null;
  }
  const sorted = names.slice(start).sort();
  return sorted.find((name, index) => index > 0 && name === sorted[index - 1]) ?? null;
}

export function payloadTooLarge(): ApiError {
  return new ApiError(
    "payload_too_large",
    `payload must have at most ${PAYLOAD_BYTES_MAX} bytes of JSON text, white space between tokens not counted.`,
    "payload",
  );
}

function notJson(text: string): ApiError {
  return invalidRequest(text === "" ? "The body is empty; JSON is expected." : "The body is not valid JSON.");
}
