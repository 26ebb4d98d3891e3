/** The answer of a route. */
export interface ApiAnswer {
  status: number;
  /** JSON, in parts where it can be so large that joining them would take long. */
  text: string | readonly string[];
  headers?: Record<string, string>;
}

/** An answer in the form in which it is sent. */
export interface ReadyAnswer extends ApiAnswer {
  text: string;
  /** Sent instead of the text, which is empty then. */
  large?: LargeAnswer;
}

/**
 * A large answer is sent piece by piece, as its client takes it. Handed to the server as a whole, it would stay in memory
 * for as long as a client likes that never reads, and nobody would know. It waits as bytes, because text can take twice as
 * many.
 */
export interface LargeAnswer {
  byteCount: number;
  stream: ReadableStream<Uint8Array>;
  /** Resolves when the client has taken all of it, or will be given no more. */
  taken: Promise<void>;
  /** Gives up an answer that nobody will take. */
  drop(): void;
}
