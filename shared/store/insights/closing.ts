import { bucketEnd } from "../../domain/insights/levels.ts";
import { ALL_ENVIRONMENTS } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { addRow, FIGURE_COLUMNS, type FigureRow, type Part, Parts, writeStep } from "./parts.ts";
import { completeUntil, type Progress } from "./progress.ts";
import { skipToNextBucket } from "./skipping.ts";

/** One step looks at so many projects: each may have hundreds of parts in a bucket, some with many hosts. */
export const PROJECTS_PER_STEP = 25;

/**
 * Takes a step in closing the next bucket of a level: adds up the parts that the next projects have in the level before it. Figures that
 * are counted later are written in both levels (parts.ts). Answers the next state, or null if another step was written meanwhile.
 */
export async function closeSome(
  db: Database,
  progress: Progress,
  level: number,
  projectsMax = PROJECTS_PER_STEP,
): Promise<Progress | null> {
  const closedUntil = progress.closedUntil[level - 1] ?? 0;
  const afterProject = progress.closedProject[level - 1] ?? 0;
  const bounds = { fromAt: closedUntil, completeUntil: completeUntil(progress, level) };
  const fromAt = afterProject === 0 ? await skipToNextBucket(db, level, bounds) : closedUntil;
  const untilAt = bucketEnd(level, fromAt);
  if (fromAt > closedUntil && untilAt > bounds.completeUntil)
    return move(db, progress, level, { closedUntil: fromAt, closedProject: 0 });
  const [last] = await db.run<{ project_no: number | null; count: number }>(
    "find_next_projects",
    NEXT_PROJECTS,
    [afterProject, projectsMax],
  );
  const parts = new Parts();
  if (last !== undefined && last.project_no !== null) {
    const rows = await db.run<ClosedRow>("find_insights_to_close", FIND_PARTS, [
      ...[afterProject, last.project_no, level - 1],
      ...[new Date(fromAt).toISOString(), new Date(untilAt).toISOString()],
    ]);
    for (const row of rows) {
      const { project_no: projectNo, environment, region } = row;
      const { figures, hosts } = parts.of({ projectNo, environment, region, level, at: fromAt });
      addRow(figures, row);
      hosts.addEncoded(row.hosts);
    }
  }
  const isLast = last === undefined || last.count < projectsMax;
  const to = isLast
    ? { closedUntil: untilAt, closedProject: 0 }
    : { closedUntil: fromAt, closedProject: last.project_no ?? 0 };
  return move(db, progress, level, to, [...parts.all]);
}

async function move(
  db: Database,
  progress: Progress,
  level: number,
  to: { closedUntil: number; closedProject: number },
  parts: readonly Part[] = [],
): Promise<Progress | null> {
  const next = {
    ...progress,
    closedUntil: progress.closedUntil.with(level - 1, to.closedUntil),
    closedProject: progress.closedProject.with(level - 1, to.closedProject),
  };
  return (await writeStep(db, parts, next)) ? { ...next, revision: next.revision + 1 } : null;
}

const NEXT_PROJECTS = `
SELECT max(no) AS project_no, count(*)::int AS count
  FROM (SELECT no FROM projects WHERE no > $1 ORDER BY no LIMIT $2) next`;

// OFFSET 0 keeps the planner from beginning with all rows that the level has of that time.
const FIND_PARTS = `
SELECT i.project_no, i.environment, i.region, ${FIGURE_COLUMNS}, i.hosts
  FROM projects p
 CROSS JOIN LATERAL (
       SELECT i.* FROM insights i
        WHERE i.project_no = p.no AND i.environment = ANY (${ALL_ENVIRONMENTS})
          AND i.level = $3 AND i.at >= $4::timestamptz AND i.at < $5::timestamptz
       OFFSET 0) i
 WHERE p.no > $1 AND p.no <= $2`;

type ClosedRow = FigureRow & {
  project_no: number;
  environment: number;
  region: number;
  hosts: string | null;
};
