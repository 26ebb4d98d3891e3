import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { outage } from "../data/answers.ts";
import type { List } from "../data/list.ts";
import { Loading, Trouble } from "./page.tsx";
import { Link } from "./small.tsx";
import { countText } from "./time.ts";

export interface Column<Row> {
  title: string;
  /** A CSS width. Columns without one share the rest. */
  width?: string;
  /** The same on a narrow screen. */
  narrow?: string;
  isRight?: boolean;
  /** Narrower screens leave the column out. */
  from?: "medium" | "wide";
  cell: (row: Row) => ComponentChildren;
  /** The text that pointing at a cell shows, for cells whose own text may be cut. */
  hint?: (row: Row) => string;
}

/** The height that rows have in the style sheet (`--row`). */
const ROW_PIXELS = 42;
const SPARE_ROWS = 14;
/** The range moves in steps, so that most scrolling renders nothing. */
const STEP_ROWS = 8;
/** This long after the last leap, the rows before and behind the window are made. */
const REST_MS = 100;
/** More rows are asked for this many rows before the list's end. */
const AHEAD_ROWS = 60;

/**
 * The rows of a list. Only the rows near the window are in the document, so that ten thousand scroll as well as ten. `hrefOf`
 * makes each row a link, whose text is the first column's.
 */
export function Table<Row>(props: {
  label: string;
  columns: readonly Column<Row>[];
  list: List<Row>;
  hrefOf?: (row: Row) => string;
  /** The note that is shown if there are no rows. */
  empty: ComponentChildren;
}) {
  const { list, columns } = props;
  const { items } = list;
  const body = useRef<HTMLTableSectionElement>(null);
  const [first, last] = useVisibleRows(body, items.length);
  const isNearEnd = last >= items.length - AHEAD_ROWS;
  useEffect(() => {
    if (isNearEnd && list.hasMore && list.error === undefined) list.more();
  }, [isNearEnd, items, list.hasMore, list.error]);

  if (items.length === 0) {
    if (list.error !== undefined) return <Trouble error={list.error} onRetry={list.reload} />;
    return (
      <div class="table-card">{list.loadedAt === null ? <Loading what={props.label} /> : props.empty}</div>
    );
  }
  const shown = items.slice(first, last);
  return (
    <div class="table-card">
      <table class="table" aria-label={props.label} aria-rowcount={list.hasMore ? -1 : items.length + 1}>
        <thead>
          <tr>
            {columns.map((column) => (
              <th
                key={column.title}
                scope="col"
                class={classOf(column)}
                style={{ "--width": column.width ?? "auto", "--narrow": column.narrow ?? "auto" }}
              >
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={body}>
          <Spacer rows={first} columns={columns.length} />
          {shown.map((row, index) => (
            <tr
              key={list.idOf(row)}
              class={props.hrefOf ? "row is-link" : "row"}
              aria-rowindex={first + index + 2}
            >
              {columns.map((column, place) => (
                <td key={column.title} class={classOf(column)} title={column.hint?.(row)}>
                  {place === 0 && props.hrefOf ? (
                    <Link class="row-link" href={props.hrefOf(row)}>
                      {column.cell(row)}
                    </Link>
                  ) : (
                    column.cell(row)
                  )}
                </td>
              ))}
            </tr>
          ))}
          <Spacer rows={items.length - last} columns={columns.length} />
        </tbody>
      </table>
      <div class="table-foot">
        {list.error !== undefined && outage.value === null ? (
          <Trouble error={list.error} onRetry={list.reload} />
        ) : (
          <span role="status">
            {list.hasMore ? `${countText(items.length)} shown, loading more …` : endText(items.length)}
          </span>
        )}
      </div>
    </div>
  );
}

function endText(count: number): string {
  return count === 1 ? "This is the only one." : `All ${countText(count)} are shown.`;
}

function Spacer({ rows, columns }: { rows: number; columns: number }) {
  if (rows <= 0) return null;
  return (
    <tr class="spacer">
      <td colSpan={columns} style={{ height: `${rows * ROW_PIXELS}px` }} />
    </tr>
  );
}

function classOf<Row>({ isRight, from }: Column<Row>): string | undefined {
  return [isRight && "right", from && `from-${from}`].filter(Boolean).join(" ") || undefined;
}

/**
 * The rows in the document: the first, and the one behind the last. They are the rows in the window and some before and behind it.
 * After a leap they are the rows in the window alone, so that the leap's frame makes no others. The others follow once leaps end.
 */
function useVisibleRows(body: { current: HTMLElement | null }, count: number): [number, number] {
  const [first, setFirst] = useState(0);
  const [length, setLength] = useState(rowsOfWindow() + 2 * SPARE_ROWS + STEP_ROWS);
  const hiddenRows = useRef(0);
  const isAsked = useRef(false);
  const rest = useRef<ReturnType<typeof setTimeout>>(undefined);
  const measure = () => {
    if (body.current === null) return;
    const { top } = body.current.getBoundingClientRect();
    const hidden = Math.floor(Math.max(0, -top) / ROW_PIXELS);
    const isLeap = Math.abs(hidden - hiddenRows.current) > SPARE_ROWS;
    hiddenRows.current = hidden;
    const [spare, step] = isLeap ? [0, 1] : [SPARE_ROWS, STEP_ROWS];
    setFirst(Math.max(0, Math.floor(hidden / step) * step - spare));
    setLength(rowsOfWindow() + 2 * spare + step);
    clearTimeout(rest.current);
    if (isLeap) rest.current = setTimeout(ask, REST_MS);
  };
  const ask = () => {
    if (isAsked.current) return;
    isAsked.current = true;
    requestAnimationFrame(() => {
      isAsked.current = false;
      measure();
    });
  };
  useLayoutEffect(measure, [count]);
  useEffect(() => {
    addEventListener("scroll", ask, { passive: true });
    addEventListener("resize", ask);
    return () => {
      removeEventListener("scroll", ask);
      removeEventListener("resize", ask);
      clearTimeout(rest.current);
    };
  }, []);
  const start = Math.min(first, Math.max(0, count - rowsOfWindow()));
  return [start, Math.min(count, start + length)];
}

const rowsOfWindow = () => Math.ceil(innerHeight / ROW_PIXELS);
