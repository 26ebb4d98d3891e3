import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { ERROR_BYTES_MAX, RESPONSE_BODY_BYTES_MAX } from "../../../shared/domain/run.ts";
import { measureGrowth } from "../../../test/support/growth.ts";
import { AnswerReader } from "./answer.ts";
import { RULES, readInPieces } from "./test-support.ts";

const bytesOf = (text: string) => Buffer.from(text, "latin1");
const ANSWERS = RULES.flatMap(({ answers }) => answers);
/** Pieces of answers, and bytes that may stand between them. */
const PIECES_OF_ANSWERS = [
  ...[
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 103 Hints\r\n\r\n",
    "content-length: ",
    "transfer-encoding: chunked\r\n",
    "\r\n",
  ],
  ...[
    "2\r\nok\r\n",
    "0\r\n\r\n",
    "ok",
    "\n",
    "\r",
    ":",
    " ",
    ";",
    ",",
    "\x00",
    "\xff",
    "5",
    "connection: close\r\n",
  ],
];

/** The bytes cut at the places, in pieces. */
function cut(bytes: Buffer, places: readonly number[]): Buffer[] {
  const borders = [0, ...places.map((place) => place % (bytes.length + 1)), bytes.length].toSorted(
    (a, b) => a - b,
  );
  return borders.slice(1).map((border, index) => bytes.subarray(borders[index], border));
}

describe("an answer", () => {
  for (const { rule, answers } of RULES) {
    test(rule, () => {
      for (const { bytes, comes } of answers) {
        const shown = bytes.slice(0, 200);
        expect([shown, readInPieces([bytesOf(bytes)])]).toEqual([shown, comes]);
      }
    });
  }

  test("is read the same in whatever pieces it arrives", () => {
    for (const { bytes, comes } of ANSWERS) {
      if (bytes.length < 2_000)
        expect(readInPieces(Array.from(bytesOf(bytes), (byte) => Buffer.of(byte)))).toBe(comes);
    }
    fc.assert(
      fc.property(
        fc.constantFrom(...ANSWERS),
        fc.array(fc.nat(70_000), { maxLength: 8 }),
        ({ bytes, comes }, places) => {
          expect(readInPieces(cut(bytesOf(bytes), places))).toBe(comes);
        },
      ),
      { numRuns: 2_000 },
    );
  });

  test("is read the same on a connection on which anything was read before", () => {
    const reader = new AnswerReader();
    fc.assert(
      fc.property(fc.constantFrom(...ANSWERS), ({ bytes, comes }) => {
        expect(readInPieces([bytesOf(bytes)], reader)).toBe(comes);
      }),
      { numRuns: 1_000 },
    );
  });

  test("of any bytes at all is an outcome, the same in any pieces, and is never kept beyond what an error is made of", () => {
    const anything = fc.array(
      fc.oneof(fc.constantFrom(...PIECES_OF_ANSWERS), fc.string({ unit: "binary", maxLength: 3 })),
      { maxLength: 30 },
    );
    fc.assert(
      fc.property(anything, fc.array(fc.nat(400), { maxLength: 6 }), (parts, places) => {
        const bytes = bytesOf(parts.join(""));
        const comes = readInPieces([bytes]);
        expect(comes).toMatch(/^fault$|^\d{3} (kept|closed|enough|broken) /);
        expect(readInPieces(cut(bytes, places))).toBe(comes);
      }),
      { numRuns: 2_000 },
    );
  });

  test("with one changed byte is an outcome", () => {
    fc.assert(
      fc.property(fc.constantFrom(...ANSWERS), fc.nat(), fc.nat(255), ({ bytes }, place, byte) => {
        const changed = bytesOf(bytes);
        if (changed.length > 0) changed[place % changed.length] = byte;
        expect(readInPieces([changed])).toMatch(/^fault$|^\d{3} (kept|closed|enough|broken) /);
      }),
      { numRuns: 5_000 },
    );
  });

  test("with any body comes back as it was sent, by its length and in chunks of any sizes", () => {
    fc.assert(
      fc.property(
        fc.uint8Array({ maxLength: 3_000 }),
        fc.array(fc.integer({ min: 1, max: 900 })),
        (array, sizes) => {
          const body = Buffer.from(array);
          const comes = `200 kept ${body.toString("latin1")}`;
          const head = `HTTP/1.1 200 OK\r\ncontent-length: ${body.length}\r\n\r\n`;
          expect(readInPieces([bytesOf(head), body])).toBe(comes);
          const chunks: Buffer[] = [];
          for (let at = 0, place = 0; at < body.length; place++) {
            const chunk = body.subarray(at, at + (sizes[place] ?? 500));
            chunks.push(bytesOf(`${chunk.length.toString(16)}\r\n`), chunk, bytesOf("\r\n"));
            at += chunk.length;
          }
          const chunked = [
            bytesOf("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
            ...chunks,
            bytesOf("0\r\n\r\n"),
          ];
          expect(readInPieces(chunked)).toBe(comes);
        },
      ),
      { numRuns: 300 },
    );
  });

  test("is read for 64 KB of its body, of which the beginning is kept", () => {
    const reader = new AnswerReader();
    reader.read(bytesOf("HTTP/1.1 200 OK\r\n\r\n"));
    const piece = Buffer.alloc(1_000, "x");
    let read = 0;
    for (; reader.state !== "over"; read += piece.length) reader.read(piece);
    expect(read).toBeGreaterThanOrEqual(RESPONSE_BODY_BYTES_MAX);
    expect(read).toBeLessThan(RESPONSE_BODY_BYTES_MAX + piece.length);
    expect(reader.exchange()).toMatchObject({
      bodyEnd: "enough",
      bodyBytes: RESPONSE_BODY_BYTES_MAX,
      body: Buffer.alloc(2 * ERROR_BYTES_MAX, "x"),
    });
  });

  test("takes 1 MiB at most, whatever it is made of", () => {
    const chunk = `1;${"a".repeat(1_000)}\r\nx\r\n`;
    const bytes = bytesOf(
      `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n${chunk.repeat(1_100)}0\r\n\r\n`,
    );
    for (const pieces of [[bytes], cut(bytes, [1_000, 900_000, 1_050_000])]) {
      expect(readInPieces(pieces)).toMatch(/^200 broken x+$/);
    }
    const less = bytesOf(
      `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n${chunk.repeat(1_000)}0\r\n\r\n`,
    );
    expect(readInPieces([less])).toMatch(/^200 kept x+$/);
  });

  test("that cannot be HTTP is refused before its first line is complete: nobody waits for the rest", () => {
    for (const beginning of ["S", "HTTX", "HTTP/2", "\x00", " ", "220 mail.example ESMTP"]) {
      const reader = new AnswerReader();
      reader.read(bytesOf(beginning));
      expect([beginning, reader.state]).toEqual([beginning, "over"]);
    }
  });

  test("tells the headers that are read, the first where one is repeated, and what is folded in one piece", () => {
    const reader = new AnswerReader();
    reader.read(
      bytesOf(
        "HTTP/1.1 503 Later\r\nRetry-After:  7 \r\nretry-after: 8\r\nSERVICE-NO-RETRY: true\r\nLocation: /a\r\n b\r\nlocation: /c\r\n" +
          "Keep-Alive: max=5, timeout=3\r\nContent-Encoding: gzip\r\ncontent-encoding: br\r\ncontent-length: 0\r\n\r\n",
      ),
    );
    expect(reader.head).toMatchObject({
      headers: { retryAfter: "7", serviceNoRetry: "true", location: "/a b", contentEncoding: "gzip, br" },
      keepAliveMs: 3_000,
    });
  });

  test("costs time in proportion to its bytes, whatever they are", () => {
    const limitBytes = 65_000;
    const heads = [
      `x-a:${" ".repeat(limitBytes)}x\r\n`,
      `location: x${" ".repeat(limitBytes)}x\r\n`,
      `location: x\r\n${" y\r\n".repeat(limitBytes / 4)}`,
      `content-length: 1${", 1".repeat(limitBytes / 3)},\r\n`,
      `transfer-encoding: a${" , a".repeat(limitBytes / 4)},,\r\n`,
      `keep-alive: ${"timeout ".repeat(limitBytes / 8)}\r\n`,
      `connection: ${", ".repeat(limitBytes / 2)}\r\n`,
      "connection: a\r\n".repeat(limitBytes / 15),
    ];
    const readHead = (text: string) => {
      const bytes = bytesOf(`HTTP/1.1 200 OK\r\n${text}\r\n`);
      for (let count = 0; count < 5; count++) readInPieces([bytes]);
    };
    const plain = `x-a: ${"x".repeat(limitBytes)}\r\n`;
    // Work that grows with the square of the bytes would take hundreds of times as long as one plain header.
    for (const head of heads) expect(measureGrowth(readHead, plain, head, 60)).toBeLessThan(60);
  });
});

test("the page of rules names each of them", () => {
  const page = readFileSync(join(import.meta.dir, "README.md"), "utf8");
  expect(RULES.map(({ rule }) => rule).filter((rule) => !page.includes(rule))).toEqual([]);
});
