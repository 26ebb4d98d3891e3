import { useEffect } from "preact/hooks";
import type { Run, RunListQuery } from "../../../../../shared/client/runs.ts";
import { RUN_STATUSES } from "../../../../../shared/domain/run.ts";
import { useList } from "../../data/list.ts";
import { filtersOf, goTo, hrefOf } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { useSession } from "../../data/session.ts";
import { FilterInstant, FilterSelect, Filters, FilterText, optionsOf } from "../../ui/form.tsx";
import { ListPage } from "../../ui/list-page.tsx";
import { NotYet, PageHead } from "../../ui/page.tsx";
import { ListedId, Status, Time } from "../../ui/small.tsx";
import type { Column } from "../../ui/table.tsx";
import { durationText } from "../../ui/time.ts";

/** `runs`; `runs/{id}` leads to the run's job. */
export function RunsPage({ rest: [id] }: { rest: readonly string[] }) {
  return id === undefined ? <RunList /> : <OneRun id={id} />;
}

const FILTERS = ["status", "tag", "schedule_id", "job_id", "started_after", "started_before"] as const;

function RunList() {
  const { client } = useSession();
  const filters = filtersOf(FILTERS);
  const list = useList(
    `runs ${JSON.stringify(filters)}`,
    (page, signal) => client.runs.list({ ...(filters as RunListQuery), ...page }, { signal }),
    (run) => run.id,
  );
  return (
    <ListPage
      page="runs"
      title="Runs"
      list={list}
      columns={COLUMNS}
      hrefOfRow={(run) => hrefOf("jobs", [run.job_id])}
      none={NONE}
      noMatch={Object.keys(filters).length === 0 ? null : "No run fits these filters"}
    >
      <Filters>
        <FilterSelect label="Status" name="status" options={optionsOf(RUN_STATUSES, "any")} />
        <FilterText label="Tag" name="tag" />
        <FilterText label="Job" name="job_id" placeholder="job_…" />
        <FilterText label="Schedule" name="schedule_id" placeholder="sch_…" />
        <FilterInstant label="Started after" name="started_after" />
        <FilterInstant label="Started before" name="started_before" />
      </Filters>
    </ListPage>
  );
}

const NONE = {
  title: "No runs yet",
  text: "A run is the record of one attempt of a job. It is kept as long as the plan says.",
};

const COLUMNS: readonly Column<Run>[] = [
  { title: "Job", width: "270px", cell: (run) => <ListedId id={run.job_id} /> },
  { title: "Attempt", width: "80px", isRight: true, from: "medium", cell: (run) => run.attempt },
  { title: "Status", width: "132px", narrow: "118px", cell: (run) => <Status status={run.status} /> },
  {
    title: "Answer",
    from: "medium",
    cell: (run) => (
      <span class="muted" title={run.error ?? ""}>
        {[run.response_status !== null && `HTTP ${run.response_status}`, run.error]
          .filter(Boolean)
          .join(" · ")}
      </span>
    ),
  },
  {
    title: "Duration",
    width: "104px",
    isRight: true,
    from: "medium",
    cell: (run) => durationText(run.duration_ms),
  },
  {
    title: "Started",
    width: "164px",
    narrow: "92px",
    isRight: true,
    cell: (run) => <Time at={run.started_at} />,
  },
];

function OneRun({ id }: { id: string }) {
  const { client } = useSession();
  const query = useQuery(`run ${id}`, (signal) => client.runs.get(id, { signal }));
  const { data } = query;
  useEffect(() => {
    if (data !== undefined) goTo(hrefOf("jobs", [data.job_id]), { replace: true });
  }, [data]);
  return (
    <>
      <PageHead title="Run" trail={{ href: hrefOf("runs"), label: "Runs" }} />
      <NotYet query={query} what="the run" />
    </>
  );
}
