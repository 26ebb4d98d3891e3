import { useState } from "preact/hooks";
import type { JobListQuery, ListedJob } from "../../../../../shared/client/jobs.ts";
import { JOB_STATUSES } from "../../../../../shared/domain/job.ts";
import { REGIONS } from "../../../../../shared/domain/scope.ts";
import { useList } from "../../data/list.ts";
import { filtersOf, goTo, hrefOf, setFilters } from "../../data/place.ts";
import { useSession } from "../../data/session.ts";
import {
  FilterInstant,
  FilterSelect,
  Filters,
  FilterText,
  Form,
  optionsOf,
  TextField,
} from "../../ui/form.tsx";
import { ListPage } from "../../ui/list-page.tsx";
import { Link, ListedId, Status, Tags, Time } from "../../ui/small.tsx";
import type { Column } from "../../ui/table.tsx";

/** All jobs, newest first, by filters that stand in the address. */
const FILTERS = [
  "status",
  "tag",
  "schedule_id",
  "flow_key",
  "region",
  "created_after",
  "created_before",
] as const;

export function JobList() {
  const { client } = useSession();
  const filters = filtersOf(FILTERS);
  const isFiltered = Object.keys(filters).length > 0;
  const list = useList(
    `jobs ${JSON.stringify(filters)}`,
    (page, signal) => client.jobs.list({ ...(filters as JobListQuery), ...page }, { signal }),
    (job) => job.id,
  );
  return (
    <ListPage
      page="jobs"
      title="Jobs"
      list={list}
      columns={COLUMNS}
      create="Create a job"
      none={NONE}
      noMatch={isFiltered ? "No job fits these filters" : null}
    >
      <Search />
      <Filters>
        <FilterSelect label="Status" name="status" options={optionsOf(JOB_STATUSES, "any")} />
        <FilterSelect label="Region" name="region" options={optionsOf(REGIONS, "any")} />
        <FilterText label="Tag" name="tag" />
        <FilterText label="Flow key" name="flow_key" />
        <FilterText label="Schedule" name="schedule_id" placeholder="sch_…" />
        <FilterInstant label="Created after" name="created_after" />
        <FilterInstant label="Created before" name="created_before" />
        {isFiltered && (
          <div>
            <Link class="button quiet" href={hrefOf("jobs")}>
              Clear
            </Link>
          </div>
        )}
      </Filters>
    </ListPage>
  );
}

const NONE = {
  title: "No jobs yet",
  text:
    "A job is one request to one of your URLs, now or at an instant that you name. It is tried again until it succeeds or its " +
    "attempts are used up. What schedules create appears here too.",
};

const COLUMNS: readonly Column<ListedJob>[] = [
  { title: "Job", width: "270px", cell: (job) => <ListedId id={job.id} /> },
  { title: "Status", width: "126px", narrow: "118px", cell: (job) => <Status status={job.status} /> },
  {
    title: "Target",
    from: "medium",
    cell: (job) => targetText(job.target_url),
    hint: (job) => job.target_url,
  },
  {
    title: "Tags",
    width: "190px",
    from: "medium",
    cell: (job) => <Tags tags={job.tags ?? []} hrefOf={(tag) => hrefOf("jobs", [], { tag })} />,
  },
  { title: "Region", width: "116px", from: "wide", cell: (job) => job.region },
  { title: "Attempts", width: "80px", isRight: true, from: "medium", cell: (job) => job.attempts },
  {
    title: "Created",
    width: "158px",
    narrow: "92px",
    isRight: true,
    cell: (job) => <Time at={job.created_at} />,
  },
];

/** The URL without its scheme, which all targets have in common. */
export function targetText(url: string): string {
  return url.replace(/^https:\/\//, "");
}

/** An id leads to its job, run or schedule; any other text is a tag. */
function Search() {
  const [text, setText] = useState("");
  const search = () => {
    const wanted = text.trim();
    if (wanted === "") return;
    if (/^job_/.test(wanted)) goTo(hrefOf("jobs", [wanted]));
    else if (/^run_/.test(wanted)) goTo(hrefOf("runs", [wanted]));
    else if (/^sch_/.test(wanted)) goTo(hrefOf("schedules", [wanted]));
    else {
      setText("");
      setFilters({ tag: wanted });
    }
  };
  return (
    <Form class="filters" label="Search" onSubmit={search}>
      <TextField
        class="wide"
        label="Search"
        type="search"
        placeholder="The id of a job, or a tag"
        value={text}
        onInput={setText}
        dataKey="/"
      />
      <div>
        <button type="submit" class="button">
          Search
        </button>
      </div>
    </Form>
  );
}
