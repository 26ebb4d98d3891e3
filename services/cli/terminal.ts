import { createInterface } from "node:readline";
import { styleText } from "node:util";
import type { Output, Surroundings, Table } from "./command.ts";

/** How outputs are shown. On a terminal there are colours and tables; elsewhere tabs, for other programs. */
export interface Terminal {
  show(output: Output, asJson: boolean): string;
}

type Colour = Parameters<typeof styleText>[0];

const COLOUR_OF: Record<string, Colour> = {
  succeeded: "green",
  fired: "green",
  enabled: "green",
  created: "green",
  failed: "red",
  timed_out: "red",
  disabled: "red",
  running: "cyan",
  changed: "cyan",
  queued: "yellow",
  pending: "yellow",
  done: "green",
  aborted: "red",
  counting: "cyan",
  waiting: "yellow",
};

export function createTerminal({
  isTerminal,
  hasColours,
}: {
  isTerminal: boolean;
  hasColours: boolean;
}): Terminal {
  const paint = (colour: Colour, text: string) =>
    hasColours ? styleText(colour, text, { validateStream: false }) : text;
  const paintWord = (text: string, trimmed = text.trim()) =>
    COLOUR_OF[trimmed] === undefined ? text : paint(COLOUR_OF[trimmed], text);

  function showTable({ columns, rows }: Table): string {
    const cells = rows.map((row) => row.map(textOf));
    if (!isTerminal) return cells.map((row) => row.join("\t")).join("\n");
    if (rows.length === 0) return "none";
    const all = columns.length === 0 ? cells : [columns.map((name) => name.toUpperCase()), ...cells];
    const widths = all[0]?.map((_, place) => Math.max(...all.map((row) => row[place]?.length ?? 0))) ?? [];
    const lines = all.map((row, index) => {
      const padded = row.map((cell, place) =>
        place === row.length - 1 ? cell : cell.padEnd(widths[place] ?? 0),
      );
      const isHead = columns.length > 0 && index === 0;
      const isName = (place: number) => columns.length === 0 && place === 0;
      const painted = padded.map((cell, place) =>
        isHead ? paint("dim", cell) : isName(place) ? cell : paintWord(cell),
      );
      return painted.join("  ");
    });
    return lines.join("\n");
  }

  const showPart = (part: string | Table) => (typeof part === "string" ? part : showTable(part));

  return {
    show({ json, text, onTerminal = [text], hint }, asJson) {
      if (asJson) return json;
      if (!isTerminal) return showPart(text);
      const parts = [...onTerminal.map(showPart), ...(hint === undefined ? [] : [paint("dim", hint)])];
      return parts.join("\n\n");
    },
  };
}

/**
 * Reads one line of stdin, without the blanks at its ends. A terminal shows the question, and the typed text only if
 * `isShown`: the terminal is told so before it shows the question.
 */
export async function readLine(
  question: string,
  { stdin, stderr, signal }: Pick<Surroundings, "stdin" | "stderr" | "signal">,
  { isShown }: { isShown: boolean },
): Promise<string> {
  const lines = createInterface({ input: stdin, terminal: stdin.isTTY === true && !isShown, historySize: 0 });
  const end = () => lines.close();
  signal.addEventListener("abort", end);
  if (stdin.isTTY === true) stderr.write(question);
  lines.on("SIGINT", () => process.kill(process.pid, "SIGINT"));
  try {
    for await (const line of lines) return line.trim();
    return "";
  } finally {
    signal.removeEventListener("abort", end);
    lines.close();
    if (stdin.isTTY === true && !isShown) stderr.write("\n");
  }
}

/** A cell in one line, without characters that would move a terminal's cursor. */
function textOf(value: unknown): string {
  const text =
    value === null || value === undefined
      ? "-"
      : typeof value === "object"
        ? JSON.stringify(value)
        : String(value);
  return text.replace(/\p{C}+/gu, " ");
}
