import type { Answer } from "./errors.ts";

/**
 * A large answer is sent piece by piece, as its client takes it. Given to the server whole, it would stay in memory for as
 * long as a client likes that never reads, and nobody would know of it.
 */
export interface LargeText {
  stream: ReadableStream<Uint8Array>;
  /** Resolves when the client has taken all of it or will not be given more. */
  taken: Promise<void>;
}

const LARGE_CHARACTERS = 65_536;
/** As long as a body may take to arrive. */
const TAKE_TIMEOUT_MS = 30_000;

const encoder = new TextEncoder();

export function pace(answer: Answer): Answer {
  return answer.text.length > LARGE_CHARACTERS ? { ...answer, large: createLargeText(answer.text) } : answer;
}

function createLargeText(text: string): LargeText {
  const { promise, resolve } = Promise.withResolvers<void>();
  let left: string | null = text;
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
      const length = endOfPiece(left);
      controller.enqueue(encoder.encode(left.slice(0, length)));
      left = left.slice(length);
      if (left !== "") return;
      end();
      controller.close();
    },
    cancel: end,
  });
  return { stream, taken: promise };
}

/** Both halves of a surrogate pair go into one piece. */
function endOfPiece(text: string): number {
  const last = text.charCodeAt(LARGE_CHARACTERS - 1);
  return last >= 0xd800 && last < 0xdc00 ? LARGE_CHARACTERS + 1 : LARGE_CHARACTERS;
}
