import type { Schedule } from "../../../../../shared/client/schedules.ts";
import { useList } from "../../data/list.ts";
import { hrefOf, place, setFilters } from "../../data/place.ts";
import { live } from "../../data/preferences.ts";
import { may, useSession } from "../../data/session.ts";
import { Filters, SelectField } from "../../ui/form.tsx";
import { Empty, Live, PageHead } from "../../ui/page.tsx";
import { Link, Status, Time } from "../../ui/small.tsx";
import { type Column, Table } from "../../ui/table.tsx";

export function ScheduleList() {
  const session = useSession();
  const paused = place.value.query.get("paused") ?? "";
  const filter = paused === "" ? {} : { paused: paused === "true" };
  const list = useList(
    `schedules ${paused}`,
    (page, signal) => session.client.schedules.list({ ...filter, ...page }, { signal }),
    { idOf: (schedule) => schedule.id, isLive: live.value === "on" },
  );
  const create = may(session, "schedules", "write") && (
    <Link class="button first" href={hrefOf("schedules", ["new"])}>
      <span data-key="c">Create a schedule</span>
    </Link>
  );
  return (
    <>
      <PageHead
        name="Schedules"
        title="Schedules"
        actions={
          <>
            <Live {...list} />
            {create}
          </>
        }
      />
      <Filters>
        <SelectField
          label="Status"
          value={paused}
          onChange={(value) => setFilters({ paused: value })}
          options={[
            ["", "any"],
            ["false", "active"],
            ["true", "paused"],
          ]}
        />
      </Filters>
      <Table
        label="Schedules"
        columns={COLUMNS}
        list={list}
        idOf={(schedule) => schedule.id}
        hrefOf={(schedule) => hrefOf("schedules", [schedule.id])}
        empty={
          paused === "" ? (
            <Empty title="No schedules yet" action={create}>
              A schedule creates a job at every instant of a cron expression, on the wall clock of a time
              zone. Each instant is recorded with what became of it.
            </Empty>
          ) : (
            <Empty title={`No schedule is ${paused === "true" ? "paused" : "active"}`} />
          )
        }
      />
    </>
  );
}

const COLUMNS: readonly Column<Schedule>[] = [
  { title: "Name", cell: (schedule) => <span title={schedule.name}>{schedule.name}</span> },
  {
    title: "Status",
    width: "104px",
    narrow: "96px",
    cell: ({ paused }) => <Status status={statusOf(paused)} />,
  },
  { title: "Cron", width: "160px", from: "medium", cell: ({ cron }) => <code title={cron}>{cron}</code> },
  { title: "Time zone", width: "150px", from: "medium", cell: (schedule) => schedule.timezone },
  { title: "Target", from: "wide", cell: ({ target_url }) => <span title={target_url}>{target_url}</span> },
  {
    title: "Next firing",
    width: "174px",
    narrow: "104px",
    isRight: true,
    cell: (schedule) => <Time at={schedule.next_run_at} otherwise="none" />,
  },
];

/** The API tells `paused` only. */
export function statusOf(paused: boolean): string {
  return paused ? "paused" : "active";
}
