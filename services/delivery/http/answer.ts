import { ERROR_BYTES_MAX, type Exchange, RESPONSE_BODY_BYTES_MAX } from "../../../shared/domain/run.ts";
import { ChunkReader } from "./chunks.ts";
import { AnswerFault } from "./fault.ts";
import { type AnswerHead, HeadReader } from "./head.ts";
import { LineReader } from "./lines.ts";

/**
 * How much a host may send for one answer. It is many times the part of a body that is read, since a chunk of one byte
 * takes six. It also bounds the bytes that belong neither to a head nor to a body.
 */
const ANSWER_BYTES_MAX = 1_048_576;
/** How much of a body is kept. A run's error is made of it, and a character may lie across the end of the error. */
const KEPT_BYTES_MAX = 2 * ERROR_BYTES_MAX;

const FIRST_FINAL_STATUS = 200;

type State = "head" | "length" | "chunked" | "until-close" | "over";
type BodyEnd = Extract<Exchange, { kind: "answered" }>["bodyEnd"];

/**
 * Reads one answer after the other from a connection, in whatever pieces they arrive. It knows no sockets. It holds at
 * most one line of a head and the beginning of a body.
 */
export class AnswerReader {
  /** Null until the head of the final answer is complete. */
  head: AnswerHead | null = null;
  state: State = "head";
  /** Bytes that have come for this answer. */
  byteCount = 0;
  /** How the body ended, once the answer is over. */
  bodyEnd: BodyEnd = "complete";
  /** Why the answer cannot be read; null if it can. */
  fault: string | null = null;
  /** Bytes came after the end of the answer. The request to which they belong is unknown. */
  hasMore = false;
  private readonly lines = new LineReader();
  private readonly heads = new HeadReader();
  private readonly chunks = new ChunkReader();
  private leftBytes = 0;
  private bodyBytes = 0;
  private kept: Buffer = NOTHING;
  private keptBytes = 0;

  /** Begins the answer to the next request on the connection. */
  begin(): void {
    this.head = null;
    this.state = "head";
    this.byteCount = 0;
    this.bodyEnd = "complete";
    this.fault = null;
    this.hasMore = false;
    this.lines.begin();
    this.heads.begin();
    this.bodyBytes = 0;
    this.kept = NOTHING;
    this.keptBytes = 0;
  }

  /** Takes the bytes that have arrived. The answer is over once `state` says so. */
  read(chunk: Buffer): void {
    const leftBytes = ANSWER_BYTES_MAX - this.byteCount;
    const readable = chunk.length > leftBytes ? chunk.subarray(0, leftBytes) : chunk;
    this.byteCount += chunk.length;
    let at = 0;
    try {
      while (at < readable.length && this.state !== "over") at = this.step(readable, at);
      if (readable !== chunk && this.state !== "over") {
        throw new AnswerFault(`The target sent more than ${ANSWER_BYTES_MAX} bytes for one answer.`);
      }
    } catch (error) {
      if (!(error instanceof AnswerFault)) throw error;
      this.refuse(error.message);
    }
    if (at < chunk.length) this.hasMore = true;
    this.lines.release();
  }

  /** The target sends nothing more. `isClean` says that it ended the connection and did not break it off. */
  endOfInput(isClean: boolean): void {
    if (this.state === "over") return;
    if (this.state === "until-close" && isClean) this.finish("complete");
    else this.breakOff("broken");
  }

  /** Ends an answer that is not over. */
  breakOff(how: "broken" | "stalled"): void {
    if (this.state !== "over") this.finish(how);
  }

  /** How an answer that is over has ended; null if it has no head that can be read. */
  exchange(): Exchange | null {
    if (this.head === null) return null;
    const { status, headers } = this.head;
    const { kept, keptBytes, bodyBytes, bodyEnd } = this;
    return {
      kind: "answered",
      status,
      headers,
      body: keptBytes === kept.length ? kept : kept.subarray(0, keptBytes),
      bodyBytes: Math.min(bodyBytes, RESPONSE_BODY_BYTES_MAX),
      bodyEnd,
    };
  }

  private step(chunk: Buffer, at: number): number {
    switch (this.state) {
      case "head":
        return this.readHead(chunk, at);
      case "length": {
        const end = Math.min(chunk.length, at + this.leftBytes);
        this.leftBytes -= end - at;
        this.takeBody(chunk, at, end);
        if (this.leftBytes === 0 && this.state === "length") this.finish("complete");
        return end;
      }
      case "chunked":
        return this.readChunks(chunk, at);
      case "until-close":
        this.takeBody(chunk, at, chunk.length);
        return chunk.length;
      case "over":
        return at;
    }
  }

  private readHead(chunk: Buffer, from: number): number {
    const { lines, heads } = this;
    const behind = lines.next(chunk, from);
    if (behind < 0) {
      heads.checkBeginning(lines.bytes, lines.start, lines.end);
      return chunk.length;
    }
    const head = heads.readLine(lines.bytes, lines.start, lines.end);
    if (head === null) return behind;
    if (head.status < FIRST_FINAL_STATUS) {
      // RFC 9110, section 15.2: an interim answer is a head alone, and the final one follows.
      heads.begin();
      return behind;
    }
    this.head = head;
    const { framing } = head;
    switch (framing.kind) {
      case "none":
        this.finish("complete");
        break;
      case "length":
        this.leftBytes = framing.bytes;
        this.state = "length";
        break;
      case "chunked":
        this.chunks.begin();
        this.state = "chunked";
        break;
      case "until-close":
        this.state = "until-close";
        break;
    }
    return behind;
  }

  private readChunks(chunk: Buffer, from: number): number {
    const { chunks, lines } = this;
    if (chunks.state === "trailers") {
      const behind = lines.next(chunk, from);
      if (behind < 0) return chunk.length;
      // A trailer is checked like any other field, and then dropped.
      if (lines.start === lines.end) this.finish("complete");
      else this.heads.readLine(lines.bytes, lines.start, lines.end);
      return behind;
    }
    const at = chunks.skipFraming(chunk, from);
    if (chunks.state !== "data") return at;
    const end = Math.min(chunk.length, at + chunks.leftBytes);
    this.takeBody(chunk, at, end);
    chunks.tookData(end - at);
    return end;
  }

  private takeBody(chunk: Buffer, from: number, to: number): void {
    const keptTo = Math.min(to, from + KEPT_BYTES_MAX - this.keptBytes);
    if (keptTo > from) this.keep(chunk, from, keptTo);
    this.bodyBytes += to - from;
    if (this.bodyBytes >= RESPONSE_BODY_BYTES_MAX) this.finish("enough");
  }

  /** Copies the bytes, since a chunk of one byte would keep in memory all that was received with it. */
  private keep(chunk: Buffer, from: number, to: number): void {
    const needed = this.keptBytes + to - from;
    if (needed > this.kept.length) {
      // Most bodies come in one piece. For others the buffer doubles, so that no body is copied anew for each of its bytes.
      const wanted = this.keptBytes === 0 ? needed : 2 * needed;
      const larger = Buffer.allocUnsafeSlow(Math.min(wanted, KEPT_BYTES_MAX));
      this.kept.copy(larger, 0, 0, this.keptBytes);
      this.kept = larger;
    }
    chunk.copy(this.kept, this.keptBytes, from, to);
    this.keptBytes = needed;
  }

  private refuse(message: string): void {
    if (this.head === null) this.fault = message;
    this.finish("broken");
  }

  private finish(bodyEnd: BodyEnd): void {
    this.bodyEnd = bodyEnd;
    this.state = "over";
  }
}

const NOTHING = Buffer.alloc(0);
