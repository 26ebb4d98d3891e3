import type { Schedule } from "../../../../../shared/client/schedules.ts";
import { useList } from "../../data/list.ts";
import { filtersOf } from "../../data/place.ts";
import { useSession } from "../../data/session.ts";
import { FilterSelect, Filters } from "../../ui/form.tsx";
import { ListPage } from "../../ui/list-page.tsx";
import { Status, Time } from "../../ui/small.tsx";
import type { Column } from "../../ui/table.tsx";

export function ScheduleList() {
  const { client } = useSession();
  const { paused } = filtersOf(["paused"]);
  const filter = paused === undefined ? {} : { paused: paused === "true" };
  const list = useList(
    `schedules ${paused}`,
    (page, signal) => client.schedules.list({ ...filter, ...page }, { signal }),
    (schedule) => schedule.id,
  );
  return (
    <ListPage
      page="schedules"
      title="Schedules"
      list={list}
      columns={COLUMNS}
      create="Create a schedule"
      none={NONE}
      noMatch={paused === undefined ? null : `No schedule is ${statusOf(paused === "true")}`}
    >
      <Filters>
        <FilterSelect
          label="Status"
          name="paused"
          options={[
            ["", "any"],
            ["false", "active"],
            ["true", "paused"],
          ]}
        />
      </Filters>
    </ListPage>
  );
}

const NONE = {
  title: "No schedules yet",
  text:
    "A schedule creates a job at every instant of a cron expression, on the wall clock of a time zone. Each instant is recorded " +
    "with what became of it.",
};

const COLUMNS: readonly Column<Schedule>[] = [
  { title: "Name", cell: ({ name }) => name, hint: ({ name }) => name },
  {
    title: "Status",
    width: "104px",
    narrow: "96px",
    cell: ({ paused }) => <Status status={statusOf(paused)} />,
  },
  { title: "Cron", width: "160px", from: "medium", cell: ({ cron }) => <code title={cron}>{cron}</code> },
  { title: "Time zone", width: "150px", from: "medium", cell: (schedule) => schedule.timezone },
  {
    title: "Target",
    from: "wide",
    cell: ({ target_url }) => target_url,
    hint: ({ target_url }) => target_url,
  },
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
