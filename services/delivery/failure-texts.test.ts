import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Glob } from "bun";
import { type FailureKind, failureKindOf } from "../../shared/domain/insights/failure.ts";

/** Every text for an exchange without a status, as the code writes it, by the kind of failure that it counts as. */
const TEXTS: Record<Extract<FailureKind, "no_connection" | "tls" | "other">, string[]> = {
  no_connection: [
    // biome-ignore-start lint/suspicious/noTemplateCurlyInString: these are templates of the code.
    "The name ${hostname} could not be resolved (${code}).",
    "The name ${hostname} has no address.",
    "The target may not be dialled: its URL ${fault}.",
    "No connection to the target could be made within ${seconds} seconds.",
    "The connection failed (${code}).",
    "The target refused the connection",
    "The target reset the connection",
    "The target closed the connection without an answer",
    "The target closed the connection without an answer.",
    "The target did not take the connection in time",
    "The target's host cannot be reached",
    "The target's network cannot be reached",
  ],
  tls: [
    "The target closed the connection in the TLS handshake.",
    "The target's certificate could not be verified.",
    "The target sent session tickets without end",
  ],
  other: [
    "The target closed the connection within the head of its answer.",
    "The target's answer does not match the HTTP/1.1 protocol",
    "${NOT_HTTP}: it begins otherwise.",
    "${NOT_HTTP}: its status line is none.",
    "${NOT_HTTP}: a header's name is none.",
    "${NOT_HTTP}: a blank stands before its first header.",
    "${NOT_HTTP}: a header holds a control character.",
    "The target answered with a status below 100, which HTTP does not have.",
    "The target answered with a length that is not that of its body, or with two: with more than one Content-Length, or one beside Transfer-Encoding.",
    "The target answered with a Content-Length that is no number.",
    "The target answered with a Content-Length beyond any body.",
    "The target answered with a Transfer-Encoding of which the end cannot be known.",
    "The target answered with a line that does not end with CR and LF.",
    "The target sent more than ${HEAD_BYTES_MAX} bytes of headers.",
    "The target sent more than ${ANSWER_BYTES_MAX} bytes for one answer.",
    "A chunk's size is none.",
    "A chunk's size has too many digits.",
    "A chunk's extension is none.",
    "A chunk does not end where it says.",
    "The request was broken off.",
    "broken off before it was sent",
    "A request is sent once.",
    "The header ${name} holds what may not be sent.",
    // biome-ignore-end lint/suspicious/noTemplateCurlyInString: these are templates of the code.
  ],
};

const VALUES: Record<string, string> = {
  hostname: "a.example",
  code: "ECODE",
  NOT_HTTP: "The target's answer does not match the HTTP/1.1 protocol",
};
const fillIn = (text: string) => text.replace(/\$\{(\w+)\}/g, (_, name: string) => VALUES[name] ?? "7");

const SOURCES = ["dial.ts", "outbound.ts", "job-request.ts", "http/*.ts"];

/** The literals that begin with a word or a placeholder and have three words or more. */
function findTexts(): Set<string> {
  const texts = SOURCES.flatMap((pattern) => [...new Glob(pattern).scanSync(import.meta.dir)])
    .filter((file) => !/\.test\.ts$|test-support/.test(file))
    .flatMap((file) => readFileSync(join(import.meta.dir, file), "utf8").split("\n"))
    .filter((line) => !/^\s*(?:\/\/|\/\*|\*)/.test(line))
    .flatMap((line) =>
      [...line.matchAll(/"([^"]*)"|`([^`]*)`/g)].map(([, text, template]) => text ?? template ?? ""),
    );
  return new Set(texts.filter((text) => /^[\w$]\S* \S+ \S/.test(text) && !text.includes("\\r\\n")));
}

test("every text for a failure without a status is held against its kind", () => {
  expect([...findTexts()].sort()).toEqual(Object.values(TEXTS).flat().sort());
});

test.each(
  Object.entries(TEXTS).flatMap(([kind, texts]) => texts.map((text) => [fillIn(text), kind] as const)),
)("the failure %j counts as %s", (text, kind) => {
  const error = /session tickets/.test(text) ? `${text} (ERR_TLS_TICKETS)` : text;
  expect<string>(failureKindOf({ status: "failed", responseStatus: null, error })).toBe(kind);
});
