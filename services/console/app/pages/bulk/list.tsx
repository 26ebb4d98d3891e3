import type { Bulk } from "../../../../../shared/client/bulk.ts";
import { useList } from "../../data/list.ts";
import { useSession } from "../../data/session.ts";
import { ListPage } from "../../ui/list-page.tsx";
import { Status, Time } from "../../ui/small.tsx";
import type { Column } from "../../ui/table.tsx";
import { countText } from "../../ui/time.ts";
import { filterText } from "./filter.ts";

export function BulkList() {
  const { client } = useSession();
  const list = useList(
    "bulk",
    (page, signal) => client.bulk.list(page, { signal }),
    (bulk) => bulk.id,
  );
  return (
    <ListPage
      page="bulk"
      title="Bulk operations"
      list={list}
      columns={COLUMNS}
      create="New operation"
      none={NONE}
    />
  );
}

const NONE = {
  title: "No bulk operations yet",
  text:
    "A bulk operation cancels or retries all jobs that a filter matches, or backfills what a schedule has missed. It can count first, " +
    "keeps a pace, and can be aborted.",
};

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
    cell: ({ filter }) => filterText(filter),
    hint: ({ filter }) => filterText(filter),
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
