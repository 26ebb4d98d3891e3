/** The median of the samples, which one slow round does not move. NaN without samples. */
export function median(samples: readonly number[]): number {
  const sorted = samples.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? Number.NaN;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? Number.NaN) + upper) / 2;
}

export function range(samples: readonly number[]): { least: number; most: number } {
  return { least: Math.min(...samples), most: Math.max(...samples) };
}

/** The samples as a table's cell: `median (least to most)`, or the only sample. */
export function summarize(
  samples: readonly number[],
  format: (figure: number) => string = formatCount,
): string {
  const { least, most } = range(samples);
  if (samples.length === 1) return format(least);
  return `${format(median(samples))} (${format(least)} to ${format(most)})`;
}

/** Three significant digits for small figures, whole numbers with separators for large ones. */
export function formatCount(figure: number): string {
  const rounded = Math.abs(figure) >= 100 ? Math.round(figure) : Number(figure.toPrecision(3));
  return rounded.toLocaleString("en-US");
}

/** Prints aligned columns: the first to the left, since it names the row, and the others to the right. */
export function printTable(headings: readonly string[], rows: readonly (readonly string[])[]): void {
  const widths = headings.map((heading, column) =>
    Math.max(heading.length, ...rows.map((row) => (row[column] ?? "").length)),
  );
  const line = (cells: readonly string[]) =>
    widths
      .map((width, column) => {
        const cell = cells[column] ?? "";
        return column === 0 ? cell.padEnd(width) : cell.padStart(width);
      })
      .join("  ")
      .trimEnd();
  console.log(line(headings));
  console.log(widths.map((width) => "-".repeat(width)).join("  "));
  for (const row of rows) console.log(line(row));
}
