import { Figures } from "../../domain/insights/figures.ts";
import { Hosts } from "../../domain/insights/hosts.ts";
import {
  bucketStart,
  bucketsOf,
  coverFrom,
  type InsightPeriod,
  levelOf,
  type Stretch,
} from "../../domain/insights/levels.ts";
import { REGIONS, type Region, type Scope } from "../../domain/scope.ts";
import { environmentCode, regionCode } from "../database/codes.ts";
import { column, type Database, epochMs } from "../database/database.ts";
import { addRow, FIGURE_COLUMNS, type FigureRow } from "./parts.ts";

/** The figures of an environment in a period, for one region or for all of them. */
export interface FoundInsights {
  now: number;
  totals: Figures;
  /** The oldest first, with the starts of the period's buckets in milliseconds since 1970. */
  buckets: { at: number; figures: Figures }[];
  hosts: Hosts;
}

/** Lets the caller give way after each row, because merging the rows of busy hours takes a while. */
type Pause = () => Promise<void> | undefined;

export async function findInsights(
  db: Database,
  scope: Scope,
  { period, region }: { period: InsightPeriod; region: Region | null },
  pause: Pause = () => undefined,
): Promise<FoundInsights> {
  const [state] = await db.run<StateRow>("find_insight_state", FIND_STATE, []);
  if (state === undefined) throw new Error("the roll-up of insights has no state");
  const { now, closed_until: closedUntil } = state;
  const level = levelOf(period);
  const starts = bucketsOf(period, now);
  const fromAt = starts[0] ?? now;
  const buckets = new Map(starts.map((at) => [at, new Figures()]));
  const totals = new Figures();
  const hosts = new Hosts();

  const place = [
    scope.projectNo,
    environmentCode(scope.environment),
    column((region === null ? REGIONS : [region]).map(regionCode)),
  ];
  const inLevel = coverFrom(fromAt, closedUntil, level);
  const rows = await db.run<FigureRow & { at: number }>("find_insights", FIND, [
    ...place,
    ...columnsOf(inLevel),
  ]);
  for (const row of rows) {
    // By the clock, a run may end later than now. It is shown once that time has come.
    const bucket = buckets.get(bucketStart(level, row.at));
    if (bucket !== undefined) addRow(bucket, row);
    await pause();
  }
  for (const figures of buckets.values()) {
    totals.add(figures);
    await pause();
  }
  // Hosts are shown for the period as a whole, so the coarsest rows suffice.
  const coarse = coverFrom(fromAt, closedUntil);
  for (const row of await db.run<{ hosts: string }>("find_insight_hosts", FIND_HOSTS, [
    ...place,
    ...columnsOf(coarse),
  ])) {
    hosts.addEncoded(row.hosts);
    await pause();
  }
  return { now, totals, buckets: [...buckets].map(([at, figures]) => ({ at, figures })), hosts };
}

const FIND_STATE = `
SELECT ${epochMs("now()")} AS now, ARRAY(SELECT ${epochMs("at")} FROM unnest(closed_until) WITH ORDINALITY AS c (at, n) ORDER BY n) AS closed_until
  FROM insight_progress`;

interface StateRow {
  now: number;
  closed_until: number[];
}

// A level keeps its rows when they are added up into the next one, so a bucket that is closed meanwhile does no harm.
const FROM_STRETCHES = `
  FROM unnest($4::smallint[], $5::timestamptz[], $6::timestamptz[]) AS s (level, from_at, until_at)
 CROSS JOIN LATERAL (
       SELECT i.* FROM insights i
        WHERE i.project_no = $1 AND i.environment = $2 AND i.level = s.level AND i.at >= s.from_at AND i.at < s.until_at
          AND i.region = ANY ($3::smallint[])
       OFFSET 0) i`;
const FIND = `SELECT ${epochMs("i.at")} AS at, ${FIGURE_COLUMNS} ${FROM_STRETCHES}`;
const FIND_HOSTS = `SELECT i.hosts ${FROM_STRETCHES} WHERE i.hosts IS NOT NULL`;

const columnsOf = (stretches: readonly Stretch[]) => [
  column(stretches.map(({ level }) => level)),
  column(stretches.map(({ fromAt }) => `"${new Date(fromAt).toISOString()}"`)),
  column(
    stretches.map(({ untilAt }) =>
      untilAt === Number.POSITIVE_INFINITY ? "infinity" : `"${new Date(untilAt).toISOString()}"`,
    ),
  ),
];
