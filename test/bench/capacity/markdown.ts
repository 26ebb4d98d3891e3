import { formatCount } from "../harness/measure.ts";

/** How the page formats its figures. */

export const percent = (part: number) => `${Math.round(part * 100)} %`;
export const mib = (bytes: number) => formatCount(Math.round(bytes / 1_048_576));
export const gib = (bytes: number) => formatCount(Math.round(bytes / 1_073_741_824));

/** A Markdown table, aligned for readers of its source. */
export function table(headings: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = headings.map((heading, column) =>
    Math.max(heading.length, ...rows.map((row) => row[column]?.length ?? 0)),
  );
  const line = (cells: readonly string[]) =>
    `| ${widths.map((width, column) => (cells[column] ?? "").padEnd(width)).join(" | ")} |`;
  return [line(headings), line(widths.map((width) => "-".repeat(width))), ...rows.map(line)].join("\n");
}
