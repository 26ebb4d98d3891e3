import { eq, sql } from "drizzle-orm";
import { idToUuid, PROJECT_PREFIX, parseId, uuidToId } from "../domain/ids.ts";
import { isPlan, limitsOf, PLAN_TERMS, type Plan, type PlanFacts } from "../domain/plan.ts";
import type { Environment, ProjectNo, Region } from "../domain/scope.ts";
import { environmentCode, regionCode, regionOf } from "./codes.ts";
import type { Database } from "./database.ts";
import { addKey, type NewKey } from "./keys.ts";
import { flows, projects, signingSecrets } from "./schema.ts";

export interface ProjectRow extends PlanFacts {
  no: ProjectNo;
  id: string;
  name: string;
  defaultRegion: Region;
  apiVersion: string;
}

export interface NewProject {
  id: string;
  name: string;
  plan: Plan;
  defaultRegion: Region;
  apiVersion: string;
  keys: Omit<NewKey, "projectNo">[];
  /** One for each environment, sealed. */
  secrets: { id: string; environment: Environment; sealed: Buffer }[];
}

/** Creates a project with its keys and signing secrets, all or nothing. */
export async function createProject(db: Database, project: NewProject): Promise<ProjectRow> {
  return db.drizzle.transaction(async (tx) => {
    const [row] = await tx
      .insert(projects)
      .values({
        id: idToUuid(project.id),
        name: project.name,
        plan: project.plan,
        defaultRegion: regionCode(project.defaultRegion),
        apiVersion: project.apiVersion,
      })
      .returning();
    if (row === undefined) throw new Error("an inserted project did not come back");
    await tx.insert(flows).values({
      projectNo: row.no,
      concurrency: PLAN_TERMS[project.plan].concurrency,
      month: sql`date_trunc('month', now())::date`,
      monthRunsMax: monthRunsMax(project.plan),
    });
    for (const key of project.keys) await addKey(tx, { ...key, projectNo: row.no });
    await tx.insert(signingSecrets).values(
      project.secrets.map((secret) => ({
        id: idToUuid(secret.id),
        projectNo: row.no,
        environment: environmentCode(secret.environment),
        sealed: secret.sealed,
      })),
    );
    return readProject(row);
  });
}

export async function findProject(db: Database, id: string): Promise<ProjectRow | null> {
  if (parseId(PROJECT_PREFIX, id) === null) return null;
  const [row] = await db.drizzle
    .select()
    .from(projects)
    .where(eq(projects.id, idToUuid(id)));
  return row === undefined ? null : readProject(row);
}

export async function listProjects(db: Database): Promise<ProjectRow[]> {
  return (await db.drizzle.select().from(projects).orderBy(projects.no)).map(readProject);
}

/** Runs started in the present UTC month, over both environments. */
export async function countMonthRuns(db: Database, projectNo: ProjectNo): Promise<number> {
  const rows = await db.run<{ runs: number }>(
    "month_runs",
    `SELECT CASE WHEN month = date_trunc('month', now())::date THEN month_runs ELSE 0 END::float8 AS runs
       FROM flows WHERE project_no = $1`,
    [projectNo],
  );
  return rows[0]?.runs ?? 0;
}

export type ProjectChange = Partial<PlanFacts & Pick<ProjectRow, "apiVersion">>;

/** Changes what an operator may change, and the flow's limits with it. Null if there is no such project. */
export async function changeProject(
  db: Database,
  id: string,
  change: ProjectChange,
): Promise<ProjectRow | null> {
  return db.drizzle.transaction(async (tx) => {
    const found = await tx
      .select()
      .from(projects)
      .where(eq(projects.id, idToUuid(id)))
      .for("update");
    if (found[0] === undefined) return null;
    const project = { ...readProject(found[0]), ...change };
    const [row] = await tx
      .update(projects)
      .set({
        plan: project.plan,
        apiVersion: project.apiVersion,
        requestsPerMinute: project.requestsPerMinuteOverride,
        concurrency: project.concurrencyOverride,
        schedules: project.schedulesOverride,
      })
      .where(eq(projects.no, project.no))
      .returning();
    await tx
      .update(flows)
      .set({ concurrency: limitsOf(project).concurrency, monthRunsMax: monthRunsMax(project.plan) })
      .where(eq(flows.projectNo, project.no));
    return row === undefined ? null : readProject(row);
  });
}

/** Only a hobby project's quota is hard; paid plans are billed for what is beyond. */
function monthRunsMax(plan: Plan): number | null {
  return plan === "hobby" ? PLAN_TERMS.hobby.runsIncluded : null;
}

export function readProject(row: typeof projects.$inferSelect): ProjectRow {
  if (!isPlan(row.plan)) throw new Error(`unknown plan ${row.plan} in a row`);
  return {
    no: row.no,
    id: uuidToId(PROJECT_PREFIX, row.id),
    name: row.name,
    plan: row.plan,
    defaultRegion: regionOf(row.defaultRegion),
    apiVersion: row.apiVersion,
    requestsPerMinuteOverride: row.requestsPerMinute,
    concurrencyOverride: row.concurrency,
    schedulesOverride: row.schedules,
  };
}
