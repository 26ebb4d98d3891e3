import type { Bulk } from "../../../../../shared/client/bulk.ts";
import { useList } from "../../data/list.ts";
import { hrefOf } from "../../data/place.ts";
import { live } from "../../data/preferences.ts";
import { may, useSession } from "../../data/session.ts";
import { Empty, Live, PageHead } from "../../ui/page.tsx";
import { Link, Status, Time } from "../../ui/small.tsx";
import { type Column, Table } from "../../ui/table.tsx";
import { countText } from "../../ui/time.ts";
import { filterText } from "./filter.ts";

export function BulkList() {
  const session = useSession();
  const list = useList("bulk", (page, signal) => session.client.bulk.list(page, { signal }), {
    idOf: (bulk) => bulk.id,
    isLive: live.value === "on",
  });
  const create = may(session, "bulk", "write") && (
    <Link class="button first" href={hrefOf("bulk", ["new"])}>
      <span data-key="c">New operation</span>
    </Link>
  );
  return (
    <>
      <PageHead
        name="Bulk"
        title="Bulk operations"
        actions={
          <>
            <Live {...list} />
            {create}
          </>
        }
      />
      <Table
        label="Bulk operations"
        columns={COLUMNS}
        list={list}
        idOf={(bulk) => bulk.id}
        hrefOf={(bulk) => hrefOf("bulk", [bulk.id])}
        empty={
          <Empty title="No bulk operations yet" action={create}>
            A bulk operation cancels or retries all jobs that a filter matches, or backfills what a schedule
            has missed. It can count first, keeps a pace, and can be aborted.
          </Empty>
        }
      />
    </>
  );
}

const COLUMNS: readonly Column<Bulk>[] = [
  {
    title: "Action",
    width: "136px",
    narrow: "100px",
    cell: ({ action, dry_run }) => (dry_run ? `${action}, dry run` : action),
  },
  { title: "Status", width: "118px", narrow: "108px", cell: ({ status }) => <Status status={status} /> },
  {
    title: "Filter",
    from: "medium",
    cell: ({ filter }) => <span title={filterText(filter)}>{filterText(filter)}</span>,
  },
  {
    title: "Matched",
    width: "96px",
    isRight: true,
    cell: ({ matched }) => (matched === null ? "–" : countText(matched)),
  },
  { title: "Done", width: "96px", isRight: true, from: "medium", cell: ({ done }) => countText(done) },
  { title: "Failed", width: "88px", isRight: true, from: "medium", cell: ({ failed }) => countText(failed) },
  {
    title: "Created",
    width: "164px",
    narrow: "92px",
    isRight: true,
    from: "medium",
    cell: (bulk) => <Time at={bulk.created_at} />,
  },
];
