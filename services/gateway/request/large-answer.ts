import { TAKE_TIMEOUT_MS } from "../../../shared/domain/body.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import type { ApiAnswer, LargeAnswer, ReadyAnswer } from "./answer.ts";
import { startSlicedWork } from "./sliced-work.ts";

export const LARGE_CHARACTERS = 65_536;

const encoder = new TextEncoder();

/** Joins the parts of a small answer, and encodes a large one in slices of its project. */
export function prepareAnswer(answer: ApiAnswer, projectNo: ProjectNo): ReadyAnswer | Promise<ReadyAnswer> {
  const { text } = answer;
  const parts = typeof text === "string" ? [text] : text;
  if (parts.reduce((sum, part) => sum + part.length, 0) > LARGE_CHARACTERS) {
    return encodeLarge(answer, parts, projectNo);
  }
  return { ...answer, text: parts.join("") };
}

async function encodeLarge(
  answer: ApiAnswer,
  parts: readonly string[],
  projectNo: ProjectNo,
): Promise<ReadyAnswer> {
  const work = startSlicedWork(projectNo);
  const pieces: Uint8Array[] = [];
  let small = "";
  for (const part of parts) {
    // A large part is not joined with others, which would copy it once more.
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
      // The server closes a connection on which nothing moves. Ending the stream would look like a complete answer.
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

/** The end of a piece, which never separates the halves of a surrogate pair. */
function endOfPiece(text: string, start: number): number {
  const last = text.charCodeAt(start + LARGE_CHARACTERS - 1);
  return start + LARGE_CHARACTERS + (last >= 0xd800 && last < 0xdc00 ? 1 : 0);
}
