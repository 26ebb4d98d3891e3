import { payloadTooLarge } from "../domain/body.ts";
import { invalidRequest } from "../domain/errors.ts";
import { PAYLOAD_BYTES_MAX } from "../domain/job.ts";
import { NotJson } from "./json-fault.ts";
import { findRepeated, unescapeString } from "./json-names.ts";
import { WordReader } from "./json-word.ts";

/** How deeply objects and arrays may be nested, the outermost one counted. */
export const DEPTH_MAX = 64;

/** The place of a body's payloads: its member `payload`, the member `payload` of each entry of `jobs`, or none. */
export type PayloadPlace = "member" | "each job" | "none";

/** A body taken apart. Its texts lack insignificant white space; escapes and numbers stay as they were written. */
export interface Scan {
  /** The body, in which an empty object or array replaces each payload that is one. */
  shellText: string;
  /** At index 0 for "member", at the index of the entry for "each job". Undefined where no payload was given. */
  payloadTexts: (string | undefined)[];
  /** The indexes of payloads over PAYLOAD_BYTES_MAX; their texts are not kept. */
  largePayloads: Set<number>;
}

/**
 * Bounds of the shell. A batch of 100 jobs with every field in each has 2,702 values and far fewer characters, so a body
 * beyond these bounds is invalid anyway, and reading stops there.
 */
export const SHELL_VALUES_MAX = 4_000;
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

/** The states, by what the scanner expects next. */
const VALUE = 0;
const VALUE_OR_END = 1;
const NAME = 2;
const NAME_OR_END = 3;
const NAME_END = 4;
const COMMA_OR_END = 5;
/** The scanner is within a string: STRING is a value, NAME_STRING is a name. */
const STRING = 6;
const NAME_STRING = 7;
/** The scanner is within a long number. */
const WORD = 8;

/** The words for what JSON must have next, by the scanner's state. In a string that is a closing quote. */
const EXPECTED: Readonly<Record<number, string>> = {
  [VALUE]: "a value",
  [VALUE_OR_END]: "a value or ]",
  [NAME]: "a name in double quotes",
  [NAME_OR_END]: "a name in double quotes or }",
  [NAME_END]: "a colon",
};

/**
 * Reads JSON text (RFC 8259) in slices, so that other requests are served while a large body is read.
 *
 * It checks payloads without making values of them: JSON.parse would enter their names into a hash table (json-names.ts).
 */
export class JsonScanner {
  private readonly text: string;
  private readonly place: PayloadPlace;
  /** The depth at which a member named `payload` is a payload: that of the body's own members, or of its jobs'. */
  private readonly payloadDepth: number;

  private at = 0;
  private state = VALUE;
  private depth = 0;
  /** For the container open at each depth: whether it is an object, and how many of its commas were read. */
  private readonly isObject: boolean[] = [];
  private readonly commaCounts: number[] = [];
  /** The names of all open objects, outermost first. `nameStarts` holds the index at which each depth begins. */
  private readonly names: string[] = [];
  private readonly nameStarts: number[] = [];
  private readonly words = new WordReader();
  private stringStart = 0;
  private hasEscape = false;

  /** The text read so far of the shell or of the open payload, cut at white space. The last piece begins at `pieceStart`. */
  private pieces: string[] = [];
  private pieceStart = 0;
  private length = 0;
  private lengthMax = SHELL_CHARACTERS_MAX;
  /** The shell so far, while a payload is open. */
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
   * Reads on by about `charactersMax`. Returns null until all is read, then the scan. Throws NotJson for text that is not
   * JSON, invalid_request for too deep nesting, for duplicate members and for a shell beyond its bounds, and payload_too_large
   * as soon as the payload of a "member" is too long.
   */
  read(charactersMax: number): Scan | null {
    const { text } = this;
    const until = Math.min(text.length, this.at + charactersMax);
    while (this.at < until) {
      if (this.state < STRING) this.readToken(text.charCodeAt(this.at));
      else if (this.state === WORD) this.readWord();
      else this.readString(until);
    }
    if (this.at < text.length) return null;
    if (this.state !== COMMA_OR_END || this.depth > 0) throw this.notJson();
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
        if (state !== COMMA_OR_END && state !== NAME_OR_END) throw this.notJson();
        this.close(true);
        break;
      case CLOSE_BRACKET:
        if (state !== COMMA_OR_END && state !== VALUE_OR_END) throw this.notJson();
        this.close(false);
        break;
      case COMMA:
        if (state !== COMMA_OR_END || depth === 0) throw this.notJson();
        if (depth === this.payloadDepth && this.shell !== null) this.endPayload(this.shell);
        this.commaCounts[depth] = (this.commaCounts[depth] ?? 0) + 1;
        this.state = this.isObject[depth] ? NAME : VALUE;
        break;
      case COLON:
        if (state !== NAME_END) throw this.notJson();
        this.state = VALUE;
        if (depth === this.payloadDepth && this.isAtPayload()) this.beginPayload();
        break;
      default:
        this.beginValue();
        this.readWord();
        return;
    }
    this.at++;
  }

  private readWord(): void {
    this.at = this.words.read(this.text, this.at);
    this.state = this.words.isOpen ? WORD : COMMA_OR_END;
    if (this.state === WORD) this.checkLength();
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
        at = this.endOfEscape(at);
        this.hasEscape = true;
      } else if (code < SPACE) {
        throw new NotJson(at, "an escape for this control character");
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
    if (this.state !== VALUE && this.state !== VALUE_OR_END) throw this.notJson();
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
    if (depth === 0 || this.isObject[depth] !== isObject) throw this.notJson();
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
    // Only characters were counted so far, and a character may have several bytes.
    if (Buffer.byteLength(text) > PAYLOAD_BYTES_MAX) this.refuseLength();
    if (!this.isTooLarge) this.payloadTexts[this.entry()] = text;
    shell.pieces.push(this.isTooLarge || text.startsWith("{") ? "{}" : text.startsWith("[") ? "[]" : text);
    this.pieces = shell.pieces;
    this.length = shell.length;
    this.lengthMax = SHELL_CHARACTERS_MAX;
    this.shell = null;
    this.isTooLarge = false;
  }

  /** The index of the open payload. */
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

  /** Reading goes on in a batch, because each of its entries is judged. The rest of this payload is not kept. */
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

  private endOfEscape(start: number): number {
    ESCAPE.lastIndex = start;
    if (!ESCAPE.test(this.text)) throw new NotJson(start, "a valid escape");
    return ESCAPE.lastIndex;
  }

  private notJson(): NotJson {
    const { state, depth } = this;
    if (state !== COMMA_OR_END) return new NotJson(this.at, EXPECTED[state] ?? "a closing quote");
    const end = this.isObject[depth] ? "}" : "]";
    return new NotJson(this.at, depth === 0 ? "the end" : `a comma or ${end}`);
  }

  /** The latest name in the object that is open at this depth. */
  private nameAt(depth: number): string {
    const end = depth < this.depth ? this.nameStarts[depth + 1] : this.names.length;
    return this.names[(end ?? 0) - 1] ?? "";
  }

  /** The path to the value being read at this depth. It ends at a payload, because the names within are customer data. */
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

const ESCAPE = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;
