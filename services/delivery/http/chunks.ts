import { AnswerFault } from "./fault.ts";

const CR = 13;
const LF = 10;
const SEMICOLON = 59;
const SPACE = 32;
const TAB = 9;
const DELETE = 127;
/** A chunk with a longer size is larger than the part of a body that is read. */
const SIZE_DIGITS_MAX = 8;
/** The limit for the extensions of one chunk, which are read past. */
const EXTENSION_BYTES_MAX = 1_024;

type State = "size" | "blanks" | "extension" | "size-end" | "data" | "data-cr" | "data-lf" | "trailers";

/** Takes chunks apart (RFC 9112, section 7.1), in whatever pieces they arrive. */
export class ChunkReader {
  /** How much data of the present chunk is still to come. */
  leftBytes = 0;
  state: State = "size";
  private digits = 0;
  private extensionBytes = 0;

  begin(): void {
    this.state = "size";
    this.leftBytes = 0;
    this.digits = 0;
    this.extensionBytes = 0;
  }

  /** Goes on to the next byte of data, to the trailers or to the end of the arrived bytes. Returns that position. */
  skipFraming(chunk: Buffer, from: number): number {
    let at = from;
    while (at < chunk.length && this.state !== "data" && this.state !== "trailers") {
      this.take(chunk[at] ?? 0);
      at++;
    }
    return at;
  }

  /** So many bytes of data were taken. */
  tookData(bytes: number): void {
    this.leftBytes -= bytes;
    if (this.leftBytes === 0) this.state = "data-cr";
  }

  private take(byte: number): void {
    switch (this.state) {
      case "size":
        this.takeSize(byte);
        return;
      case "blanks":
        if (byte === SEMICOLON) this.state = "extension";
        else if (byte === SPACE || byte === TAB) this.takeExtension(byte);
        else throw new AnswerFault("A chunk's size is none.");
        return;
      case "extension":
        if (byte === CR) this.state = "size-end";
        else this.takeExtension(byte);
        return;
      case "size-end":
        expect(byte, LF);
        this.state = this.leftBytes === 0 ? "trailers" : "data";
        return;
      case "data-cr":
        expect(byte, CR);
        this.state = "data-lf";
        return;
      case "data-lf":
        expect(byte, LF);
        this.begin();
        return;
      case "data":
      case "trailers":
        return;
    }
  }

  private takeSize(byte: number): void {
    const value = hexValue(byte);
    if (value >= 0) {
      this.digits++;
      this.leftBytes = 16 * this.leftBytes + value;
      if (this.digits > SIZE_DIGITS_MAX) throw new AnswerFault("A chunk's size has too many digits.");
      return;
    }
    if (this.digits === 0) throw new AnswerFault("A chunk's size is none.");
    if (byte === CR) this.state = "size-end";
    else if (byte === SEMICOLON) this.state = "extension";
    else if (byte === SPACE || byte === TAB) this.state = "blanks";
    else throw new AnswerFault("A chunk's size is none.");
  }

  private takeExtension(byte: number): void {
    this.extensionBytes++;
    if (this.extensionBytes > EXTENSION_BYTES_MAX || (byte < SPACE && byte !== TAB) || byte === DELETE) {
      throw new AnswerFault("A chunk's extension is none.");
    }
  }
}

function expect(byte: number, wanted: number): void {
  if (byte !== wanted) throw new AnswerFault("A chunk does not end where it says.");
}

/** The value of a hexadecimal digit, -1 for any other byte. */
function hexValue(byte: number): number {
  if (byte >= 48 && byte <= 57) return byte - 48;
  const letter = byte | 32;
  return letter >= 97 && letter <= 102 ? letter - 87 : -1;
}
