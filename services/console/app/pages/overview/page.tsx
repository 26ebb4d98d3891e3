import { useMemo } from "preact/hooks";
import type { Host } from "../../../../../shared/client/hosts.ts";
import type { Insights, Project } from "../../../../../shared/client/project.ts";
import { INSIGHT_PERIODS } from "../../../../../shared/domain/insights/levels.ts";
import { REGIONS } from "../../../../../shared/domain/scope.ts";
import { rateLimit } from "../../data/answers.ts";
import { hrefOf, place, setFilters } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { useSession } from "../../data/session.ts";
import { Chart, type Series } from "../../ui/chart.tsx";
import { FilterSelect, Filters, optionsOf, SelectField } from "../../ui/form.tsx";
import { Card, Live, Loading, Meter, PageHead, Stat, Trouble } from "../../ui/page.tsx";
import { Link, wordsOf } from "../../ui/small.tsx";
import { countText, durationText, percentText } from "../../ui/time.ts";
import { reasonTitle } from "../jobs/timeline.tsx";

/** The state of the environment: its runs, how late they were, what waits and why, and which hosts fail. */
const REQUESTS = 3;
const HOSTS_DOWN_SHOWN = 20;

export function OverviewPage() {
  const { client } = useSession();
  const { query } = place.value;
  const period = INSIGHT_PERIODS.find((name) => name === query.get("period")) ?? "24h";
  const region = REGIONS.find((name) => name === query.get("region"));
  const loaded = useQuery(
    `overview ${period} ${region}`,
    async (signal) => {
      const [insights, project, down] = await Promise.all([
        client.project.insights({ period, ...(region && { region }) }, { signal }),
        client.project.get({ signal }),
        client.hosts.list({ state: "down", limit: HOSTS_DOWN_SHOWN }, { signal }),
      ]);
      return { insights, project, down: down.data };
    },
    { requests: REQUESTS },
  );
  const { data, error } = loaded;
  return (
    <>
      <PageHead title="Overview" actions={<Live {...loaded} />} />
      <Filters>
        <SelectField
          label="Period"
          value={period}
          onChange={(value) => setFilters({ period: value })}
          options={PERIODS}
        />
        <FilterSelect label="Region" name="region" options={optionsOf(REGIONS, "all")} />
      </Filters>
      <div class="stack">
        <Trouble error={error} onRetry={loaded.reload} />
        {data === undefined ? error === undefined && <Loading what="the overview" /> : <Figures {...data} />}
      </div>
    </>
  );
}

const PERIODS = INSIGHT_PERIODS.map(
  (name) => [name, `the last ${name.replace("h", " h").replace("d", " days")}`] as const,
);

function Figures(props: { insights: Insights; project: Project; down: readonly Host[] }) {
  const { insights, project, down } = props;
  const { totals, lateness_target, hosts } = insights;
  const ended = totals.succeeded + totals.failed + totals.timed_out;
  const isLate = (totals.late_ms.p99 ?? 0) > lateness_target.p99_ms;
  return (
    <>
      <Card>
        <dl class="stats">
          <Stat name="Runs" note={`${countText(totals.created)} jobs created`}>
            {countText(ended)}
          </Stat>
          <Stat
            name="Success rate"
            note={`${countText(totals.failed)} failed, ${countText(totals.timed_out)} timed out`}
          >
            {percentText(totals.succeeded, ended)}
          </Stat>
          <Stat name="Lateness, median" note="from due to sent">
            {durationText(totals.late_ms.p50)}
          </Stat>
          <Stat
            name="Lateness, p99"
            note={
              totals.late_ms.p99 === null
                ? `target ${durationText(lateness_target.p99_ms)}`
                : `${isLate ? "above" : "within"} the target of ${durationText(lateness_target.p99_ms)}`
            }
          >
            {durationText(totals.late_ms.p99)}
          </Stat>
          <Stat name="Duration, p99" note={`median ${durationText(totals.duration_ms.p50)}`}>
            {durationText(totals.duration_ms.p99)}
          </Stat>
        </dl>
        {ended === 0 && (
          <p class="note">No run of this period is counted yet. A run is counted within 15 s of its end.</p>
        )}
      </Card>
      <Charts insights={insights} />
      <div class="columns">
        <Waiting insights={insights} />
        <Plan project={project} />
      </div>
      <Hosts hosts={hosts} />
      {down.length > 0 && <Down hosts={down} />}
    </>
  );
}

function Charts({ insights }: { insights: Insights }) {
  const { buckets, lateness_target } = insights;
  const { instants, runs, lateness } = useMemo(() => {
    const series = (name: string, tone: Series["tone"], values: Series["values"]): Series => ({
      name,
      tone,
      values,
    });
    return {
      instants: buckets.map(({ at }) => Date.parse(at)),
      runs: [
        series(
          "succeeded",
          "good",
          buckets.map((bucket) => bucket.succeeded),
        ),
        series(
          "failed",
          "bad",
          buckets.map((bucket) => bucket.failed),
        ),
        series(
          "timed out",
          "warn",
          buckets.map((bucket) => bucket.timed_out),
        ),
      ],
      lateness: [
        series(
          "p50",
          "active",
          buckets.map((bucket) => bucket.late_ms.p50),
        ),
        series(
          "p99",
          "warn",
          buckets.map((bucket) => bucket.late_ms.p99),
        ),
        {
          ...series(
            "target of p99",
            "bad",
            buckets.map(() => lateness_target.p99_ms),
          ),
          isDashed: true,
        },
      ],
    };
  }, [buckets, lateness_target.p99_ms]);
  return (
    <div class="columns">
      <Card title="Runs by outcome">
        <Chart label="Runs by outcome" kind="bars" instants={instants} series={runs} textOf={countText} />
      </Card>
      <Card title="Lateness">
        <Chart
          label="Lateness"
          kind="lines"
          instants={instants}
          series={lateness}
          textOf={(ms) => durationText(Math.round(ms))}
          isLogarithmic
        />
      </Card>
    </div>
  );
}

function Waiting({ insights: { waiting } }: { insights: Insights }) {
  const about = waiting.estimated ? "about " : "";
  const reasons = Object.entries(waiting.by_reason).sort(([, one], [, other]) => other - one);
  return (
    <Card title="What waits">
      <dl class="stats">
        <Stat name="Due now" note="and not sent yet">
          {about + countText(waiting.due)}
        </Stat>
        <Stat name="Later" note="due in the future">
          {about + countText(waiting.later)}
        </Stat>
      </dl>
      {reasons.length > 0 && (
        <ul class="bars">
          {reasons.map(([reason, count]) => (
            <li key={reason}>
              <span>{reasonTitle(reason)}</span>
              <span class="number">{countText(count)}</span>
              <Meter part={count} whole={waiting.due} />
            </li>
          ))}
        </ul>
      )}
      <p class="note">
        <Link href={hrefOf("jobs", [], { status: "queued" })}>Show the queued jobs</Link>
      </p>
    </Card>
  );
}

function Plan({ project: { plan, usage, limits } }: { project: Project }) {
  const rate = rateLimit.value;
  const { runs_this_period: runs, runs_included: included } = usage;
  return (
    <Card title={`Plan: ${plan}`}>
      <ul class="bars">
        <li>
          <span>Runs this month, over both environments</span>
          <span class="number">{`${countText(runs)} of ${countText(included)}`}</span>
          <Meter part={runs} whole={included} isBound />
        </li>
        {rate !== null && (
          <li>
            <span>Requests in the last minute</span>
            <span class="number">{`${countText(rate.limit - rate.remaining)} of ${countText(rate.limit)}`}</span>
            <Meter part={rate.limit - rate.remaining} whole={rate.limit} isBound />
          </li>
        )}
      </ul>
      <p class="note">
        {`At most ${countText(limits.concurrency)} attempts at once and ${countText(limits.schedules)} active schedules, over both environments.`}
      </p>
    </Card>
  );
}

function Hosts({ hosts }: { hosts: Insights["hosts"] }) {
  return (
    <Card title="Hosts that fail">
      {hosts.length === 0 ? (
        <p class="note">No run has failed in this period.</p>
      ) : (
        <div class="table-card">
          <table class="table" aria-label="Hosts that fail">
            <thead>
              <tr>
                <th scope="col">Host</th>
                <th scope="col" class="right">
                  Failed
                </th>
                <th scope="col" class="right from-medium">
                  Runs
                </th>
                <th scope="col" class="right from-medium">
                  Duration, p99
                </th>
                <th scope="col">Most of them</th>
              </tr>
            </thead>
            <tbody>
              {hosts.map((host) => (
                <tr key={host.host} class="row">
                  <td title={host.host}>{host.host}</td>
                  <td class="right">{`${countText(host.failed)} (${percentText(host.failed, host.runs)})`}</td>
                  <td class="right from-medium">{countText(host.runs)}</td>
                  <td class="right from-medium">{durationText(host.duration_p99_ms)}</td>
                  <td>{wordsOf(host.commonest_error)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Card>
  );
}

function Down({ hosts }: { hosts: readonly Host[] }) {
  return (
    <Card title="Hosts that are down">
      <ul class="bars">
        {hosts.map(({ host, parked }) => (
          <li key={host}>
            <span class="break">{host}</span>
            <span class="number">{`${countText(parked)} parked`}</span>
          </li>
        ))}
      </ul>
      <p class="note">
        <Link href={hrefOf("hosts")}>All hosts</Link>
      </p>
    </Card>
  );
}
