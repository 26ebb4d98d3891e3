import { AnswerFault } from "./fault.ts";

/**
 * The end of an answer's body. It is doubtful if the target has announced a body for an answer that never has one:
 * such a body would be read as the next answer.
 */
export type Framing = { isDoubtful: boolean } & (
  | { kind: "none" }
  | { kind: "length"; bytes: number }
  | { kind: "chunked" }
  | { kind: "until-close" }
);

const NO_CONTENT = 204;
const NOT_MODIFIED = 304;
const TOKENS = /^[\w!#$%&'*+.^`|~-]+(?:[\t ]*,[\t ]*[\w!#$%&'*+.^`|~-]+)*$/;
const LENGTHS = /^([0-9]+)(?:[\t ]*,[\t ]*\1)*$/;

const TWO_LENGTHS =
  "The target answered with a length that is not that of its body, or with two: with more than one Content-Length, or one beside Transfer-Encoding.";

/** RFC 9112, section 6.3, for the answer to a POST. The fields are given as lists, null if they are absent. */
export function decideFraming(
  status: number,
  transferEncoding: string | null,
  contentLength: string | null,
): Framing {
  if (status < 200 || status === NO_CONTENT || status === NOT_MODIFIED) {
    const isDoubtful = transferEncoding !== null || (contentLength !== null && contentLength !== "0");
    return { kind: "none", isDoubtful };
  }
  if (transferEncoding !== null) {
    if (contentLength !== null) throw new AnswerFault(TWO_LENGTHS);
    return decideCoding(transferEncoding);
  }
  if (contentLength === null) return { kind: "until-close", isDoubtful: false };
  const digits = LENGTHS.exec(contentLength)?.[1];
  if (digits === undefined) {
    throw new AnswerFault(
      contentLength.includes(",")
        ? TWO_LENGTHS
        : "The target answered with a Content-Length that is no number.",
    );
  }
  const bytes = Number(digits);
  if (!Number.isSafeInteger(bytes))
    throw new AnswerFault("The target answered with a Content-Length beyond any body.");
  return bytes === 0 ? { kind: "none", isDoubtful: false } : { kind: "length", bytes, isDoubtful: false };
}

/**
 * A body whose last coding is not chunked ends with the connection. The service asks for no coding; the status decides all the
 * same.
 */
function decideCoding(transferEncoding: string): Framing {
  const codings = transferEncoding
    .toLowerCase()
    .split(",")
    .map((coding) => coding.trim());
  const place = codings.indexOf("chunked");
  if (!TOKENS.test(transferEncoding) || (place >= 0 && place < codings.length - 1)) {
    throw new AnswerFault("The target answered with a Transfer-Encoding of which the end cannot be known.");
  }
  return { kind: place < 0 ? "until-close" : "chunked", isDoubtful: false };
}
