import { useEffect } from "preact/hooks";
import type { Run, RunListQuery } from "../../../../../shared/client/runs.ts";
import { RUN_STATUSES } from "../../../../../shared/domain/run.ts";
import { useList } from "../../data/list.ts";
import { goTo, hrefOf, place, setFilters } from "../../data/place.ts";
import { live } from "../../data/preferences.ts";
import { useQuery } from "../../data/query.ts";
import { useSession } from "../../data/session.ts";
import {
  Filters,
  FilterText,
  fieldTextOf,
  instantOf,
  optionsOf,
  SelectField,
  TextField,
} from "../../ui/form.tsx";
import { Empty, Live, Loading, PageHead, Trouble } from "../../ui/page.tsx";
import { Link, ListedId, Status, Time } from "../../ui/small.tsx";
import { type Column, Table } from "../../ui/table.tsx";
import { durationText } from "../../ui/time.ts";

/** `runs`; `runs/{id}` leads to the job that the run is of. */
export function RunsPage({ rest: [id] }: { rest: readonly string[] }) {
  return id === undefined ? <RunList /> : <OneRun id={id} />;
}

const FILTERS = ["status", "tag", "schedule_id", "job_id", "started_after", "started_before"] as const;

function RunList() {
  const { client } = useSession();
  const { query } = place.value;
  const given = FILTERS.flatMap((name) => (query.get(name) ? [[name, query.get(name) ?? ""] as const] : []));
  const filters = Object.fromEntries(given) as RunListQuery;
  const list = useList(
    `runs ${JSON.stringify(given)}`,
    (page, signal) => client.runs.list({ ...filters, ...page }, { signal }),
    { idOf: (run) => run.id, isLive: live.value === "on" },
  );
  return (
    <>
      <PageHead name="Runs" title="Runs" actions={<Live {...list} />} />
      <RunFilters />
      <Table
        label="Runs"
        columns={COLUMNS}
        list={list}
        idOf={(run) => run.id}
        hrefOf={(run) => hrefOf("jobs", [run.job_id])}
        empty={
          given.length === 0 ? (
            <Empty title="No runs yet">
              A run is the record of one attempt of a job. It is kept as long as the plan says.
            </Empty>
          ) : (
            <Empty
              title="No run fits these filters"
              action={
                <Link class="button" href={hrefOf("runs")}>
                  Take the filters away
                </Link>
              }
            />
          )
        }
      />
    </>
  );
}

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

function RunFilters() {
  const { query } = place.value;
  return (
    <Filters>
      <SelectField
        label="Status"
        value={query.get("status") ?? ""}
        onChange={(status) => setFilters({ status })}
        options={optionsOf(RUN_STATUSES, "any")}
      />
      <FilterText label="Tag" name="tag" />
      <FilterText label="Job" name="job_id" placeholder="job_…" />
      <FilterText label="Schedule" name="schedule_id" placeholder="sch_…" />
      <TextField
        label="Started after"
        type="datetime-local"
        value={fieldTextOf(query.get("started_after"))}
        onInput={(text) => setFilters({ started_after: instantOf(text) })}
      />
      <TextField
        label="Started before"
        type="datetime-local"
        value={fieldTextOf(query.get("started_before"))}
        onInput={(text) => setFilters({ started_before: instantOf(text) })}
      />
    </Filters>
  );
}

function OneRun({ id }: { id: string }) {
  const { client } = useSession();
  const { data, error, reload } = useQuery(`run ${id}`, (signal) => client.runs.get(id, { signal }));
  useEffect(() => {
    if (data !== undefined) goTo(hrefOf("jobs", [data.job_id]), { replace: true });
  }, [data]);
  return (
    <>
      <PageHead name="Run" title="Run" trail={{ href: hrefOf("runs"), label: "Runs" }} />
      {error === undefined ? <Loading what="the run" /> : <Trouble error={error} onRetry={reload} />}
    </>
  );
}
