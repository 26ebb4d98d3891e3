import { addRunsToHost } from "../../../shared/domain/insights/figures.ts";
import { bucketsOf, INSIGHT_PERIODS, levelOf } from "../../../shared/domain/insights/levels.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { Parts, writeStep } from "../../../shared/store/insights/parts.ts";
import { findOutset } from "../../../shared/store/insights/progress.ts";

/** The shape of a project's insights: each bucket of each region has runs at so many hosts, whose names may differ by bucket. */
export interface InsightfulProject {
  no: number;
  regions: number;
  hosts: number;
  hostsOfBucket(at: number): string;
}

const PRODUCTION = 1;
const RUNS_PER_BUCKET = 600;
const PARTS_PER_MINUTE = 12;

/** Writes the insights of each period up to now, in the number of parts that the roll-up would leave. */
export async function storeInsights(db: Database, projects: readonly InsightfulProject[]): Promise<void> {
  const outset = await findOutset(db);
  if (outset === null) throw new Error("there is no state of the roll-up");
  const { now } = outset;
  let { progress } = outset;
  for (const period of INSIGHT_PERIODS) {
    const level = levelOf(period);
    for (const at of bucketsOf(period, now)) {
      for (let part = 0; part < (level === 0 ? PARTS_PER_MINUTE : 1); part++) {
        const parts = new Parts();
        for (const project of projects) {
          for (let region = 0; region < project.regions; region++)
            fill(parts, project, { region, level, at });
        }
        if (!(await writeStep(db, [...parts.all], progress))) throw new Error("somebody else writes");
        progress = { ...progress, revision: progress.revision + 1 };
      }
    }
  }
}

function fill(
  parts: Parts,
  { no, hosts, hostsOfBucket }: InsightfulProject,
  { region, level, at }: { region: number; level: number; at: number },
): void {
  const part = parts.of({ projectNo: no, environment: PRODUCTION, region, level, at });
  part.figures.created += RUNS_PER_BUCKET;
  for (let n = 0; n < RUNS_PER_BUCKET; n++) {
    const group = {
      host: `${hostsOfBucket(at)}${n % hosts}.customers.example.com`,
      count: 1,
      end:
        n % 7 === 0
          ? ({ status: "failed", responseStatus: 503, error: "no" } as const)
          : ({ status: "succeeded" } as const),
      late: [spread(3)],
      lateWaited: n % 20 === 0 ? [spread(3_000)] : [],
      waitedFor: n % 20 === 0 ? (["concurrency"] as const) : [],
      durations: [spread(120)],
    };
    part.figures.addRuns(group);
    addRunsToHost(part.hosts, group);
  }
}

/** A random figure, spread about as durations are: most are within a factor of ten. */
const spread = (around: number) =>
  Math.round(around * Math.exp(1.2 * (Math.random() + Math.random() + Math.random() - 1.5)));
