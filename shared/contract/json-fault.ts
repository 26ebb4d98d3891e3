import { type ApiError, invalidRequest } from "../domain/errors.ts";

/** The text is not JSON from the index `at` on, where `expected` should stand. */
export class NotJson extends Error {
  constructor(
    readonly at: number,
    readonly expected: string,
  ) {
    super("not JSON");
  }
}

/**
 * Says where a text is not JSON, in lines and characters from 1. It counts them only after a fault was found, so that a body
 * without a fault costs nothing, and in slices, because a body can have 32 million lines.
 */
export class FaultFinder {
  private at = 0;
  private line = 1;
  private column = 1;

  constructor(
    private readonly text: string,
    private readonly fault: NotJson,
  ) {}

  /** Counts on by at most `charactersMax`. Null until the fault is reached, then the refusal. */
  read(charactersMax: number): ApiError | null {
    const { text, fault } = this;
    const until = Math.min(fault.at, this.at + charactersMax);
    for (; this.at < until; this.at++) {
      const code = text.charCodeAt(this.at);
      if (code === LINE_FEED) {
        this.line++;
        this.column = 1;
      } else if (!isSecondHalf(code)) {
        this.column++;
      }
    }
    return this.at < fault.at ? null : this.refusal();
  }

  private refusal(): ApiError {
    const { text, fault, line, column } = this;
    if (text === "") return invalidRequest("The body is empty; JSON is expected.");
    const where = `line ${line}, column ${column}`;
    return invalidRequest(
      fault.at === text.length
        ? `The body is not valid JSON: it ends at ${where}, where ${fault.expected} is expected.`
        : `The body is not valid JSON: at ${where}, ${fault.expected} is expected.`,
    );
  }
}

const LINE_FEED = 10;

/** A character beyond U+FFFF has two places in a string. */
const isSecondHalf = (code: number) => (code & 0xfc00) === 0xdc00;
