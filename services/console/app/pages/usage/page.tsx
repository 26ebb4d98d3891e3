import { useMemo } from "preact/hooks";
import type { UsageReport } from "../../../../../shared/client/project.ts";
import { REGIONS } from "../../../../../shared/domain/scope.ts";
import { place } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { useSession } from "../../data/session.ts";
import { Chart } from "../../ui/chart.tsx";
import { FilterSelect, Filters, optionsOf } from "../../ui/form.tsx";
import { Card, Loading, Meter, PageHead, Stat, Trouble } from "../../ui/page.tsx";
import { countText, percentText } from "../../ui/time.ts";

/** Runs of a month by day, and by region. */
export function UsagePage() {
  const { client, project } = useSession();
  const { query } = place.value;
  const month = query.get("period") ?? "";
  const region = REGIONS.find((name) => name === query.get("region"));
  const loaded = useQuery(`usage ${month} ${region}`, async (signal) => {
    const period = month === "" ? {} : { period: month };
    const [report, ...others] = await Promise.all([
      client.project.usage({ ...period, ...(region && { region }) }, { signal }),
      ...(region === undefined
        ? REGIONS.map((name) => client.project.usage({ ...period, region: name }, { signal }))
        : []),
    ]);
    return {
      report,
      regions: others.map((other, index) => ({ region: REGIONS[index] ?? "", runs: sumOf(other) })),
    };
  });
  const { data, error } = loaded;
  return (
    <>
      <PageHead title="Usage">
        Runs count for the UTC month in which they start, over both environments.
      </PageHead>
      <Filters>
        <FilterSelect label="Month" name="period" options={monthsSince(project.created_at)} />
        <FilterSelect label="Region" name="region" options={optionsOf(REGIONS, "all")} />
      </Filters>
      <div class="stack">
        <Trouble error={error} onRetry={loaded.reload} />
        {data === undefined ? (
          error === undefined && <Loading what="the usage" />
        ) : (
          <>
            <Totals report={data.report} />
            <Days report={data.report} {...(region && { region })} />
            {data.regions.length > 0 && <Regions regions={data.regions} />}
          </>
        )}
      </div>
    </>
  );
}

function Totals({ report: { runs_total, runs_included, overage_runs } }: { report: UsageReport }) {
  return (
    <Card>
      <dl class="stats">
        <Stat name="Runs, all regions" note={`${percentText(runs_total, runs_included)} of the plan`}>
          {countText(runs_total)}
        </Stat>
        <Stat name="Included" note="a month">
          {countText(runs_included)}
        </Stat>
        <Stat name="Beyond" note="billed as overage">
          {countText(overage_runs)}
        </Stat>
      </dl>
      <Meter part={runs_total} whole={runs_included} isBound />
    </Card>
  );
}

function Days({ report, region }: { report: UsageReport; region?: string }) {
  const { instants, series } = useMemo(() => {
    return {
      instants: report.by_day.map(({ date }) => Date.parse(date)),
      series: [{ name: "runs", tone: "active" as const, values: report.by_day.map(({ runs }) => runs) }],
    };
  }, [report]);
  const title = region === undefined ? "By day" : `By day, ${region}`;
  return (
    <Card title={title}>
      <Chart label={title} kind="bars" instants={instants} series={series} textOf={countText} isUtc />
    </Card>
  );
}

function Regions({ regions }: { regions: readonly { region: string; runs: number }[] }) {
  const sum = regions.reduce((total, { runs }) => total + runs, 0);
  return (
    <Card title="By region">
      <ul class="bars">
        {regions.map(({ region, runs }) => (
          <li key={region}>
            <span>{region}</span>
            <span class="number">{`${countText(runs)} (${percentText(runs, sum)})`}</span>
            <Meter part={runs} whole={sum} />
          </li>
        ))}
      </ul>
    </Card>
  );
}

function sumOf({ by_day }: UsageReport): number {
  return by_day.reduce((total, { runs }) => total + runs, 0);
}

const MONTHS_MAX = 24;

/** The months of the project's life, the current one first. */
function monthsSince(createdAt: string): [string, string][] {
  const now = new Date();
  const months: [string, string][] = [["", "this month"]];
  for (let back = 1; back < MONTHS_MAX; back++) {
    const month = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back))
      .toISOString()
      .slice(0, 7);
    if (month < createdAt.slice(0, 7)) break;
    months.push([month, month]);
  }
  return months;
}
