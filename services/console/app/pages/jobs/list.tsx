import { useState } from "preact/hooks";
import type { JobListQuery, ListedJob } from "../../../../../shared/client/jobs.ts";
import { JOB_STATUSES } from "../../../../../shared/domain/job.ts";
import { REGIONS } from "../../../../../shared/domain/scope.ts";
import { useList } from "../../data/list.ts";
import { goTo, hrefOf, place, setFilters } from "../../data/place.ts";
import { live } from "../../data/preferences.ts";
import { may, useSession } from "../../data/session.ts";
import {
  Filters,
  FilterText,
  Form,
  fieldTextOf,
  instantOf,
  optionsOf,
  SelectField,
  TextField,
} from "../../ui/form.tsx";
import { Empty, Live, PageHead } from "../../ui/page.tsx";
import { Link, ListedId, Status, Tags, Time } from "../../ui/small.tsx";
import { type Column, Table } from "../../ui/table.tsx";

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
  const session = useSession();
  const { query } = place.value;
  const given = FILTERS.flatMap((name) => (query.get(name) ? [[name, query.get(name) ?? ""] as const] : []));
  const filters = Object.fromEntries(given) as JobListQuery;
  const list = useList(
    `jobs ${JSON.stringify(given)}`,
    (page, signal) => session.client.jobs.list({ ...filters, ...page }, { signal }),
    { idOf: (job) => job.id, isLive: live.value === "on" },
  );
  const mayWrite = may(session, "jobs", "write");
  return (
    <>
      <PageHead
        name="Jobs"
        title="Jobs"
        actions={
          <>
            <Live {...list} />
            {mayWrite && (
              <Link class="button first" href={hrefOf("jobs", ["new"])}>
                <span data-key="c">Create a job</span>
              </Link>
            )}
          </>
        }
      />
      <Search />
      <JobFilters />
      <Table
        label="Jobs"
        columns={COLUMNS}
        list={list}
        idOf={(job) => job.id}
        hrefOf={(job) => hrefOf("jobs", [job.id])}
        empty={given.length === 0 ? <NoJobs mayWrite={mayWrite} /> : <NoMatch />}
      />
    </>
  );
}

const COLUMNS: readonly Column<ListedJob>[] = [
  { title: "Job", width: "270px", cell: (job) => <ListedId id={job.id} /> },
  { title: "Status", width: "126px", narrow: "118px", cell: (job) => <Status status={job.status} /> },
  {
    title: "Target",
    from: "medium",
    cell: (job) => <span title={job.target_url}>{targetText(job.target_url)}</span>,
  },
  {
    title: "Tags",
    width: "190px",
    from: "medium",
    cell: (job) => (
      <span class="above">
        <Tags tags={job.tags ?? []} hrefOf={(tag) => hrefOf("jobs", [], { tag })} />
      </span>
    ),
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

/** Without the scheme, which all have in common. */
export function targetText(url: string): string {
  return url.replace(/^https:\/\//, "");
}

function NoJobs({ mayWrite }: { mayWrite: boolean }) {
  return (
    <Empty
      title="No jobs yet"
      action={
        mayWrite && (
          <Link class="button first" href={hrefOf("jobs", ["new"])}>
            Create a job
          </Link>
        )
      }
    >
      A job is one request to one of your URLs, now or at an instant that you name. It is tried again until it
      succeeds or its attempts are used up. What schedules create appears here too.
    </Empty>
  );
}

function NoMatch() {
  return (
    <Empty
      title="No job fits these filters"
      action={
        <Link class="button" href={hrefOf("jobs")}>
          Take the filters away
        </Link>
      }
    />
  );
}

/** An id leads to its thing; anything else is a tag. */
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

function JobFilters() {
  const { query } = place.value;
  const given = (name: (typeof FILTERS)[number]) => query.get(name) ?? "";
  const isSet = FILTERS.some((name) => query.get(name));
  return (
    <Filters>
      <SelectField
        label="Status"
        value={given("status")}
        onChange={(status) => setFilters({ status })}
        options={optionsOf(JOB_STATUSES, "any")}
      />
      <SelectField
        label="Region"
        value={given("region")}
        onChange={(region) => setFilters({ region })}
        options={optionsOf(REGIONS, "any")}
      />
      <FilterText label="Tag" name="tag" />
      <FilterText label="Flow key" name="flow_key" />
      <FilterText label="Schedule" name="schedule_id" placeholder="sch_…" />
      <TextField
        label="Created after"
        type="datetime-local"
        value={fieldTextOf(given("created_after"))}
        onInput={(text) => setFilters({ created_after: instantOf(text) })}
      />
      <TextField
        label="Created before"
        type="datetime-local"
        value={fieldTextOf(given("created_before"))}
        onInput={(text) => setFilters({ created_before: instantOf(text) })}
      />
      {isSet && (
        <div>
          <Link class="button quiet" href={hrefOf("jobs")}>
            Clear
          </Link>
        </div>
      )}
    </Filters>
  );
}
