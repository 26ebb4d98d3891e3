import { AnswerFault } from "./fault.ts";

/** How much a target may send of interim answers, status line, fields and trailers of one answer together. */
export const HEAD_BYTES_MAX = 65_536;

const CR = 13;
const LF = 10;
const PART_BYTES_MIN = 256;

/**
 * Finds the lines of an answer in the pieces that arrive. A line is read in place, unless it came in several pieces.
 * RFC 9112, section 2.2: a line ends with CR and LF.
 */
export class LineReader {
  /** The line that was found last is `bytes` from `start` to `end`, without its CR and LF. */
  bytes: Buffer = NOTHING;
  start = 0;
  end = 0;
  /** The beginning of a line whose end has not come. */
  private part: Buffer = NOTHING;
  private partBytes = 0;
  private totalBytes = 0;

  /** Forgets everything, for the next answer. */
  begin(): void {
    this.partBytes = 0;
    this.totalBytes = 0;
  }

  /** The position after the next line, or -1 if its end has not come: then the whole chunk has been taken. */
  next(chunk: Buffer, from: number): number {
    const newline = chunk.indexOf(LF, from);
    const behind = newline < 0 ? chunk.length : newline + 1;
    this.totalBytes += behind - from;
    if (this.totalBytes > HEAD_BYTES_MAX) {
      throw new AnswerFault(`The target sent more than ${HEAD_BYTES_MAX} bytes of headers.`);
    }
    if (newline < 0 || this.partBytes > 0) this.keep(chunk, from, behind);
    if (newline < 0) {
      this.show(this.part, 0, this.partBytes);
      return -1;
    }
    if (this.partBytes > 0) this.show(this.part, 0, this.partBytes - 1);
    else this.show(chunk, from, newline);
    this.partBytes = 0;
    if (this.end === this.start || this.bytes[this.end - 1] !== CR) {
      throw new AnswerFault("The target answered with a line that does not end with CR and LF.");
    }
    this.end--;
    return behind;
  }

  /** Lets go of the arrived bytes, and keeps only the beginning of a line whose end has not come. */
  release(): void {
    this.bytes = NOTHING;
    if (this.partBytes === 0) this.part = NOTHING;
  }

  private show(bytes: Buffer, start: number, end: number): void {
    this.bytes = bytes;
    this.start = start;
    this.end = end;
  }

  private keep(chunk: Buffer, from: number, to: number): void {
    const needed = this.partBytes + to - from;
    if (needed > this.part.length) {
      const larger = Buffer.allocUnsafe(Math.max(PART_BYTES_MIN, Math.min(2 * needed, HEAD_BYTES_MAX)));
      this.part.copy(larger, 0, 0, this.partBytes);
      this.part = larger;
    }
    chunk.copy(this.part, this.partBytes, from, to);
    this.partBytes = needed;
  }
}

const NOTHING = Buffer.alloc(0);
