import type { Firing, Schedule } from "../../../../../shared/client/schedules.ts";
import { useList } from "../../data/list.ts";
import { hrefOf } from "../../data/place.ts";
import { useSession } from "../../data/session.ts";
import { Empty } from "../../ui/page.tsx";
import { Link, Status, Time } from "../../ui/small.tsx";
import { type Column, Table } from "../../ui/table.tsx";
import { localTimeText } from "./firings.tsx";

/** Every instant of the schedule's timetables, and what became of it. */
export function Ledger({ schedule }: { schedule: Schedule }) {
  const { client } = useSession();
  const list = useList(
    `ledger ${schedule.id}`,
    (page, signal) => client.schedules.firings(schedule.id, page, { signal }),
    (firing) => firing.at,
  );
  return (
    <Table
      label="Ledger"
      columns={COLUMNS}
      list={list}
      empty={<Empty title="Nothing yet">The first instant of its timetable is still to come.</Empty>}
    />
  );
}

const COLUMNS: readonly Column<Firing>[] = [
  { title: "Instant", width: "190px", narrow: "110px", cell: (firing) => <Time at={firing.at} /> },
  {
    title: "On its clock",
    width: "230px",
    from: "medium",
    cell: (firing) => <span class="number">{localTimeText(firing.local_time)}</span>,
  },
  { title: "What became of it", width: "170px", cell: (firing) => <Status status={firing.status} /> },
  { title: "", from: "medium", cell: (firing) => <span class="muted">{notesOf(firing)}</span> },
  {
    title: "Job",
    width: "250px",
    from: "medium",
    cell: ({ job_id: id }) => (id === null ? "" : <Link href={hrefOf("jobs", [id])}>{id}</Link>),
  },
];

function notesOf(firing: Firing): string {
  return [
    firing.moved_dst && "moved by a clock change",
    firing.replaced !== undefined && firing.replaced > 0 && `${firing.replaced} replaced`,
    firing.due_at !== undefined && firing.due_at !== firing.at && `due ${firing.due_at.slice(11, 19)}Z`,
  ]
    .filter(Boolean)
    .join(", ");
}
