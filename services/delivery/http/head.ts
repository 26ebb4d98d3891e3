import type { AnswerHeaders } from "../../../shared/domain/run.ts";
import { AnswerFault } from "./fault.ts";
import { decideFraming, type Framing } from "./framing.ts";

/** The complete head of an answer, as far as it is used. */
export interface AnswerHead {
  status: number;
  headers: AnswerHeaders;
  framing: Framing;
  /** Whether the target lets the connection be used again once the answer is complete. */
  isPersistent: boolean;
  /** How long the target says that it keeps an idle connection; null if it does not say. */
  keepAliveMs: number | null;
}

const STATUS_LINE_START = "HTTP/1.";
const STATUS_LINE = /^HTTP\/1\.([0-9]) ([0-9]{3})(?: [\t\x20-\x7e\x80-\xff]*)?$/;
const STATUS_MIN = 100;
const KEEP_ALIVE_TIMEOUT = /(?:^|[\s,;])timeout *= *"?([0-9]{1,6})(?![0-9])/i;

/** The headers that are read, in lower case. All others are only checked for a form that could be read in two ways. */
const WANTED = new Set([
  ...["connection", "content-length", "transfer-encoding", "keep-alive"],
  ...["content-encoding", "location", "retry-after", "service-no-retry"],
]);
const WANTED_LENGTHS = new Set([...WANTED].map((name) => name.length));

const SPACE = 32;
const TAB = 9;
const COLON = 58;
const DELETE = 127;
/** RFC 9110, section 5.6.2. */
const IS_TOKEN = Array.from({ length: 256 }, (_, byte) =>
  /[!#$%&'*+\-.^_`|~0-9A-Za-z]/.test(String.fromCharCode(byte)),
);

const NOT_HTTP = "The target's answer does not match the HTTP/1.1 protocol";

/** Reads the head of an answer, line by line. */
export class HeadReader {
  private minor = -1;
  private status = 0;
  private names: string[] = [];
  private values: string[] = [];
  /** Whether the last field is one of the headers that are read. Null before the first field. */
  private isLastWanted: boolean | null = null;

  begin(): void {
    this.minor = -1;
    this.names = [];
    this.values = [];
    this.isLastWanted = null;
  }

  /** Null until the head is complete. */
  readLine(bytes: Buffer, start: number, end: number): AnswerHead | null {
    if (this.minor < 0) this.readStatusLine(bytes.toString("latin1", start, end));
    else if (start === end) return this.complete();
    else if (isBlank(bytes[start])) this.fold(bytes, start, end);
    else this.readField(bytes, start, end);
    return null;
  }

  /** Refuses an incomplete line that cannot become a status line any more, without waiting for its end. */
  checkBeginning(bytes: Buffer, start: number, end: number): void {
    if (this.minor >= 0) return;
    const beginning = bytes.toString("latin1", start, Math.min(end, start + STATUS_LINE_START.length));
    if (!STATUS_LINE_START.startsWith(beginning)) throw new AnswerFault(`${NOT_HTTP}: it begins otherwise.`);
  }

  private readStatusLine(line: string): void {
    const parts = STATUS_LINE.exec(line);
    if (parts === null) throw new AnswerFault(`${NOT_HTTP}: its status line is none.`);
    this.minor = Number(parts[1]);
    this.status = Number(parts[2]);
    if (this.status < STATUS_MIN) {
      throw new AnswerFault("The target answered with a status below 100, which HTTP does not have.");
    }
  }

  /** RFC 9112, section 5. */
  private readField(bytes: Buffer, start: number, end: number): void {
    let at = start;
    while (at < end && IS_TOKEN[bytes[at] ?? 0]) at++;
    if (at === start || at === end || bytes[at] !== COLON) {
      throw new AnswerFault(`${NOT_HTTP}: a header's name is none.`);
    }
    checkValue(bytes, at + 1, end);
    const name = WANTED_LENGTHS.has(at - start) ? bytes.toString("latin1", start, at).toLowerCase() : "";
    this.isLastWanted = WANTED.has(name);
    if (!this.isLastWanted) return;
    this.names.push(name);
    this.values.push(readValue(bytes, at + 1, end));
  }

  /** RFC 9112, section 5.2: a line that begins with a blank goes on with the value of the one before. */
  private fold(bytes: Buffer, start: number, end: number): void {
    if (this.isLastWanted === null)
      throw new AnswerFault(`${NOT_HTTP}: a blank stands before its first header.`);
    checkValue(bytes, start, end);
    if (!this.isLastWanted) return;
    const more = readValue(bytes, start, end);
    const last = this.values.length - 1;
    if (more !== "") this.values[last] = this.values[last] === "" ? more : `${this.values[last]} ${more}`;
  }

  private complete(): AnswerHead {
    const { status } = this;
    const transferEncoding = this.listOf("transfer-encoding");
    const contentLength = this.listOf("content-length");
    const framing = decideFraming(status, transferEncoding, contentLength);
    const connection = this.listOf("connection");
    const isClosing =
      connection
        ?.toLowerCase()
        .split(/[\s,]+/)
        .includes("close") ?? false;
    const keepAlive = this.listOf("keep-alive");
    const timeout = keepAlive === null ? undefined : KEEP_ALIVE_TIMEOUT.exec(keepAlive)?.[1];
    return {
      status,
      headers: {
        location: this.first("location"),
        retryAfter: this.first("retry-after"),
        serviceNoRetry: this.first("service-no-retry"),
        contentEncoding: this.listOf("content-encoding"),
      },
      framing,
      isPersistent: this.minor === 1 && !isClosing && framing.kind !== "until-close" && !framing.isDoubtful,
      keepAliveMs: timeout === undefined ? null : Number(timeout) * 1_000,
    };
  }

  private first(name: string): string | null {
    return this.values[this.names.indexOf(name)] ?? null;
  }

  /** RFC 9110, section 5.3: fields of one name are one list. */
  private listOf(name: string): string | null {
    let list: string | null = null;
    for (let place = 0; place < this.names.length; place++) {
      if (this.names[place] !== name) continue;
      const value = this.values[place] ?? "";
      list = list === null ? value : `${list}, ${value}`;
    }
    return list;
  }
}

/** RFC 9110, section 5.5: no control character but the tab. A lone CR is a control character. */
function checkValue(bytes: Buffer, start: number, end: number): void {
  for (let at = start; at < end; at++) {
    const byte = bytes[at] ?? 0;
    if ((byte < SPACE && byte !== TAB) || byte === DELETE) {
      throw new AnswerFault(`${NOT_HTTP}: a header holds a control character.`);
    }
  }
}

function readValue(bytes: Buffer, from: number, to: number): string {
  let start = from;
  let end = to;
  while (start < end && isBlank(bytes[start])) start++;
  while (end > start && isBlank(bytes[end - 1])) end--;
  return bytes.toString("utf8", start, end);
}

const isBlank = (byte: number | undefined) => byte === SPACE || byte === TAB;
