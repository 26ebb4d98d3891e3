import type { ComponentChildren } from "preact";
import type { List } from "../data/list.ts";
import { hrefOf } from "../data/place.ts";
import { may, useSession } from "../data/session.ts";
import { Empty, Live, PageHead } from "./page.tsx";
import { Link } from "./small.tsx";
import { type Column, Table } from "./table.tsx";

/** A page that is a list, of which each row is a link. */
export function ListPage<Row>(props: {
  page: "jobs" | "runs" | "schedules" | "bulk" | "webhooks" | "flows";
  title: string;
  about?: string;
  list: List<Row>;
  columns: readonly Column<Row>[];
  /** The address of a row, if it is not the row's own page below this one. */
  hrefOfRow?: (row: Row) => string;
  /** The text of the button that leads to the form for a new row. */
  create?: string;
  /** The content above the rows, such as filters. */
  children?: ComponentChildren;
  /** The note that is shown if there are no rows. */
  none: { title: string; text: string };
  /** The same while a filter is set; null if none is. */
  noMatch?: string | null;
}) {
  const { page, title, list, none, noMatch = null } = props;
  const create = props.create !== undefined && may(useSession(), page, "write") && (
    <Link class="button first" href={hrefOf(page, ["new"])}>
      <span data-key="c">{props.create}</span>
    </Link>
  );
  const withoutFilters = (
    <Link class="button" href={hrefOf(page)}>
      Take the filters away
    </Link>
  );
  return (
    <>
      <PageHead
        title={title}
        actions={
          <>
            <Live {...list} />
            {create}
          </>
        }
      >
        {props.about}
      </PageHead>
      {props.children}
      <Table
        label={title}
        columns={props.columns}
        list={list}
        hrefOf={props.hrefOfRow ?? ((row) => hrefOf(page, [list.idOf(row)]))}
        empty={
          noMatch === null ? (
            <Empty title={none.title} action={create}>
              {none.text}
            </Empty>
          ) : (
            <Empty title={noMatch} action={withoutFilters} />
          )
        }
      />
    </>
  );
}
