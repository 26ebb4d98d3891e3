import type { ProjectNo } from "../../../shared/domain/scope.ts";
import type { Answer, PacedAnswer } from "./errors.ts";
import { startSlicedWork } from "./turns.ts";

/**
 * A large answer is sent piece by piece, as its client takes it. Given to the server whole, it would stay in memory for as
 * long as a client likes that never reads, and nobody would know of it. While it waits for its client it is bytes: a text
 * can take twice as many.
 */
export interface LargeAnswer {
  byteCount: number;
  stream: ReadableStream<Uint8Array>;
  /** Resolves when the client has taken all of it or will not be given more. */
  taken: Promise<void>;
  /** Nobody will take it. */
  drop(): void;
}

export const LARGE_CHARACTERS = 65_536;
/** As long as a body may take to arrive. */
const TAKE_TIMEOUT_MS = 30_000;

const encoder = new TextEncoder();

/** The answer with what is large of it encoded, in slices of its project. */
export async function pace(answer: Answer, projectNo: ProjectNo): Promise<PacedAnswer> {
  const { text } = answer;
  const parts = typeof text === "string" ? [text] : text;
  if (parts.reduce((sum, part) => sum + part.length, 0) <= LARGE_CHARACTERS) {
    return { ...answer, text: parts.join("") };
  }
  const work = startSlicedWork(projectNo);
  const pieces: Uint8Array[] = [];
  let small = "";
  for (const part of parts) {
    // Put together with others, a large part would be copied once more.
    if (small !== "" && small.length + part.length > LARGE_CHARACTERS) {
      pieces.push(encoder.encode(small));
      small = "";
    }
    let start = 0;
    while (part.length - start > LARGE_CHARACTERS) {
      const end = endOfPiece(part, start);
      pieces.push(encoder.encode(part.slice(start, end)));
      start = end;
      await work.pause();
    }
    small += part.slice(start);
  }
  if (small !== "") pieces.push(encoder.encode(small));
  return { ...answer, text: "", large: createLargeAnswer(pieces) };
}

function createLargeAnswer(pieces: Uint8Array[]): LargeAnswer {
  const { promise, resolve } = Promise.withResolvers<void>();
  const byteCount = pieces.reduce((sum, piece) => sum + piece.length, 0);
  let left: Uint8Array[] | null = pieces;
  let sent = 0;
  const end = () => {
    clearTimeout(timer);
    left = null;
    resolve();
  };
  const timer = setTimeout(end, TAKE_TIMEOUT_MS);
  const stream = new ReadableStream<Uint8Array>({
    async pull(controller) {
      // The server ends a connection on which nothing moves. To end the stream would look like a whole answer.
      if (left === null) return new Promise(() => {});
      const piece = left[sent];
      if (piece !== undefined) controller.enqueue(piece);
      sent++;
      if (sent < left.length) return;
      end();
      controller.close();
    },
    cancel: end,
  });
  return { byteCount, stream, taken: promise, drop: end };
}

/** Both halves of a surrogate pair go into one piece. */
function endOfPiece(text: string, start: number): number {
  const last = text.charCodeAt(start + LARGE_CHARACTERS - 1);
  return start + LARGE_CHARACTERS + (last >= 0xd800 && last < 0xdc00 ? 1 : 0);
}
