import { AnswerReader } from "./answer.ts";

/**
 * The rules that the client keeps when it reads an answer, as README.md lists them, each with answers that show it.
 * `comes` is the outcome of an answer, in the form `status how body`. `how` is `kept` if the answer is complete and its
 * connection may be used again, `closed` if it is complete and the connection may not, `enough`, or `broken`. The
 * outcome is `fault` where no status is told.
 */
export interface Rule {
  rule: string;
  answers: readonly Answer[];
}

export interface Answer {
  /** Latin-1, after which the target closes its side. */
  bytes: string;
  comes: string;
  /** The outcome of undici, where it is another. */
  undici?: string;
}

const OK = "HTTP/1.1 200 OK\r\n";
const TWO = `${OK}content-length: 2\r\n`;
const CHUNKED = `${OK}transfer-encoding: chunked\r\n\r\n`;
const given = (bytes: string, comes: string, undici?: string): Answer => ({
  bytes,
  comes,
  ...(undici === undefined ? {} : { undici }),
});

export const RULES: readonly Rule[] = [
  {
    rule: "A status line is HTTP/1, one space, three digits, and anything printable",
    answers: [
      given(`${TWO}\r\nok`, "200 kept ok"),
      given("HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok", "200 kept ok"),
      given("HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\nok", "200 kept ok"),
      given("HTTP/1.1 200 \xfcber\tall\r\ncontent-length: 2\r\n\r\nok", "200 kept ok"),
      given("HTTP/1.1 599 No\r\ncontent-length: 2\r\n\r\nok", "599 kept ok"),
      given("HTTP/1.1 600 No\r\ncontent-length: 2\r\n\r\nok", "600 kept ok"),
      given("HTTP/1.1 999 No\r\ncontent-length: 2\r\n\r\nok", "999 kept ok"),
      given("HTTP/1.1 099 No\r\ncontent-length: 2\r\n\r\nok", "fault"),
      given("HTTP/1.1 20 No\r\ncontent-length: 2\r\n\r\nok", "fault"),
      given("HTTP/1.1 1000 No\r\ncontent-length: 2\r\n\r\nok", "fault"),
      given("HTTP/1.1 2e2 No\r\ncontent-length: 2\r\n\r\nok", "fault"),
      given("HTTP/1.1  200 OK\r\ncontent-length: 2\r\n\r\nok", "fault"),
      given("HTTP/1.1\t200 OK\r\ncontent-length: 2\r\n\r\nok", "fault"),
      given("HTTP/1.1 200OK\r\ncontent-length: 2\r\n\r\nok", "fault"),
      given("http/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", "fault"),
      given("ICY 200 OK\r\ncontent-length: 2\r\n\r\nok", "fault"),
      given("HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\nok", "fault", "200 complete ok"),
      given("HTTP/1.1 200 O\x00K\r\ncontent-length: 2\r\n\r\nok", "fault", "200 complete ok"),
      given("ok ok ok", "fault"),
      given("", "fault"),
    ],
  },
  {
    rule: "A blank line before the status line is refused",
    answers: [given(`\r\n${TWO}\r\nok`, "fault", "200 complete ok")],
  },
  {
    rule: "A later minor version is read as HTTP/1.1",
    answers: [
      given("HTTP/1.2 200 OK\r\ncontent-length: 2\r\n\r\nok", "200 closed ok", "fault"),
      given("HTTP/1.9 200 OK\r\ncontent-length: 2\r\n\r\nok", "200 closed ok", "fault"),
      given("HTTP/1.10 200 OK\r\ncontent-length: 2\r\n\r\nok", "fault"),
    ],
  },
  {
    rule: "The connection of an HTTP/1.0 answer is not used again",
    answers: [
      given("HTTP/1.0 200 OK\r\n\r\nok", "200 closed ok"),
      given("HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok", "200 closed ok"),
      given("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "200 closed ok"),
    ],
  },
  {
    rule: "A line ends with CR and LF, and a lone one of them is refused",
    answers: [
      given("HTTP/1.1 200 OK\ncontent-length: 2\n\nok", "fault"),
      given(`${OK}content-length: 2\n\r\nok`, "fault"),
      given(`${TWO}\nok`, "fault"),
      given(`${TWO}x-a: a\rb\r\n\r\nok`, "fault"),
      given("HTTP/1.1 200 O\rK\r\ncontent-length: 2\r\n\r\nok", "fault"),
      given(`${TWO}\r\r\n\r\nok`, "fault"),
    ],
  },
  {
    rule: "A header's name is a token with the colon behind it",
    answers: [
      given(`${OK}content-length : 2\r\n\r\nok`, "fault"),
      given(`${TWO}: 1\r\n\r\nok`, "fault"),
      given(`${TWO}nothing\r\n\r\nok`, "fault"),
      given(`${TWO}x a: 1\r\n\r\nok`, "fault"),
      given(`${TWO}x\xfc: 1\r\n\r\nok`, "fault"),
      given(`${TWO}x(a): 1\r\n\r\nok`, "fault"),
      given(`${OK}CONTENT-Length:2\r\n\r\nok`, "200 kept ok"),
      given(`${OK}content-length: \t 2 \t\r\n\r\nok`, "200 kept ok", "fault"),
      given(`${TWO}x-empty:\r\n\r\nok`, "200 kept ok"),
    ],
  },
  {
    rule: "A header's value has no control character but the tab",
    answers: [
      ...["\x00", "\x01", "\x0b", "\x1b", "\x7f"].map((control) =>
        given(`${TWO}x-a: a${control}b\r\n\r\nok`, "fault"),
      ),
      given(`${TWO}x-a: a\tb\xff\r\n\r\nok`, "200 kept ok"),
    ],
  },
  {
    rule: "A line that begins with a blank goes on with the value before it",
    answers: [
      given(`${OK}x-a: 1\r\n 2\r\ncontent-length: 2\r\n\r\nok`, "200 kept ok", "fault"),
      given(`${OK}content-length:\r\n\t2\r\n\r\nok`, "200 kept ok", "fault"),
      given(`${OK}content-length: 2\r\n 2\r\n\r\nok`, "fault"),
      given(`${OK}transfer-encoding:\r\n chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n`, "200 kept ok", "fault"),
      given(`${OK} content-length: 2\r\n\r\nok`, "fault"),
    ],
  },
  {
    rule: "Interim answers are read past, whichever they are",
    answers: [
      ...[100, 101, 102, 103, 199].map((status) =>
        given(
          `HTTP/1.1 ${status} Interim\r\n\r\n${TWO}\r\nok`,
          "200 kept ok",
          ...(status === 100 || status === 101 ? ["fault"] : []),
        ),
      ),
      given(`HTTP/1.1 103 Hints\r\nx-a: 1\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n${TWO}\r\nok`, "200 kept ok"),
      given(`HTTP/1.1 102 Wait\r\ncontent-length: 5\r\n\r\n${TWO}\r\nok`, "200 kept ok"),
      given(`HTTP/1.1 102 Wait\r\nconnection: close\r\n\r\n${TWO}\r\nok`, "200 kept ok", "fault"),
      given("HTTP/1.1 103 Hints\r\n\r\n", "fault"),
    ],
  },
  {
    rule: "A 204 or 304 ends with its head",
    answers: [
      given("HTTP/1.1 204 No\r\n\r\n", "204 kept "),
      given("HTTP/1.1 204 No\r\ncontent-length: 0\r\n\r\n", "204 kept "),
      given("HTTP/1.1 204 No\r\ncontent-length: 2\r\n\r\n", "204 closed ", "204 broken "),
      given("HTTP/1.1 204 No\r\ncontent-length: 2\r\n\r\nok", "204 closed ", "204 broken "),
      given("HTTP/1.1 204 No\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "204 closed "),
      given("HTTP/1.1 304 No\r\ncontent-length: 200\r\n\r\n", "304 closed ", "304 broken "),
      given("HTTP/1.1 205 No\r\ncontent-length: 2\r\n\r\nok", "205 kept ok"),
    ],
  },
  {
    rule: "A length beside a transfer coding is refused",
    answers: [
      given(`${TWO}transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n`, "fault"),
      given(`${OK}transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n`, "fault"),
      given(`${TWO}transfer-encoding: gzip\r\n\r\nok`, "fault"),
    ],
  },
  {
    rule: "Lengths that differ are refused, and one that is repeated is one",
    answers: [
      given(`${TWO}content-length: 3\r\n\r\nok`, "fault"),
      given(`${OK}content-length: 2, 3\r\n\r\nok`, "fault"),
      given(`${TWO}content-length: 2\r\n\r\nok`, "200 kept ok", "fault"),
      given(`${OK}content-length: 2, 2\r\n\r\nok`, "200 kept ok", "fault"),
      given(`${OK}content-length: 2,\r\n\r\nok`, "fault"),
    ],
  },
  {
    rule: "A length is a number of digits, and no more than there could ever be",
    answers: [
      ...["+2", "-2", "0x2", "2.0", "2e0", "two", "", "2 2", "2;a"].map((length) =>
        given(`${OK}content-length: ${length}\r\n\r\nok`, "fault"),
      ),
      given(`${OK}content-length: 99999999999999999999\r\n\r\nok`, "fault"),
      given(`${OK}content-length: 002\r\n\r\nok`, "200 kept ok"),
    ],
  },
  {
    rule: "A body shorter than its length is broken off",
    answers: [
      given(`${OK}content-length: 3\r\n\r\nok`, "200 broken ok"),
      given(`${OK}content-length: 9007199254740991\r\n\r\nok`, "200 broken ok"),
    ],
  },
  {
    rule: "What comes behind an answer makes its connection unusable",
    answers: [
      given(`${TWO}\r\nokHTTP/1.1 500 No\r\n\r\n`, "200 closed ok"),
      given(`${TWO}\r\nok\r\n`, "200 closed ok"),
    ],
  },
  {
    rule: "A body without a length ends with the connection",
    answers: [given(`${OK}\r\nok`, "200 closed ok"), given(`${OK}\r\n`, "200 closed ")],
  },
  {
    rule: "Chunks are taken apart, and their extensions and trailers are read past",
    answers: [
      given(`${CHUNKED}2\r\nok\r\n0\r\n\r\n`, "200 kept ok"),
      given(`${CHUNKED}1\r\no\r\n0000001\r\nk\r\n000\r\n\r\n`, "200 kept ok"),
      given(`${CHUNKED}A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n`, "200 kept 01234567890123456789"),
      given(`${CHUNKED}2;a=b\r\nok\r\n0;c\r\n\r\n`, "200 kept ok"),
      given(`${CHUNKED}2;a="b;c"\r\nok\r\n0\r\n\r\n`, "200 kept ok"),
      given(`${CHUNKED}2 ; a = b\r\nok\r\n0\r\n\r\n`, "200 kept ok", "200 broken "),
      given(`${CHUNKED}2\r\nok\r\n0\r\nx-a: 1\r\nconnection: close\r\n\r\n`, "200 kept ok"),
      given(`${OK}transfer-encoding: Chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n`, "200 kept ok"),
    ],
  },
  {
    rule: "A chunk that is not as RFC 9112 has it breaks the body off",
    answers: [
      ...["", "-2", "+2", "0x2", "2 ", "2\t", " 2", "2 2", "g", "2;\x00", "2\x0b", "0".repeat(20)].map(
        (size) => given(`${CHUNKED}${size}\r\nok\r\n0\r\n\r\n`, "200 broken "),
      ),
      given(`${CHUNKED}fffffffff\r\nok`, "200 broken ", "200 broken ok"),
      given(`${CHUNKED}2\nok\n0\n\n`, "200 broken "),
      given(`${CHUNKED}2\r\nok0\r\n\r\n`, "200 broken ok"),
      given(`${CHUNKED}2\r\nokay\r\n0\r\n\r\n`, "200 broken ok"),
      given(`${CHUNKED}2\r\nok\n0\r\n\r\n`, "200 broken ok"),
      given(`${CHUNKED}2\r\nok\r\n0\r\nbad trailer\r\n\r\n`, "200 broken ok"),
      given(`${CHUNKED}2\r\nok\r\n0\r\nx-a: 1\n\r\n`, "200 broken ok"),
      given(`${CHUNKED}2;${"a".repeat(2_000)}\r\nok\r\n0\r\n\r\n`, "200 broken ", "200 complete ok"),
    ],
  },
  {
    rule: "Chunks without a last one are broken off",
    answers: [
      given(`${CHUNKED}2\r\nok\r\n`, "200 broken ok"),
      given(`${CHUNKED}2\r\nok\r\n0\r\n`, "200 broken ok"),
      given(`${CHUNKED}2\r\no`, "200 broken o"),
      given(CHUNKED, "200 broken "),
    ],
  },
  {
    rule: "A transfer coding that is not chunked in the end ends with the connection",
    answers: [
      given(`${OK}transfer-encoding: gzip\r\n\r\nok`, "200 closed ok"),
      given(`${OK}transfer-encoding: identity\r\n\r\nok`, "200 closed ok"),
      given(`${OK}transfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n`, "200 kept ok"),
      given(
        `${OK}transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n`,
        "200 kept ok",
      ),
      given(`${OK}transfer-encoding: chunked, gzip\r\n\r\nok`, "fault", "200 complete ok"),
      given(
        `${OK}transfer-encoding: chunked, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n`,
        "fault",
        "200 complete ok",
      ),
      given(`${OK}transfer-encoding: chunked;q=1\r\n\r\nok`, "fault", "200 complete ok"),
      given(`${OK}transfer-encoding: "chunked"\r\n\r\nok`, "fault", "200 complete ok"),
      given(`${OK}transfer-encoding:\r\n\r\nok`, "fault", "200 complete ok"),
    ],
  },
  {
    rule: "Connection: close is heeded, wherever it stands in the list",
    answers: [
      given(`${TWO}connection: close\r\n\r\nok`, "200 closed ok"),
      given(`${TWO}Connection: Keep-Alive, CLOSE\r\n\r\nok`, "200 closed ok"),
      given(`${TWO}connection: keep-alive\r\nconnection: close\r\n\r\nok`, "200 closed ok"),
      given(`${TWO}connection: closed\r\n\r\nok`, "200 kept ok"),
    ],
  },
  {
    rule: "A head that breaks off is a fault",
    answers: [
      given("HTTP/1.1 2", "fault"),
      given(`${OK}content-length: 2\r\n`, "fault"),
      given(`${TWO}x-a`, "fault"),
    ],
  },
  {
    rule: "The heads of an answer have 64 KB together, its trailers included",
    answers: [
      given(`${TWO}x-long: ${"x".repeat(60_000)}\r\n\r\nok`, "200 kept ok"),
      given(`${TWO}x-long: ${"x".repeat(70_000)}\r\n\r\nok`, "fault"),
      given(`${OK}${"x-more: 1\r\n".repeat(7_000)}\r\n`, "fault", "200 complete "),
      given(`${"HTTP/1.1 103 Hints\r\n\r\n".repeat(4_000)}${TWO}\r\nok`, "fault", "200 complete ok"),
      given(
        `${CHUNKED}2\r\nok\r\n0\r\n${"x-more: 1\r\n".repeat(7_000)}\r\n`,
        "200 broken ok",
        "200 complete ok",
      ),
    ],
  },
];

/** The outcome of an answer that arrives in these pieces. */
export function readInPieces(pieces: readonly Buffer[], reader = new AnswerReader()): string {
  reader.begin();
  // Bytes that come later find the connection idle and end it.
  let isDisturbed = false;
  for (const piece of pieces) {
    if (reader.state !== "over") reader.read(piece);
    else if (piece.length > 0) isDisturbed = true;
  }
  const isAlone = !reader.hasMore && !isDisturbed;
  const isKept =
    reader.state === "over" && reader.bodyEnd === "complete" && isAlone && reader.head?.isPersistent;
  reader.endOfInput(true);
  const exchange = reader.exchange();
  if (exchange?.kind !== "answered") return "fault";
  const { status, bodyEnd, body } = exchange;
  const how = bodyEnd !== "complete" ? bodyEnd : isKept ? "kept" : "closed";
  return `${status} ${how} ${Buffer.from(body).toString("latin1")}`;
}
