import { styleText } from "node:util";
import type { Output, Table } from "./command.ts";

/** How outputs are shown. On a terminal there are colours and tables; elsewhere tabs, for other programs. */
export interface Terminal {
  isTerminal: boolean;
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
      return padded.map((cell) => (isHead ? paint("dim", cell) : paintWord(cell))).join("  ");
    });
    return lines.join("\n");
  }

  return {
    isTerminal,
    show({ json, text }, asJson) {
      if (asJson) return json;
      return typeof text === "string" ? text : showTable(text);
    },
  };
}

/** A cell in one line, without what would move a terminal's cursor. */
function textOf(value: unknown): string {
  const text =
    value === null || value === undefined
      ? "-"
      : typeof value === "object"
        ? JSON.stringify(value)
        : String(value);
  return text.replace(/\p{C}+/gu, " ");
}
