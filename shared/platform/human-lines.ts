/** The lines of the log as a person reads them at a terminal. They are made of the JSON lines, so both tell the same. */

/** How much of one value a line shows. */
const VALUE_CHARACTERS_MAX = 300;
const STACK_LINES_MAX = 20;
const LEVEL_WIDTH = 5;

const RESET = "\u001b[0m";
const BOLD = "\u001b[1m";
const DIM = "\u001b[2m";
const RED = "\u001b[31m";
const GREEN = "\u001b[32m";
const YELLOW = "\u001b[33m";
const BLUE = "\u001b[34m";

/** The levels of pino. */
const LEVELS: Readonly<Record<number, readonly [name: string, colour: string]>> = {
  20: ["DEBUG", BLUE],
  30: ["INFO", GREEN],
  40: ["WARN", YELLOW],
  50: ["ERROR", RED],
};

/** An error as `tellError` tells it. */
interface ErrorFields {
  type?: unknown;
  message?: unknown;
  stack?: unknown;
  cause?: ErrorFields;
  errors?: ErrorFields[];
}

/**
 * The text for one JSON line: the time in UTC, the level, the message and the fields that have a value, then the stack of an
 * error. A terminal obeys no character of it but those of the colours.
 */
export function humanLine(line: string, hasColours: boolean): string {
  const told = JSON.parse(line);
  const paint = (colour: string, text: string) => (hasColours ? `${colour}${text}${RESET}` : text);
  const [level, colour] = LEVELS[told.level] ?? [String(told.level), ""];
  const head = [
    paint(DIM, new Date(told.time).toISOString().slice("2026-11-24T".length)),
    paint(colour, level.padEnd(LEVEL_WIDTH)),
    paint(BOLD, escapeControls(String(told.msg))),
  ];
  const fields = Object.entries(told)
    .filter(([name, value]) => value !== null && !TOLD_ELSEWHERE.has(name))
    .map(([name, value]) => `${paint(DIM, `${escapeControls(name)}=`)}${valueText(value)}`);
  const error = told.err === undefined ? [] : errorLines(told.err);
  return [[...head, ...fields].join(" "), ...error.map((text) => `    ${paint(RED, text)}`), ""].join("\n");
}

/** Members that are shown apart or left out. The process and the machine are those of the terminal. */
const TOLD_ELSEWHERE = new Set(["level", "time", "pid", "hostname", "name", "msg", "err"]);

/** A value as it is if it is one plain word, else in quotes as in JSON. */
function valueText(value: unknown): string {
  if (typeof value === "string" && PLAIN_WORD.test(value)) return cut(value);
  return cut(escapeControls(JSON.stringify(value)));
}

const PLAIN_WORD = /^[\w.:/@+-]+$/;

function errorLines({ type, message, stack, cause, errors }: ErrorFields, begin = ""): string[] {
  const frames = String(stack ?? "").split("\n");
  return [
    cut(escapeControls(`${begin}${type}: ${message}`)),
    ...frames.filter((frame) => frame.trim() !== "").map((frame) => `  ${cut(escapeControls(frame.trim()))}`),
    ...(errors ?? []).flatMap((each) => errorLines(each, "one of several: ")),
    ...(cause === undefined ? [] : errorLines(cause, "caused by ")),
  ].slice(0, STACK_LINES_MAX);
}

function cut(text: string): string {
  return text.length <= VALUE_CHARACTERS_MAX
    ? text
    : `${text.slice(0, VALUE_CHARACTERS_MAX).toWellFormed()}…`;
}

/** Control and format characters (those of the writing direction too) as escapes, so that they show and do nothing. */
export function escapeControls(text: string): string {
  return text.replace(
    /[\p{C}\p{Zl}\p{Zp}]/gu,
    (character) => `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`,
  );
}
